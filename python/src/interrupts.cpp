// SPDX-License-Identifier: Apache-2.0

// Signals during calls that wait. Python notes a signal, and its handler (which raises KeyboardInterrupt) runs when the
// main thread is back in Python, so never during a call. The waits of the library ask here, in every thread.

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "bindings.hpp"
#include "core/interrupt.hpp"

namespace sparsecast::python {
namespace {

using std::chrono::steady_clock;

/// Shortest time between two looks for signals, in which the interpreter lock is left to other threads.
constexpr std::chrono::milliseconds kBetweenLooks{50};

std::atomic<unsigned long> main_thread{0};
/// Exception that a signal handler has raised, an owned reference, kept until a call or the interpreter raises it. Used
/// by the main thread alone.
PyObject* raised = nullptr;

/// Runs the handlers of signals that have come. Returns the exception that one of them raises, or an object that is not
/// valid if none does.
nb::object run_handlers() {
  if (PyErr_Occurred() || PyErr_CheckSignals() == 0) return {};
  return nb::borrow(nb::python_error().value());
}

/// Called by the interpreter between instructions: raises the exception of a handler if the interrupted call has not
/// raised it, because it may have succeeded nevertheless. Returns -1 if it raises, else 0.
int raise_later(void*) {
  const nb::object late = take_interrupt();
  if (!late.is_valid()) return 0;
  PyErr_SetObject(late.type().ptr(), late.ptr());
  return -1;
}

/// On the main thread, runs the handlers of signals that have come. Returns true from the moment when one raises until
/// its exception is taken; always false in other threads.
bool main_thread_interrupted() noexcept {
  if (PyThread_get_thread_ident() != main_thread) return false;
  if (raised != nullptr) return true;
  static steady_clock::time_point last;  // Used by the main thread alone.
  const steady_clock::time_point now = steady_clock::now();
  if (now - last < kBetweenLooks || !Py_IsInitialized()) return false;
  last = now;
  const GilAcquire acquire;
  raised = run_handlers().release().ptr();
  if (raised != nullptr) Py_AddPendingCall(&raise_later, nullptr);
  return raised != nullptr;
}

}  // namespace

nb::object take_interrupt() {
  if (PyThread_get_thread_ident() != main_thread) return {};
  return raised != nullptr ? nb::steal(std::exchange(raised, nullptr)) : run_handlers();
}

void keep_interrupt(const nb::object& exception) {
  if (PyThread_get_thread_ident() != main_thread || raised != nullptr) {
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
    nb::python_error().discard_as_unraisable("sparsecast: a store");
    return;
  }
  raised = nb::object(exception).release().ptr();
  Py_AddPendingCall(&raise_later, nullptr);
}

void bind_interrupts(nb::module_&) {
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  // In a child the thread that forked is the main one.
  pthread_atfork(nullptr, nullptr, [] { main_thread = PyThread_get_thread_ident(); });
  ask_during_waits(&main_thread_interrupted);
}

}  // namespace sparsecast::python
