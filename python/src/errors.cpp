// SPDX-License-Identifier: Apache-2.0
#include "bindings.hpp"

namespace sparsecast::python {
namespace {

/// Raises the class that sparsecast.errors.make(code, message, context) chooses. If even that fails (an interpreter
/// that is shutting down), raises with the message alone.
void raise(const Error& error) {
  try {
    const nb::object made = nb::module_::import_("sparsecast.errors")
                                .attr("make")(std::string(to_string(error.code())), error.message(), error.context());
    PyErr_SetObject(made.type().ptr(), made.ptr());
  } catch (nb::python_error& failure) {
    failure.discard_as_unraisable("sparsecast: raising an error");
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
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
