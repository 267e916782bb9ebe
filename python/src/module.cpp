// SPDX-License-Identifier: Apache-2.0

// The module sparsecast._core: the C++ library for Python. `sparsecast` re-exports everything that users need.

#include "bindings.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/mpi_transport.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "sparsecast/version.hpp"

namespace sparsecast::python {

NB_MODULE(_core, m) {
#ifdef NDEBUG
  // A program that ends with a traceback, or with running threads, leaves objects behind; that is no leak of ours.
  nb::set_leak_warnings(false);
#endif
  m.doc() = "The C++ library behind the package sparsecast.";
  m.attr("version") = std::string(version_string());
  m.attr("has_mpi") = mpi_available();
  m.attr("has_nccl") = nccl_available();
  m.attr("has_cuda") = device_backend_available();
  m.attr("has_rendezvous") = rendezvous_available();
  bind_interrupts(m);
  bind_errors(m);
  bind_memory(m);
  bind_memory_shortage(m);
  bind_tables(m);
  bind_layouts(m);
  bind_channels(m);
  bind_sync(m);
  bind_sharded(m);
  bind_logs(m);
  bind_quantize(m);
}

}  // namespace sparsecast::python
