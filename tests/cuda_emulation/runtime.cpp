// SPDX-License-Identifier: Apache-2.0
#include "cuda_emulation/runtime.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda_emulation/events.hpp"
#include "cuda_emulation/reports.hpp"
#include "cuda_emulation/runtime_state.hpp"
#include "cuda_emulation/scheduler.hpp"

namespace {

using namespace sparsecast::emulation;
using races::Access;
using races::kWatched;

std::mutex counts_mutex;
RuntimeCounts counts;
thread_local RuntimeCounts counts_of_thread;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int busy_questions = 0;
thread_local std::chrono::steady_clock::time_point busy_until;
thread_local sparsecast::emulation::MemoryRange taken_away;
thread_local bool deferring = false;
thread_local std::vector<std::function<void()>> deferred;
std::atomic<bool> capturing = false;
std::mutex loaded_mutex;
std::set<const void*> loaded;         ///< Kernels.
std::set<const void*> shared_memory;  ///< Kernels that prefer the most of it.
std::atomic<int> lacking = -1;        ///< Attribute that devices do not have.
constexpr int kDevices = 2;
std::array<std::atomic<bool>, kDevices> contexts{};
std::array<std::atomic<cudaError_t>, kDevices> broken{};

std::atomic<cudaError_t>& error_of_device() { return broken.at(static_cast<std::size_t>(current_device)); }

/// Fills one byte of each value: 2 for the type of memory of a device, 1 for an address that is mapped.
int pointer_attributes(unsigned count, int* attributes, void** values, std::uintptr_t at) {
  for (unsigned i = 0; i < count; ++i) {
    const bool there = !taken_away.contains(at);
    *static_cast<std::uint8_t*>(values[i]) = attributes[i] == 2             ? (there ? 2 : 0)
                                             : attributes[i] == 13 && there ? 1
                                                                            : 0;
  }
  return 0;
}

/// `copy` moves the bytes, now or later; what it touches was said when it was enqueued.
void enqueue(std::function<void()> copy) {
  auto unwatched = [copy = std::move(copy)] {
    const DeviceAtWork at_work;
    const Unwatched nothing;
    copy();
  };
  if (!deferring) return unwatched();
  deferred.push_back(std::move(unwatched));
}

void count_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (kind != cudaMemcpyDeviceToDevice && !is_pinned(kind == cudaMemcpyHostToDevice ? from : to)) {
    count(&RuntimeCounts::pageable_copies);
  }
  count(&RuntimeCounts::copies);
  count(&RuntimeCounts::copied_bytes, bytes);
  if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToHost) count(&RuntimeCounts::bus_bytes, bytes);
}

void touch(const void* at, std::size_t bytes, bool writes, const void* place) {
  if constexpr (kWatched) orders::touch(at, bytes, writes ? Access::kWrite : Access::kRead, place);
}

/// Counts a query; returns whether the test wants the device to be busy.
bool is_busy() {
  count(&RuntimeCounts::queries);
  if (std::chrono::steady_clock::now() < busy_until) return true;
  if (busy_questions == 0) return false;
  --busy_questions;
  return true;
}

bool contains(const std::set<const void*>& kernels, const void* kernel) {
  const std::lock_guard lock(loaded_mutex);
  return kernels.contains(kernel);
}

void wait_for(cudaStream_t stream) {
  finish_copies();
  if constexpr (kWatched) orders::host_waits_for(agent_of(stream));
}

}  // namespace

namespace sparsecast::emulation {

cudaError_t kept(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
cudaError_t enter() {
  contexts.at(static_cast<std::size_t>(current_device)) = true;
  return kept(error_of_device());
}
orders::Agent& agent_of(cudaStream_t stream) {
  static CUstream_st standard;
  return stream != nullptr ? stream->agent : standard.agent;
}
int device_of(cudaStream_t stream) { return stream != nullptr ? stream->device : current_device; }
void count(std::size_t RuntimeCounts::*what, std::size_t more) {
  const std::lock_guard lock(counts_mutex);
  counts.*what += more;
  counts_of_thread.*what += more;
}

RuntimeCounts runtime_counts() {
  const std::lock_guard lock(counts_mutex);
  return counts;
}
RuntimeCounts thread_counts() { return counts_of_thread; }
RuntimeCounts RuntimeCounts::since(const RuntimeCounts& before) const {
  return {allocations - before.allocations,
          live_allocations - before.live_allocations,
          objects - before.objects,
          copied_bytes - before.copied_bytes,
          queries - before.queries,
          copies - before.copies,
          bus_bytes - before.bus_bytes,
          launches - before.launches,
          late_loads - before.late_loads,
          kernels - before.kernels,
          urgent_kernels - before.urgent_kernels,
          shared_memory_kernels - before.shared_memory_kernels,
          pageable_copies - before.pageable_copies};
}
void capture_streams(bool capture) { capturing = capture; }
cudaError_t launch_grid(cudaStream_t stream, unsigned ctas, unsigned threads, const void* kernel,
                        std::function<void()> call) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  if (device_of(stream) != current_device) return kept(cudaErrorInvalidResourceHandle);
  const auto run = [=, call = std::move(call)](cudaStream_t on) {
    count(&RuntimeCounts::kernels);
    if (running_priority(on) < 0) count(&RuntimeCounts::urgent_kernels);
    if (contains(shared_memory, kernel)) count(&RuntimeCounts::shared_memory_kernels);
    run_grid(on, ctas, threads, call);
  };
  if (capture(stream, run)) return cudaSuccess;
  count(&RuntimeCounts::launches);
  if (!contains(loaded, kernel)) count(&RuntimeCounts::late_loads);
  run(stream);
  return cudaSuccess;
}
bool has_context(int device) { return contexts.at(static_cast<std::size_t>(device)); }
void forget_contexts() {
  for (std::atomic<bool>& context : contexts) context = false;
}
void defer_copies(bool defer) {
  finish_copies();
  deferring = defer;
}
void finish_copies() {
  for (const std::function<void()>& copy : std::exchange(deferred, {})) copy();
}
void be_busy(int questions) { busy_questions = questions; }
void be_busy_for(std::chrono::milliseconds time) { busy_until = std::chrono::steady_clock::now() + time; }
void break_device(int device, cudaError_t error) { broken.at(static_cast<std::size_t>(device)) = error; }
void lack(cudaDeviceAttr attribute, bool lacks) { lacking = lacks ? attribute : -1; }
void take_away(const void* at, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  taken_away = {begin, begin + bytes};
}

OnStream::OnStream(cudaStream_t stream) {
  if constexpr (kWatched) operation_.emplace(agent_of(stream));
}

TestEvent::TestEvent() : event_(new CUevent_st) { event_->device = current_device; }
TestEvent::~TestEvent() { delete event_; }
int TestEvent::records() const { return event_->records; }
int TestEvent::waits() const { return event_->waits; }

}  // namespace sparsecast::emulation

cudaError_t cudaGetLastError() { return std::exchange(last_error, error_of_device()); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return kept(cudaErrorInvalidDevice);
  current_device = device;
  return enter();  // Since CUDA 12.
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult*) {
  if (std::string_view(symbol) == "cuPointerGetAttributes") {
    *function = reinterpret_cast<void*>(&pointer_attributes);
    return cudaSuccess;
  }
  if (std::string_view(symbol) != "cuDevicePrimaryCtxGetState") return kept(cudaErrorInvalidValue);
  *function = reinterpret_cast<void*>(+[](int device, unsigned* flags, int* active) {
    *flags = 0;
    *active = has_context(device) ? 1 : 0;
    return 0;
  });
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : attribute == cudaDevAttrComputeCapabilityMinor ? 0 : 2;
  if (attribute == lacking) *value = 0;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  const void* const place = __builtin_return_address(0);
  const auto copy = [=](cudaStream_t on) {
    count_copy(to, from, bytes, kind);
    const OnStream on_stream(on);
    touch(from, bytes, false, place);
    touch(to, bytes, true, place);
    enqueue([=] {
      if (bytes != 0) std::memcpy(to, from, bytes);
    });
  };
  if (!capture(stream, copy)) copy(stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  constexpr std::size_t kMostPitch = (std::size_t{1} << 31) - 1;
  if (to_pitch < width || from_pitch < width || to_pitch > kMostPitch || from_pitch > kMostPitch) {
    return kept(cudaErrorInvalidPitchValue);
  }
  if (is_captured(stream)) return kept(cudaErrorStreamCaptureUnsupported);
  count_copy(to, from, width * height, kind);
  const OnStream on_stream(stream);
  const std::size_t rows = width != 0 ? height : 0;
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  for (std::size_t row = 0; row < rows; ++row) {
    touch(source + row * from_pitch, width, false, __builtin_return_address(0));
    touch(target + row * to_pitch, width, true, __builtin_return_address(0));
  }
  enqueue([=] {
    for (std::size_t row = 0; row < rows; ++row) std::memcpy(target + row * to_pitch, source + row * from_pitch, width);
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  if (device_of(stream) != current_device) return kept(cudaErrorInvalidResourceHandle);
  const void* const place = __builtin_return_address(0);
  const auto set = [=](cudaStream_t on) {
    const OnStream on_stream(on);
    touch(at, bytes, true, place);
    enqueue([=] {
      if (bytes != 0) std::memset(at, value, bytes);
    });
  };
  if (!capture(stream, set)) set(stream);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  if (const cudaError_t error = enter_unsafe(); error != cudaSuccess) return error;
  const std::lock_guard lock(loaded_mutex);
  loaded.insert(kernel);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (const cudaError_t error = enter_unsafe(); error != cudaSuccess) return error;
  const std::lock_guard lock(loaded_mutex);
  if (value == cudaSharedmemCarveoutMaxShared) shared_memory.insert(kernel);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t error = enter_unsafe(); error != cudaSuccess) return error;
  if (is_captured(stream)) return kept(cudaErrorStreamCaptureUnsupported);
  if (is_busy()) return kept(cudaErrorNotReady);
  wait_for(stream);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = enter_unsafe(); error != cudaSuccess) return error;
  if (event->graph != nullptr) return kept(cudaErrorCapturedEvent);
  if (is_busy()) return kept(cudaErrorNotReady);
  finish_copies();
  if constexpr (kWatched) orders::host_waits_for(event->before);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  *status = capturing || is_captured(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = enter_unsafe(); error != cudaSuccess) return error;
  wait_for(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  *stream = new CUstream_st;
  (*stream)->device = current_device;
  (*stream)->priority = priority;
  count(&RuntimeCounts::objects);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return enter();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  *event = new CUevent_st;
  (*event)->device = current_device;
  count(&RuntimeCounts::objects);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return enter();
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  if (event->device != device_of(stream)) return kept(cudaErrorInvalidResourceHandle);
  ++event->records;
  const auto record = [=](cudaStream_t on) {
    if constexpr (kWatched) orders::record(agent_of(on), event->before);
  };
  if (event->graph != nullptr) event->graph->events.erase(event);
  event->graph = nullptr;
  if (!capture(stream, record)) {
    record(stream);
    return cudaSuccess;
  }
  event->graph = stream->graph;
  event->graph->events.insert(event);
  event->stream = stream;
  event->operations = stream->graph->operations.size();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  ++event->waits;
  if (event->graph != nullptr) {
    CUgraph_st& graph = *event->graph;
    if (stream->graph == nullptr) {
      stream->graph = &graph;
      graph.joined.insert(stream);
    }
    if (stream == graph.first && event->stream != stream) graph.behind[event->stream] = event->operations;
  }
  const auto wait = [=](cudaStream_t on) {
    if constexpr (kWatched) orders::wait(agent_of(on), event->before);
  };
  if (!capture(stream, wait)) wait(stream);
  return cudaSuccess;
}
