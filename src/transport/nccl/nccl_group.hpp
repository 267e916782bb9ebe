// SPDX-License-Identifier: Apache-2.0
#pragma once

// The group behind NcclTransport, over a table of NCCL functions and a device API, which tests replace by fakes.

#include <fmt/format.h>

#include <functional>
#include <optional>

#include "transport/nccl/formation.hpp"
#include "transport/nccl/nccl_library.hpp"
#include "transport/nccl/staging.hpp"
#include "transport/nccl/watchdog.hpp"

namespace sparsecast {

/// NCCL library and device API that a group uses. Both live as long as the process.
struct NcclRuntime {
  const NcclFunctions* functions = nullptr;
  DeviceApi* device = nullptr;
  NcclLibraryInfo info;
};

class NcclTransport::Group {
 public:
  /// Forms a new group over `control`. `old`, if given, is used up: its communicator is shrunk, grown or stopped.
  static std::unique_ptr<Group> form(const NcclRuntime& runtime, std::shared_ptr<ControlChannel> control,
                                     const NcclOptions& options, Group* old, Deadline deadline);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept { return control_->rank(); }
  int size() const noexcept { return control_->size(); }
  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline);
  std::vector<std::uint64_t> broadcast_device(std::span<const DeviceBucket> buckets, int source,
                                              const DeviceConsumer& consume, Deadline deadline,
                                              void* ready_stream = nullptr);
  int agree(int status, Deadline deadline);
  std::unique_ptr<Group> split(int color, int key, Deadline deadline);
  std::unique_ptr<Group> reform(std::shared_ptr<ControlChannel> members, Deadline deadline);
  void abort(const std::string& reason) noexcept;
  const NcclChannelReport& report() const noexcept { return report_; }
  /// Returns the size in bytes of the largest bucket of broadcast_device.
  std::uint64_t bucket_bytes() const noexcept { return options_.staging_bytes; }
  /// Copies between device buffers for consumers, on the stream that they are given.
  void copy_on_device(void* d_to, const void* d_from, std::uint64_t bytes, void* stream) {
    staging_->api().copy_on_device(d_to, d_from, bytes, stream);
  }

 private:
  /// Copies between staging and host records, from where it last stopped.
  using CopyPiece = std::function<void(std::byte* h_staging, std::uint64_t bytes)>;

  Group(const NcclRuntime& runtime, std::shared_ptr<ControlChannel> control, const NcclOptions& options);

  template <class Body>
  auto guard(const char* phase, const Body& body);
  void fail(const Error& error) noexcept;
  std::string context(const char* phase) const;
  void check_source(int source, const char* phase) const;

  NcclRankInfo rank_info(const Group* old) const;
  void create(const FormationPlan& plan, Group* old, Deadline deadline);
  void register_staging(bool wanted, Deadline deadline);

  void issue(void* d_data, std::uint64_t bytes, int source, Deadline deadline);
  void wait_event(void* event, Deadline deadline, const std::string& what);
  /// Broadcasts the count table; receivers check it.
  void exchange_table(const CountTable& table, TableKind kind, int source, Deadline deadline);
  /// Returns the sizes of all records, on every rank. When the source could not send, returns an empty list and leaves
  /// the error in the count table.
  std::vector<std::uint64_t> exchange_sizes(std::vector<std::uint64_t> sizes, TableKind kind, int source,
                                            Deadline deadline);
  void pipe(std::uint64_t total, int source, const CopyPiece& copy, Deadline deadline);
  TableLimits limits(TableKind kind) const;

  NcclRuntime runtime_;
  std::shared_ptr<ControlChannel> control_;
  NcclOptions options_;
  std::shared_ptr<Staging> staging_;
  Watchdog watchdog_;
  ncclComm_t communicator_ = nullptr;
  std::vector<void*> registrations_;
  NcclChannelReport report_;
  std::uint64_t channel_ = 0;
  std::uint64_t sequence_ = 0;
  int coordinator_ = 0;
  bool open_ = false;  ///< Formed: there is something that a shrink could start from.
  std::optional<std::string> broken_;
};

/// Runs `body`; an exception from it breaks the group.
template <class Body>
auto NcclTransport::Group::guard(const char* phase, const Body& body) {
  if (broken_) {
    throw Error(ErrorCode::kPeerFailed, fmt::format("the channel is broken since an earlier failure ({})", *broken_),
                context(phase));
  }
  staging_->enter();
  try {
    return body();
  } catch (const Error& error) {
    fail(error);
    throw error.within(context(phase));
  } catch (const std::exception& error) {
    fail(Error(ErrorCode::kPeerFailed, error.what()));
    throw;
  }
}

}  // namespace sparsecast
