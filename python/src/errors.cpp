// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

namespace sparsecast::python {
namespace {

/// Raises, in Python, the exception that sparsecast.errors.make(code, message, context) returns. If even that fails (an
/// interpreter that is shutting down), raises with the message alone. What a signal handler has raised meanwhile
/// (KeyboardInterrupt) goes first, with the error as its context: a program that tries again after errors must not try
/// again after it.
void raise(const Error& error) {
  nb::object thrown = take_interrupt();
  try {
    const nb::object made = nb::module_::import_("sparsecast.errors")
                                .attr("make")(std::string(to_string(error.code())), error.message(), error.context());
    if (thrown.is_valid()) {
      PyException_SetContext(thrown.ptr(), made.inc_ref().ptr());
    } else {
      thrown = made;
    }
  } catch (nb::python_error& failure) {
    if (!thrown.is_valid() && !failure.matches(PyExc_Exception)) thrown = nb::borrow(failure.value());
    if (!thrown.is_valid()) {
      failure.discard_as_unraisable("sparsecast: raising an error");
      return PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  }
  PyErr_SetObject(thrown.type().ptr(), thrown.ptr());
}

}  // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace sparsecast::python
