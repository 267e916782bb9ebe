// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/staging.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "core/unstopped_work.hpp"
#include "transport/nccl/watchdog.hpp"

namespace sparsecast {
namespace {

struct Owner {
  std::thread::id thread;
  int uses = 0;
};
using OwnerKey = std::pair<const DeviceApi*, int>;

std::mutex owners_mutex;
std::map<OwnerKey, Owner>& owners() {
  static std::map<OwnerKey, Owner> map;
  return map;
}

[[noreturn]] void refuse(int device) {
  throw Error(ErrorCode::kUsage, fmt::format("the NCCL channels of device {} belong to another thread: NCCL needs one "
                                             "issuing thread for each device",
                                             device));
}

}  // namespace

IssuingThread::IssuingThread(const DeviceApi& api, int device)
    : api_(&api), device_(device), owner_(std::this_thread::get_id()) {
  const std::lock_guard lock(owners_mutex);
  Owner& owner = owners()[{api_, device_}];
  if (owner.uses != 0 && owner.thread != owner_) refuse(device_);
  owner.thread = owner_;
  ++owner.uses;
}

IssuingThread::~IssuingThread() {
  const std::lock_guard lock(owners_mutex);
  const auto owner = owners().find({api_, device_});
  if (--owner->second.uses == 0) owners().erase(owner);
}

void IssuingThread::require() const {
  if (std::this_thread::get_id() != owner_) refuse(device_);
}

std::byte* GrowingMemory::reserve(DeviceApi& api, std::uint64_t bytes) {
  if (bytes <= bytes_) return data_;
  release(api);
  pinned_ = place_ == Place::kPinned;
  try {
    data_ = static_cast<std::byte*>(pinned_ ? api.allocate_host(bytes) : api.allocate(bytes));
  } catch (const Error&) {
    if (place_ != Place::kDeviceElsePinned) throw;
    data_ = static_cast<std::byte*>(api.allocate_host(bytes));
    pinned_ = true;
  }
  bytes_ = bytes;
  return data_;
}

void GrowingMemory::release(DeviceApi& api) noexcept {
  if (data_ != nullptr && !device_memory_is_kept()) pinned_ ? api.free_host(data_) : api.free(data_);
  data_ = nullptr;
  bytes_ = 0;
}

Staging::Staging(DeviceApi& api, const NcclFunctions& nccl, int device, std::uint64_t bytes, bool nccl_memory)
    : api_(api),
      nccl_(nccl),
      device_(device < 0 ? api.current_device() : device),
      bytes_(bytes),
      nccl_memory_(nccl_memory && nccl.has_registration()),
      thread_(api, device_) {
  const DeviceApiGuard guard(api_, device_);
  try {
    if (nccl_memory_ && nccl_.mem_alloc(&halves_[0].d_data, bytes_) != ncclSuccess) {
      halves_[0].d_data = nullptr;
      nccl_memory_ = false;
    }
    for (StagingHalf& half : halves_) {
      if (half.d_data == nullptr) half.d_data = allocate_device(bytes_);
      half.h_data = static_cast<std::byte*>(api_.allocate_host(bytes_));
      half.arrived = api_.create_event();
    }
    d_table = api_.allocate(sizeof(CountTable));
    h_table = static_cast<CountTable*>(api_.allocate_host(sizeof(CountTable)));
    table_arrived = api_.create_event();
    ready = api_.create_event();
    stream = api_.create_stream();
  } catch (...) {
    release();
    throw;
  }
}

void* Staging::allocate_device(std::uint64_t bytes) {
  if (!nccl_memory_) return api_.allocate(bytes);
  void* pointer = nullptr;
  const ncclResult_t result = nccl_.mem_alloc(&pointer, bytes);
  if (result != ncclSuccess) {
    throw Error(ErrorCode::kDevice, fmt::format("ncclMemAlloc: {}", nccl_.get_error_string(result)));
  }
  return pointer;
}

Staging::~Staging() {
  release_on(api_, device_, [this] { release(); });
}

bool Staging::becomes_idle() noexcept {
  // After an abort, copies may still be on the streams, and memory of a running copy must not be freed.
  if (stream == nullptr) return true;
  try {
    constexpr std::chrono::seconds kPatience{5};
    api_.record(table_arrived, stream);
    const Deadline deadline = std::chrono::steady_clock::now() + kPatience;
    PollPause pace;
    while (!api_.finished(table_arrived)) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      pace.pause();
    }
    return true;
  } catch (...) {
    return false;
  }
}

void Staging::release() noexcept {
  if (device_memory_is_kept()) return;
  if (!becomes_idle()) return keep_device_memory();
  for (StagingHalf& half : halves_) {
    if (half.d_data != nullptr) {
      if (nccl_memory_) {
        nccl_.mem_free(half.d_data);
      } else {
        api_.free(half.d_data);
      }
    }
    if (half.h_data != nullptr) api_.free_host(half.h_data);
    if (half.arrived != nullptr) api_.destroy_event(half.arrived);
  }
  for (GrowingMemory* memory : {&d_heads, &h_heads, &scratch}) memory->release(api_);
  if (d_table != nullptr) api_.free(d_table);
  if (h_table != nullptr) api_.free_host(h_table);
  if (table_arrived != nullptr) api_.destroy_event(table_arrived);
  if (ready != nullptr) api_.destroy_event(ready);
  if (stream != nullptr) api_.destroy_stream(stream);
}

DeviceApiGuard Staging::enter() {
  thread_.require();
  return {api_, device_};
}

}  // namespace sparsecast

#endif
