// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/error.hpp"
#include "sparsecast_perf/group.hpp"
#include "sparsecast_perf/wire.hpp"

#ifdef SPARSECAST_HAVE_MPI

#include <mpi.h>

#include <algorithm>
#include <cstring>

#include "sparsecast/mpi_transport.hpp"

namespace sparsecast::perf {
namespace {

/// Broadcast of any length in pieces that fit MPI's int counts.
void broadcast_bytes(std::span<std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::size_t size = std::min(kPiece, bytes.size() - at);
    MPI_Bcast(bytes.data() + at, static_cast<int>(size), MPI_BYTE, kPublisher, MPI_COMM_WORLD);
  }
}

class MpiGroup final : public Group {
 public:
  explicit MpiGroup(const Options& options) : timeout_(static_cast<std::int64_t>(options.timeout_seconds * 1000)) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm machine = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &local_rank_);
    MPI_Comm_size(machine, &local_size_);
    MPI_Comm_free(&machine);
  }
  ~MpiGroup() override { MPI_Finalize(); }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  int local_rank() const noexcept override { return local_rank_; }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  std::vector<std::uint64_t> all_gather(std::uint64_t own) override {
    std::vector<std::uint64_t> values(static_cast<std::size_t>(size_));
    MPI_Allgather(&own, 1, MPI_UINT64_T, values.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD);
    return values;
  }

  Bytes broadcast(Bytes own) override {
    std::uint64_t size = own.size();
    MPI_Bcast(&size, 1, MPI_UINT64_T, kPublisher, MPI_COMM_WORLD);
    own.resize(size);
    broadcast_bytes(own);
    return own;
  }

  /// Over TCP where that is built: unlike MPI, it says when a rank is gone. MPI brings the id to meet on.
  std::shared_ptr<ControlChannel> open_control() override {
    if (!rendezvous_available()) return make_mpi_control_channel();
    UniqueId id;
    if (rank_ == kPublisher) {
      UniqueIdOptions place;
      if (local_size_ == size_) place.interface = "127.0.0.1";
      id = make_unique_id(place);
    }
    MPI_Bcast(id.bytes.data(), static_cast<int>(id.bytes.size()), MPI_BYTE, kPublisher, MPI_COMM_WORLD);
    return Rendezvous::meet(id, rank_, size_, timeout_);
  }

  void fail(const std::string&) noexcept override { MPI_Abort(MPI_COMM_WORLD, 3); }

 private:
  std::chrono::milliseconds timeout_;
  int rank_ = 0;
  int size_ = 0;
  int local_rank_ = 0;
  int local_size_ = 0;
};

class MpiWire final : public Wire {
 public:
  Transport& transport() noexcept override { return *transport_; }
  void broadcast(std::vector<Bytes>& records, Deadline) override {
    for (Bytes& record : records) broadcast_bytes(record);
  }
  std::vector<std::string> libraries() const override { return {mpi_library()}; }
  const char* dense_call() const noexcept override { return "MPI_Bcast"; }

 private:
  std::unique_ptr<Transport> transport_ = make_mpi_transport();
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(const Options& options) { return std::make_unique<MpiGroup>(options); }

std::unique_ptr<Wire> make_mpi_wire() { return std::make_unique<MpiWire>(); }

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace sparsecast::perf

#else

namespace sparsecast::perf {

std::unique_ptr<Group> make_mpi_group(const Options&) { throw Error(ErrorCode::kUnsupported, "this build has no MPI"); }

std::unique_ptr<Wire> make_mpi_wire() { throw Error(ErrorCode::kUnsupported, "this build has no MPI"); }

std::string mpi_library() { return {}; }

}  // namespace sparsecast::perf

#endif
