// SPDX-License-Identifier: Apache-2.0
#pragma once

// Events of the emulated device, for tests that include the real CUDA headers and therefore not runtime.hpp.

struct CUevent_st;

namespace sparsecast::emulation {

class TestEvent {
 public:
  TestEvent();
  ~TestEvent();
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;
  CUevent_st* get() const { return event_; }
  int records() const;  ///< How often it was recorded.
  int waits() const;    ///< How often a stream was made to wait for it.

 private:
  CUevent_st* event_;
};

}  // namespace sparsecast::emulation
