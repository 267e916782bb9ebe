// SPDX-License-Identifier: Apache-2.0
#pragma once

// The interpreter lock, for the whole module: never by nanobind's own guards, which end the process when the
// interpreter ends first.

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace sparsecast::python {

/// Calls `take`, which waits for the interpreter lock, and returns its result. Once the interpreter ends, Python up
/// to 3.13 ends every other thread that wants its lock, by pthread_exit(), which unwinds the stack; destructors and
/// functions on it that are noexcept would make that an abort of the process. Here such a thread sleeps until the
/// process is gone, as Python itself has it since 3.14.
template <class Take>
auto wait_for_gil(const Take& take) {
  try {
    return take();
  } catch (...) {
    for (;;) ::pause();
  }
}

/// Releases the interpreter lock, which this thread holds, as long as the object lives.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    wait_for_gil([this] { PyEval_RestoreThread(state_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

/// Holds the interpreter lock as long as the object lives; for callbacks of the library, in any thread.
class GilAcquire {
 public:
  GilAcquire() : state_(wait_for_gil([] { return PyGILState_Ensure(); })) {}
  ~GilAcquire() { PyGILState_Release(state_); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace sparsecast::python
