// SPDX-License-Identifier: Apache-2.0

// Memory that torch's allocator keeps, for a device that has too little.

#include "core/memory_shortage.hpp"

#include "bindings.hpp"

namespace sparsecast::python {
namespace {

/// Makes torch, if the process has imported it, give device memory back that its allocator keeps and does not use.
void empty_torch_cache() noexcept {
  if (!Py_IsInitialized()) return;
  const GilAcquire acquire;
  try {
    const nb::object torch = nb::module_::import_("sys").attr("modules").attr("get")("torch");
    if (!torch.is_none()) torch.attr("cuda").attr("empty_cache")();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("sparsecast: torch.cuda.empty_cache()");
  }
}

}  // namespace

void bind_memory_shortage(nb::module_& m) {
  release_memory_by(&empty_torch_cache);
  m.def("_release_cached_memory", &release_cached_memory, ReleaseGil(),
        "Does what the library does before it tries once more to take device memory, of which there was too little.");
}

}  // namespace sparsecast::python
