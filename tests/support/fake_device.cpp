// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_device.hpp"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>

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

struct Event {
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> finished{0};
};

/// Shared with the streams: a caller may destroy an event that they have not reached.
using SharedEvent = std::shared_ptr<Event>;

SharedEvent& event_of(void* event) { return *static_cast<SharedEvent*>(event); }

thread_local int device_of_thread = 0;

}  // namespace

int FakeDevice::device_in_use() { return device_of_thread; }
void FakeDevice::use_device(int device) { device_of_thread = device; }

void FakeDevice::enqueue(void* stream, std::function<void()> task) {
  static_cast<Stream*>(stream)->push(std::move(task));
}

std::string FakeDevice::uuid(int device) { return "GPU-" + std::to_string(same_gpu_.count(device) != 0 ? 77 : device); }

void* FakeDevice::allocate(std::uint64_t bytes) {
  ++allocated_;
  return new std::byte[bytes];
}

void FakeDevice::free(void* pointer) noexcept {
  --allocated_;
  delete[] static_cast<std::byte*>(pointer);
}

void* FakeDevice::create_stream() {
  auto* const stream = new Stream;
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
  return stream;
}

void FakeDevice::destroy_stream(void* stream) noexcept {
  {
    const std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  delete static_cast<Stream*>(stream);
}

void* FakeDevice::create_event() { return new SharedEvent(std::make_shared<Event>()); }
void FakeDevice::destroy_event(void* event) noexcept { delete static_cast<SharedEvent*>(event); }

void FakeDevice::record(void* event, void* stream) {
  const SharedEvent shared = event_of(event);
  const std::uint64_t turn = ++shared->recorded;
  bool known = false;
  {
    const std::lock_guard lock(mutex_);
    known = streams_.count(stream) != 0;
  }
  if (!known) {
    shared->finished = turn;
    return;
  }
  enqueue(stream, [shared, turn] { shared->finished = turn; });
}

void FakeDevice::wait(void* stream, void* event) {
  const SharedEvent shared = event_of(event);
  const std::uint64_t turn = shared->recorded;
  enqueue(stream, [this, shared, turn] {
    while (shared->finished < turn && !closing_) std::this_thread::sleep_for(100us);
  });
}

bool FakeDevice::finished(void* event) { return event_of(event)->finished >= event_of(event)->recorded; }

void FakeDevice::copy_to_device(void* to, const void* from, std::uint64_t bytes, void* stream) {
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
void FakeDevice::copy_to_host(void* to, const void* from, std::uint64_t bytes, void* stream) {
  copy_to_device(to, from, bytes, stream);
}
void FakeDevice::copy_on_device(void* to, const void* from, std::uint64_t bytes, void* stream) {
  copy_to_device(to, from, bytes, stream);
}

}  // namespace sparsecast::test
