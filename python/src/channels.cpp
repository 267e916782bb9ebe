// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "bindings.hpp"
#include "core/process_mark.hpp"
#include "ends.hpp"
#include "sparsecast/mpi_transport.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/tcp_transport.hpp"
#if SPARSECAST_HAVE_MPI
#include <mpi.h>
#endif

namespace sparsecast::python {
namespace {

Deadline deadline_in(double seconds) { return std::chrono::steady_clock::now() + milliseconds(seconds); }

std::vector<nb::bytes> all_gather(ControlChannel& channel, const nb::bytes& own, double timeout) {
  std::vector<Bytes> gathered;
  {
    const ConstBytes bytes = bytes_of(own);
    const GilRelease release;
    gathered = channel.all_gather(bytes, deadline_in(timeout));
  }
  std::vector<nb::bytes> out;
  for (const Bytes& part : gathered) out.push_back(to_python(part));
  return out;
}

nb::bytes broadcast(ControlChannel& channel, const nb::bytes& own, double timeout) {
  Bytes result;
  {
    const ConstBytes bytes = bytes_of(own);
    const GilRelease release;
    result = channel.broadcast(bytes, deadline_in(timeout));
  }
  return to_python(result);
}

std::shared_ptr<ControlChannel> meet(const std::string& host, std::uint16_t port, int rank, int size,
                                     const std::string& secret, std::uint32_t generation, const std::string& interface,
                                     const std::string& congestion, double timeout,
                                     std::shared_ptr<MeetingCancellation> cancellation,
                                     std::optional<double> reach_timeout) {
  RendezvousOptions options;
  options.host = host;
  options.port = port;
  options.rank = rank;
  options.size = size;
  options.secret = secret;
  options.generation = generation;
  options.interface = interface;
  options.congestion = congestion;
  options.timeout = milliseconds(timeout);
  if (reach_timeout) options.reach_timeout = milliseconds(*reach_timeout);
  options.cancellation = std::move(cancellation);
  // Layouts of large models are sent as blobs.
  options.max_blob_bytes = std::uint64_t{256} << 20;
  const GilRelease release;
  return Rendezvous::meet(options);
}

/// Initialises MPI, if the program has not done so, before a channel over MPI is made. Throws Error{kIo} if that fails.
void require_mpi() {
#if SPARSECAST_HAVE_MPI
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised) return;
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    throw Error(ErrorCode::kIo, "MPI could not be initialised");
  }
  // MPI is finalised by whoever initialised it. After a failure of a channel MPI_Finalize would wait forever, so only
  // at exit.
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([process = ProcessMark()] {
    if (!process.is_here()) return;
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (!finalised) MPI_Finalize();
  }));
#endif
}

}  // namespace

GroupOpener opener_of(const std::string& channels, int device) {
  if (channels == "control") return open_control_groups();
  if (channels == "mpi") {
    require_mpi();
    return open_mpi_groups();
  }
  if (channels == "nccl") {
    NcclOptions options;
    options.device = device;
    return open_nccl_groups(options);
  }
  throw Error(ErrorCode::kUsage, fmt::format("there are no channels '{}': control, mpi, nccl", channels));
}

void bind_channels(nb::module_& m) {
  nb::class_<ControlChannel>(
      m, "ControlChannel",
      "A slow, reliable control channel between the ranks of a group. Every call except abort() is collective and "
      "ends within its timeout (seconds). Otherwise it raises DeadlineError, PeerFailedError or GroupMismatchError;"
      " the channel is then broken, and every rank learns of it. One thread at a time, except abort().")
      .def_prop_ro("rank", &ControlChannel::rank)
      .def_prop_ro("size", &ControlChannel::size)
      .def("all_gather", &all_gather, nb::arg("own"), nb::arg("timeout") = 60.0,
           "Returns the bytes of every rank, in the order of ranks, on every rank.")
      .def("broadcast", &broadcast, nb::arg("own"), nb::arg("timeout") = 60.0,
           "Returns the bytes of rank 0, on "
           "every rank.")
      .def(
          "agree",
          [](ControlChannel& self, int status, int coordinator, double timeout) {
            const GilRelease release;
            return self.agree(status, coordinator, deadline_in(timeout));
          },
          nb::arg("status"), nb::arg("coordinator") = 0, nb::arg("timeout") = 60.0,
          "Returns the largest status of all ranks, which the coordinator alone determines.")
      .def(
          "split",
          [](ControlChannel& self, int color, int key, double timeout) {
            const GilRelease release;
            return self.split(color, key, deadline_in(timeout));
          },
          nb::arg("color"), nb::arg("key"), nb::arg("timeout") = 60.0,
          "Returns a channel of the ranks of one color, ordered by key, then rank; None for a negative color.")
      .def("abort", &ControlChannel::abort, nb::arg("reason"), ReleaseGil(),
           "Tells the others that this rank gives up, and why; best effort. Thread-safe: a call in progress in "
           "another thread raises PeerFailedError with the reason, here and on every rank that waits.")
      .def("aborted", &ControlChannel::aborted, ReleaseGil(), "Why the channel is broken, or None; does not wait.");
  nb::class_<MeetingCancellation>(m, "MeetingCancellation",
                                  "Ends calls of meet() from another thread, for a caller that learns meanwhile that a "
                                  "rank will not come.")
      .def(nb::init<>())
      .def("cancel", &MeetingCancellation::cancel, nb::arg("reason"), ReleaseGil(),
           "Makes every meet() with this object raise PeerFailedError with the reason, at once or as it starts; rank 0 "
           "tells the ranks that have connected. The first reason stands. Thread-safe.");
  m.def("meet", &meet, nb::arg("host"), nb::arg("port"), nb::kw_only(), nb::arg("rank"), nb::arg("size"),
        nb::arg("secret"), nb::arg("generation") = 0, nb::arg("interface") = "", nb::arg("congestion") = "",
        nb::arg("timeout") = 60.0, nb::arg("cancellation").none() = nb::none(), nb::arg("reach_timeout") = nb::none(),
        "Meets the other ranks over TCP at the host and port of rank 0: authenticated by the shared secret (at "
        "least 16 characters, never sent) and encrypted. `generation` distinguishes groups that meet there one "
        "after another; `cancellation` lets another thread end the call; `reach_timeout`, seconds, bounds the "
        "time in which rank 0 must listen; `congestion` is the TCP congestion control of this rank's sockets, such as "
        "'bbr' ('': SPARSECAST_CONGESTION in the environment, else the system's default). Raises DeadlineError naming "
        "missing ranks, "
        "UnauthenticatedError, or GroupMismatchError.");
  m.def(
      "mpi_channel",
      [] {
        require_mpi();
        const GilRelease release;
        return make_mpi_control_channel();
      },
      "Returns a control channel over MPI_COMM_WORLD; initialises MPI if it is not initialised. Raises "
      "UnsupportedError without MPI.");

  nb::class_<Transport>(m, "Transport", "One channel: a source and the receivers that get the same tensors.")
      .def_prop_ro("rank", &Transport::rank)
      .def_prop_ro("size", &Transport::size);
  m.def(
      "tcp_transport",
      [](std::shared_ptr<ControlChannel> control) {
        return std::shared_ptr<Transport>(make_tcp_transport(std::move(control)));
      },
      nb::arg("control"), "Records travel over the control channel itself, which belongs to the transport then.");
  m.def(
      "mpi_transport",
      [] {
        require_mpi();
        const GilRelease release;
        return std::shared_ptr<Transport>(make_mpi_transport());
      },
      "Returns a transport over MPI_COMM_WORLD; initialises MPI if it is not initialised. Raises UnsupportedError "
      "without MPI.");
  m.def(
      "nccl_transport",
      [](std::shared_ptr<ControlChannel> control, int device, double timeout) {
        NcclOptions options;
        options.device = device;
        const GilRelease release;
        return std::shared_ptr<Transport>(NcclTransport::open(std::move(control), options, milliseconds(timeout)));
      },
      nb::arg("control"), nb::arg("device") = -1, nb::arg("timeout") = 60.0,
      "Returns a transport over NCCL; collective over the control channel. Uses the NCCL library that torch has "
      "loaded, if it has.");
}

}  // namespace sparsecast::python
