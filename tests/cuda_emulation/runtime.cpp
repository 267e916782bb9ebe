// SPDX-License-Identifier: Apache-2.0
#include "cuda_emulation/runtime.hpp"

#include "cuda_emulation/events.hpp"
#include "cuda_emulation/races.hpp"
#include "cuda_emulation/reports.hpp"
#include "cuda_emulation/scheduler.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

struct CUstream_st {
  sparsecast::emulation::orders::Agent agent = sparsecast::emulation::orders::make_agent();
  CUgraph_st* graph = nullptr;  ///< Into which it is being captured.
};

namespace {

using sparsecast::emulation::DeviceAtWork;
using sparsecast::emulation::HeldMemory;
using sparsecast::emulation::MemoryKind;
using sparsecast::emulation::OnStream;
using sparsecast::emulation::RuntimeCounts;
using sparsecast::emulation::Unwatched;
namespace orders = sparsecast::emulation::orders;
using sparsecast::emulation::races::Access;
using sparsecast::emulation::races::kWatched;

std::mutex counts_mutex;
RuntimeCounts counts;
thread_local RuntimeCounts counts_of_thread;

/// Adds `more` to a count of the program and of the thread.
void count(std::size_t RuntimeCounts::*what, std::size_t more = 1) {
  const std::lock_guard lock(counts_mutex);
  counts.*what += more;
  counts_of_thread.*what += more;
}

struct Block {
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  std::shared_ptr<HeldMemory> owner;  ///< Account of the thread that has allocated it.
};
std::map<std::uintptr_t, Block> blocks;  ///< By address, all that are not freed. Guarded by counts_mutex.
thread_local const auto held = std::make_shared<HeldMemory>();

void hold(const void* at, std::size_t bytes, MemoryKind kind) {
  const std::lock_guard lock(counts_mutex);
  blocks[reinterpret_cast<std::uintptr_t>(at)] = {bytes, kind, held};
  (kind == MemoryKind::kDevice ? held->device : held->pinned) += bytes;
  held->most_device = std::max(held->most_device, held->device);
  held->most_pinned = std::max(held->most_pinned, held->pinned);
}

void let_go(const void* at) {
  const std::lock_guard lock(counts_mutex);
  const auto found = blocks.find(reinterpret_cast<std::uintptr_t>(at));
  const Block& block = found->second;
  (block.kind == MemoryKind::kDevice ? block.owner->device : block.owner->pinned) -= block.bytes;
  blocks.erase(found);
}

bool is_pinned(const void* at) {
  const std::lock_guard lock(counts_mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto block = blocks.upper_bound(address);
  if (block == blocks.begin()) return false;
  --block;
  return block->second.kind == MemoryKind::kPinnedHost && address - block->first < block->second.bytes;
}

std::atomic<int> successes_left = -1;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int busy_questions = 0;
constexpr std::size_t kMuchMemory = std::size_t{1} << 36;
thread_local std::size_t free_bytes = kMuchMemory;
thread_local bool deferring = false;
thread_local std::vector<std::function<void()>> deferred;
std::atomic<bool> capturing = false;
std::mutex loaded_mutex;
std::set<const void*> loaded;  ///< Kernels.
constexpr int kDevices = 2;
std::array<std::atomic<bool>, kDevices> contexts{};

orders::Agent& agent_of(cudaStream_t stream) {
  static CUstream_st standard;
  return stream != nullptr ? stream->agent : standard.agent;
}

/// Adds an operation of the stream to the graph into which it is captured. Returns false if it is not.
bool capture(cudaStream_t stream, std::function<void(cudaStream_t)> operation) {
  if (stream == nullptr || stream->graph == nullptr) return false;
  CUgraph_st& graph = *stream->graph;
  graph.operations.push_back([stream, of = graph.first, operation = std::move(operation)](cudaStream_t first) {
    operation(stream == of ? first : stream);
  });
  if (stream != graph.first) graph.behind[stream] = 0;
  return true;
}

/// Makes a context on the current device, as every function does that needs one.
void enter_context() { contexts.at(static_cast<std::size_t>(current_device)) = true; }

cudaError_t kept(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
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
  if (busy_questions == 0) return false;
  --busy_questions;
  return true;
}

void wait_for(cudaStream_t stream) {
  sparsecast::emulation::finish_copies();
  if constexpr (kWatched) orders::host_waits_for(agent_of(stream));
}

cudaError_t allocate(void** at, std::size_t bytes, MemoryKind kind) {
  enter_context();
  if (successes_left == 0) return kept(cudaErrorMemoryAllocation);
  if (successes_left > 0) --successes_left;
  *at = sparsecast::emulation::allocate_memory(kind, bytes);
  if (*at == nullptr) return kept(cudaErrorMemoryAllocation);
  const DeviceAtWork at_work;
  const Unwatched nothing;
  std::memset(*at, 0xC7, bytes);
  count(&RuntimeCounts::allocations);
  count(&RuntimeCounts::live_allocations);
  hold(*at, bytes, kind);
  return cudaSuccess;
}

cudaError_t release(void* at) {
  enter_context();
  sparsecast::emulation::finish_copies();
  if constexpr (kWatched) orders::host_waits_for_all();
  if (at != nullptr) {
    count(&RuntimeCounts::live_allocations, ~std::size_t{0});  // One less.
    let_go(at);
  }
  sparsecast::emulation::release_memory(at);
  return cudaSuccess;
}

}  // namespace

namespace sparsecast::emulation {

RuntimeCounts runtime_counts() {
  const std::lock_guard lock(counts_mutex);
  return counts;
}
RuntimeCounts thread_counts() { return counts_of_thread; }
RuntimeCounts RuntimeCounts::since(const RuntimeCounts& before) const {
  return {allocations - before.allocations, live_allocations - before.live_allocations,
          objects - before.objects,         copied_bytes - before.copied_bytes,
          queries - before.queries,         copies - before.copies,
          bus_bytes - before.bus_bytes,     launches - before.launches,
          late_loads - before.late_loads,   pageable_copies - before.pageable_copies};
}
HeldMemory held_memory() {
  const std::lock_guard lock(counts_mutex);
  return *held;
}
void forget_most_memory() {
  const std::lock_guard lock(counts_mutex);
  held->most_device = held->device;
  held->most_pinned = held->pinned;
}
void capture_streams(bool capture) { capturing = capture; }
void launch_grid(cudaStream_t stream, unsigned ctas, unsigned threads, const void* kernel, std::function<void()> call) {
  if (capture(stream, [=](cudaStream_t to) { run_grid(to, ctas, threads, call); })) return;
  enter_context();
  count(&RuntimeCounts::launches);
  {
    const std::lock_guard lock(loaded_mutex);
    if (!loaded.contains(kernel)) count(&RuntimeCounts::late_loads);
  }
  run_grid(stream, ctas, threads, call);
}
void count_load(const void* kernel) {
  enter_context();
  const std::lock_guard lock(loaded_mutex);
  loaded.insert(kernel);
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
void fail_allocation_after(int successes) { successes_left = successes; }
void free_memory(std::size_t bytes) { free_bytes = bytes; }

OnStream::OnStream(cudaStream_t stream) {
  if constexpr (kWatched) operation_.emplace(agent_of(stream));
}

TestEvent::TestEvent() : event_(new CUevent_st) {}
TestEvent::~TestEvent() { delete event_; }
int TestEvent::records() const { return event_->records; }
int TestEvent::waits() const { return event_->waits; }

}  // namespace sparsecast::emulation

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "invalid argument";
}
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
  enter_context();  // Since CUDA 12.
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult*) {
  if (std::string_view(symbol) != "cuDevicePrimaryCtxGetState") return kept(cudaErrorInvalidValue);
  *function = reinterpret_cast<void*>(+[](int device, unsigned* flags, int* active) {
    *flags = 0;
    *active = sparsecast::emulation::has_context(device) ? 1 : 0;
    return 0;
  });
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : attribute == cudaDevAttrComputeCapabilityMinor ? 0 : 2;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** at, std::size_t bytes) { return allocate(at, bytes, MemoryKind::kDevice); }
cudaError_t cudaFree(void* at) { return release(at); }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  enter_context();
  *free = free_bytes;
  *total = kMuchMemory;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** at, std::size_t bytes) { return allocate(at, bytes, MemoryKind::kPinnedHost); }
cudaError_t cudaFreeHost(void* at) { return release(at); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  enter_context();
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
  enter_context();
  constexpr std::size_t kMostPitch = (std::size_t{1} << 31) - 1;
  if (to_pitch < width || from_pitch < width || to_pitch > kMostPitch || from_pitch > kMostPitch) {
    return kept(cudaErrorInvalidPitchValue);
  }
  if (stream != nullptr && stream->graph != nullptr) return kept(cudaErrorStreamCaptureUnsupported);
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
  enter_context();
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
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  enter_context();
  if (stream != nullptr && stream->graph != nullptr) return kept(cudaErrorStreamCaptureUnsupported);
  if (is_busy()) return kept(cudaErrorNotReady);
  wait_for(stream);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  enter_context();
  if (is_busy()) return kept(cudaErrorNotReady);
  sparsecast::emulation::finish_copies();
  if constexpr (kWatched) orders::host_waits_for(event->before);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  enter_context();
  const bool captured = stream != nullptr && stream->graph != nullptr;
  *status = capturing || captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  enter_context();
  wait_for(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  enter_context();
  *stream = new CUstream_st;
  count(&RuntimeCounts::objects);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  enter_context();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  enter_context();
  *event = new CUevent_st;
  count(&RuntimeCounts::objects);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  enter_context();
  delete event;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  enter_context();
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  enter_context();
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
  enter_context();
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
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  enter_context();
  if (stream == nullptr || stream->graph != nullptr) return kept(cudaErrorStreamCaptureUnsupported);
  stream->graph = new CUgraph_st;
  stream->graph->first = stream;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  enter_context();
  *graph = std::exchange(stream->graph, nullptr);
  if (*graph == nullptr) return kept(cudaErrorStreamCaptureUnsupported);
  for (const cudaStream_t joined : (*graph)->joined) joined->graph = nullptr;
  for (const cudaEvent_t event : (*graph)->events) event->graph = nullptr;
  for (const auto& [joined, behind] : (*graph)->behind) {
    if (behind != 0) continue;  // Nothing has followed what the first stream has waited for.
    delete std::exchange(*graph, nullptr);
    return kept(cudaErrorStreamCaptureUnjoined);
  }
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  enter_context();
  *executable = new CUgraph_st(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  enter_context();
  count(&RuntimeCounts::launches);
  for (const auto& operation : executable->operations) operation(stream);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  enter_context();
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  enter_context();
  delete executable;
  return cudaSuccess;
}
