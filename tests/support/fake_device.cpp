// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_device.hpp"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "sparsecast/error.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

class Stream {
 public:
  Stream() : worker_([this](const std::stop_token& stop) { work(stop); }) {}
  ~Stream() {
    worker_.request_stop();
    changed_.notify_all();
  }
  void push(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

 private:
  void work(const std::stop_token& stop) {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, stop, [&] { return !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_;
  std::jthread worker_;
};

/// One record of an event. A stream or the host waits for the newest record at the time of the call.
struct Record {
  std::atomic<bool> finished{false};
  std::atomic<bool> waited_for{false};
};

/// Shared with the streams: a caller may destroy an event that they have not reached, or record it anew.
using Event = std::shared_ptr<Record>;

Event& event_of(void* event) { return *static_cast<Event*>(event); }

thread_local int device_of_thread = 0;

}  // namespace

int FakeDevice::device_in_use() { return device_of_thread; }
void FakeDevice::use_device(int device) {
  device_of_thread = device;
  make_context();
}

void FakeDevice::make_context() {
  const std::lock_guard lock(mutex_);
  contexts_.insert(device_of_thread);
}

std::set<int> FakeDevice::contexts() {
  const std::lock_guard lock(mutex_);
  return contexts_;
}

void FakeDevice::enqueue(void* stream, std::function<void()> task) {
  static_cast<Stream*>(stream)->push(std::move(task));
}

std::string FakeDevice::uuid(int device) { return "GPU-" + std::to_string(same_gpu_.count(device) != 0 ? 77 : device); }

bool FakeDevice::knows(void* stream) {
  const std::lock_guard lock(mutex_);
  return streams_.count(stream) != 0;
}

void FakeDevice::may_fail() const {
  if (fails_()) throw Error(ErrorCode::kDevice, "the fake device fails");
}

void FakeDevice::close() {
  closing_ = true;
  for (void* const stream : std::exchange(streams_, {})) delete static_cast<Stream*>(stream);
  for (const auto& [at, block] : std::exchange(blocks_, {})) delete[] static_cast<std::byte*>(at);
}

void* FakeDevice::allocate(std::uint64_t bytes) {
  make_context();
  may_fail();
  ++allocated_;
  auto* const block = new std::byte[bytes];
  const std::lock_guard lock(mutex_);
  blocks_[block] = {bytes, device_of_thread};
  return block;
}

void FakeDevice::free(void* pointer) noexcept {
  make_context();
  --allocated_;
  {
    const std::lock_guard lock(mutex_);
    blocks_.erase(pointer);
  }
  delete[] static_cast<std::byte*>(pointer);
}

std::uint64_t FakeDevice::held_bytes(int device) {
  const std::lock_guard lock(mutex_);
  std::uint64_t total = 0;
  for (const auto& [at, block] : blocks_) total += block.device == device ? block.bytes : 0;
  return total;
}

void* FakeDevice::create_stream() {
  make_context();
  auto* const stream = new Stream;
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
  return stream;
}

void FakeDevice::destroy_stream(void* stream) noexcept {
  make_context();
  {
    const std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  delete static_cast<Stream*>(stream);
}

void* FakeDevice::create_event() {
  make_context();
  return new Event(std::make_shared<Record>());
}
void FakeDevice::destroy_event(void* event) noexcept {
  make_context();
  delete static_cast<Event*>(event);
}

void FakeDevice::record(void* event, void* stream) {
  make_context();
  may_fail();
  const Event record = event_of(event) = std::make_shared<Record>();
  if (!knows(stream)) {
    record->finished = true;
  } else {
    enqueue(stream, [record] { record->finished = true; });
  }
}

void FakeDevice::wait(void* stream, void* event) {
  make_context();
  may_fail();
  const auto pass = [this, record = event_of(event)] {
    while (!record->finished && !closing_) std::this_thread::sleep_for(100us);
  };
  if (knows(stream)) {
    enqueue(stream, pass);
  } else {
    pass();
  }
}

bool FakeDevice::finished(void* event) {
  make_context();
  const Event record = event_of(event);
  if (!record->waited_for.exchange(true)) ++host_waits_;
  return record->finished;
}

void FakeDevice::copy_to_device(void* to, const void* from, std::uint64_t bytes, void* stream) {
  make_context();
  may_fail();
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
void FakeDevice::copy_to_host(void* to, const void* from, std::uint64_t bytes, void* stream) {
  copy_to_device(to, from, bytes, stream);
}
void FakeDevice::copy_on_device(void* to, const void* from, std::uint64_t bytes, void* stream) {
  copy_to_device(to, from, bytes, stream);
}

}  // namespace sparsecast::test
