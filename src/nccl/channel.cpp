// State of a channel:
//
//     form: presence -> plan -> communicator -> registration --every rank ready--> open
//     open --any Error in a collective--> broken: tell the control channel, stop the communicator (revoke or abort)
//     open or broken --reform--> used up
//
// Who fails tells the others through the control channel at once; they notice it in the watchdog of whatever they wait
// for, and stop their communicator likewise. So one rank's failure is every rank's within milliseconds, and never a
// hang. What an interrupted broadcast has written is undefined, but it lies in staging memory: nothing of it is handed
// out.

#ifdef SPARSECAST_HAVE_NCCL

#include "nccl/channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace sparsecast {
namespace {

constexpr std::uint64_t kSmallestStaging = 4096;

template <class Value>
std::span<const std::byte> bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class Value>
Value value_of(const Bytes& bytes, std::size_t rank) {
  Value value;
  if (bytes.size() != sizeof(Value)) {
    throw Error(ErrorCode::kGroupMismatch, fmt::format("rank {} sent {} bytes where {} belong: another version of "
                                                       "sparsecast?",
                                                       rank, bytes.size(), sizeof(Value)));
  }
  std::memcpy(&value, bytes.data(), sizeof(Value));
  return value;
}

ncclConfig_t nonblocking_config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

/// Walks over records, copying to or from staging, a piece at a time. A receiver's record takes memory when its first
/// byte is there.
class RecordCursor {
 public:
  RecordCursor(std::vector<Bytes>& records, std::span<const std::uint64_t> sizes, bool source)
      : records_(records), sizes_(sizes), source_(source) {}

  void copy(std::byte* h_staging, std::uint64_t bytes) {
    while (bytes > 0) {
      if (offset_ == sizes_[record_]) {
        ++record_;
        offset_ = 0;
        continue;
      }
      Bytes& record = records_[record_];
      if (!source_ && offset_ == 0) record.resize(static_cast<std::size_t>(sizes_[record_]));
      const std::uint64_t part = std::min(bytes, sizes_[record_] - offset_);
      std::byte* const place = record.data() + offset_;
      std::memcpy(source_ ? h_staging : place, source_ ? place : h_staging, static_cast<std::size_t>(part));
      h_staging += part;
      offset_ += part;
      bytes -= part;
    }
  }

 private:
  std::vector<Bytes>& records_;
  std::span<const std::uint64_t> sizes_;
  bool source_;
  std::size_t record_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace

NcclTransport::Channel::Channel(const NcclRuntime& runtime, std::shared_ptr<ControlChannel> control,
                                const NcclOptions& options)
    : runtime_(runtime), control_(std::move(control)), options_(options), watchdog_(*runtime.functions, control_) {
  report_.library = runtime.info;
}

NcclTransport::Channel::~Channel() {
  if (communicator_ == nullptr) return;
  const NcclFunctions& nccl = *runtime_.functions;
  for (void* const handle : registrations_) nccl.comm_deregister(communicator_, handle);
  const bool gone = broken_ ? abort_communicator(nccl, communicator_) : destroy_communicator(nccl, communicator_);
  if (!gone && staging_) staging_->leave_behind();
}

std::string NcclTransport::Channel::context(const char* phase) const {
  return fmt::format("nccl channel, rank {} of {}: {}", rank(), size(), phase);
}

void NcclTransport::Channel::fail(const Error& error) noexcept {
  if (broken_) return;
  try {
    broken_ = error.message();
  } catch (...) {
    broken_.emplace();
  }
  control_->abort(error.what());
  if (communicator_ == nullptr) return;
  bool stopped = open_ && revoke_communicator(*runtime_.functions, communicator_);
  if (!stopped) {
    stopped = abort_communicator(*runtime_.functions, communicator_);
    communicator_ = nullptr;
    registrations_.clear();
  }
  // The caller gets its buckets back with the error: nothing may still read them.
  if (staging_ && !(stopped && staging_->becomes_idle())) staging_->leave_behind();
}

template <class Body>
auto NcclTransport::Channel::guard(const char* phase, const Body& body) {
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

// --- forming ---

Presence NcclTransport::Channel::presence(const Channel* old) const {
  const NcclFunctions& nccl = *runtime_.functions;
  Presence own;
  own.nccl_version = nccl.version;
  own.staging_bytes = options_.staging_bytes;
  own.can_register = options_.register_memory && staging_->nccl_memory() ? 1 : 0;
  own.can_init_scalable = nccl.comm_init_rank_scalable != nullptr ? 1 : 0;
  own.can_grow = nccl.has_grow() ? 1 : 0;
  own.nonce = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  if (old != nullptr) {
    own.old_channel = old->channel_;
    own.old_rank = old->rank();
    own.old_size = old->size();
    own.can_shrink = nccl.comm_shrink != nullptr && old->communicator_ != nullptr ? 1 : 0;
    if (old->broken_) own.can_grow = 0;
  }
  set_text(own.device, staging_->api().uuid(staging_->device()));
  const char* const host_id = std::getenv("NCCL_HOSTID");
  set_text(own.host_id, host_id == nullptr ? "" : host_id);
  set_text(own.settings, nccl_settings());
  return own;
}

std::unique_ptr<NcclTransport::Channel> NcclTransport::Channel::form(const NcclRuntime& runtime,
                                                                     std::shared_ptr<ControlChannel> control,
                                                                     const NcclOptions& options, Channel* old,
                                                                     Deadline deadline) {
  if (options.staging_bytes < kSmallestStaging) {
    throw Error(ErrorCode::kUsage, fmt::format("staging buffers of {} bytes; at least {} are needed",
                                               options.staging_bytes, kSmallestStaging));
  }
  std::unique_ptr<Channel> channel(new Channel(runtime, std::move(control), options));
  try {
    channel->staging_ = old != nullptr ? old->staging_
                                       : std::make_shared<Staging>(*runtime.device, *runtime.functions, options.device,
                                                                   options.staging_bytes, options.register_memory);
    channel->staging_->enter();
    channel->report_.device = channel->staging_->device();
    const std::vector<Bytes> all = channel->control_->all_gather(bytes_of(channel->presence(old)), deadline);
    std::vector<Presence> presences;
    for (std::size_t r = 0; r < all.size(); ++r) presences.push_back(value_of<Presence>(all[r], r));
    check_presences(presences);
    const FormationPlan plan = plan_formation(presences);
    channel->channel_ = plan.channel;
    channel->create(plan, old, deadline);
    channel->register_staging(plan.registered, deadline);
    channel->report_.formed_by = to_string(plan.formation);
    channel->open_ = true;
  } catch (const Error& error) {
    channel->fail(error);
    throw error.within(channel->context("forming"));
  }
  return channel;
}

void NcclTransport::Channel::create(const FormationPlan& plan, Channel* old, Deadline deadline) {
  const NcclFunctions& nccl = *runtime_.functions;
  ncclConfig_t config = nonblocking_config();
  const auto check = [&](ncclResult_t result, ncclComm_t communicator, const char* call) {
    check_nccl(nccl, result, communicator, call);
  };
  if (plan.formation == Formation::kShrink) {
    std::vector<int> lost = plan.lost;
    // From the old communicator until the new one is there; then that lives by itself.
    check(nccl.comm_shrink(old->communicator_, lost.data(), static_cast<int>(lost.size()), &communicator_, &config,
                           old->broken_ ? kShrinkAbort : 0),
          old->communicator_, "ncclCommShrink");
    watchdog_.settle(old->communicator_, deadline, "ncclCommShrink");
    watchdog_.settle(communicator_, deadline, "ncclCommShrink");
    return;
  }
  const bool grows = plan.formation == Formation::kGrow;
  ncclUniqueId own{};
  const bool is_root = std::find(plan.roots.begin(), plan.roots.end(), rank()) != plan.roots.end();
  if (is_root) {
    check(grows ? nccl.comm_get_unique_id(old->communicator_, &own) : nccl.get_unique_id(&own), nullptr,
          "ncclGetUniqueId");
  }
  const std::vector<Bytes> all = control_->all_gather(is_root ? bytes_of(own) : std::span<const std::byte>{}, deadline);
  std::vector<ncclUniqueId> ids;
  for (const int root : plan.roots) {
    ids.push_back(value_of<ncclUniqueId>(all[static_cast<std::size_t>(root)], static_cast<std::size_t>(root)));
  }
  if (grows) {
    const bool joins = old == nullptr;
    check(nccl.comm_grow(joins ? nullptr : old->communicator_, size(), joins || is_root ? ids.data() : nullptr,
                         joins ? rank() : -1, &communicator_, &config),
          joins ? nullptr : old->communicator_, "ncclCommGrow");
    if (!joins) watchdog_.settle(old->communicator_, deadline, "ncclCommGrow");
    watchdog_.settle(communicator_, deadline, "ncclCommGrow");
    return;
  }
  if (plan.formation == Formation::kInitScalable) {
    check(
        nccl.comm_init_rank_scalable(&communicator_, size(), rank(), static_cast<int>(ids.size()), ids.data(), &config),
        nullptr, "ncclCommInitRankScalable");
  } else {
    check(nccl.comm_init_rank_config(&communicator_, size(), ids[0], rank(), &config), nullptr,
          "ncclCommInitRankConfig");
  }
  watchdog_.settle(communicator_, deadline, "forming the communicator");
}

/// All ranks or none: NCCL must not see both kinds of memory in one collective. Also the proof that all are ready.
void NcclTransport::Channel::register_staging(bool wanted, Deadline deadline) {
  const NcclFunctions& nccl = *runtime_.functions;
  bool mine = wanted;
  for (std::uint64_t piece = 0; piece < 2 && mine; ++piece) {
    void* handle = nullptr;
    mine = nccl.comm_register(communicator_, staging_->half(piece).d_data, staging_->bytes(), &handle) == ncclSuccess;
    if (mine) registrations_.push_back(handle);
  }
  report_.registered = control_->agree(mine ? 0 : 1, 0, deadline) == 0;
  if (report_.registered) return;
  for (void* const handle : registrations_) nccl.comm_deregister(communicator_, handle);
  registrations_.clear();
}

std::unique_ptr<NcclTransport::Channel> NcclTransport::Channel::split(int color, int key, Deadline deadline) {
  return guard("split", [&]() -> std::unique_ptr<Channel> {
    const NcclFunctions& nccl = *runtime_.functions;
    ++sequence_;  // On every rank, in a part or not.
    const std::shared_ptr<ControlChannel> control = control_->split(color, key, deadline);
    ncclConfig_t config = nonblocking_config();
    ncclComm_t part = nullptr;
    constexpr int kNoColor = -1;
    check_nccl(nccl, nccl.comm_split(communicator_, color < 0 ? kNoColor : color, key, &part, &config), communicator_,
               "ncclCommSplit");
    watchdog_.settle(communicator_, deadline, "ncclCommSplit");
    if (!control) return nullptr;
    std::unique_ptr<Channel> channel(new Channel(runtime_, control, options_));
    channel->staging_ = staging_;
    channel->communicator_ = part;
    channel->report_ = report_;
    channel->report_.formed_by = "split";
    channel->channel_ = channel_ ^ (0x9E3779B97F4A7C15U * static_cast<std::uint64_t>(color + 1)) ^ sequence_;
    try {
      channel->watchdog_.settle(part, deadline, "ncclCommSplit");
      channel->register_staging(report_.registered, deadline);
      channel->open_ = true;
    } catch (const Error& error) {
      channel->fail(error);
      throw;
    }
    return channel;
  });
}

std::unique_ptr<NcclTransport::Channel> NcclTransport::Channel::reform(std::shared_ptr<ControlChannel> members,
                                                                       Deadline deadline) {
  staging_->enter();
  auto channel = form(runtime_, std::move(members), options_, this, deadline);
  // Used up: a later call says so, and the destructor stops what is left of it.
  if (!broken_) broken_ = "it was formed anew";
  return channel;
}

// --- moving bytes ---

void NcclTransport::Channel::issue(void* d_data, std::uint64_t bytes, int source, Deadline deadline) {
  const NcclFunctions& nccl = *runtime_.functions;
  check_nccl(nccl,
             nccl.broadcast(d_data, d_data, static_cast<std::size_t>(bytes), ncclInt8, source, communicator_,
                            static_cast<cudaStream_t>(staging_->stream)),
             communicator_, "ncclBroadcast");
  watchdog_.settle(communicator_, deadline, "ncclBroadcast");
}

void NcclTransport::Channel::wait_event(void* event, Deadline deadline, const std::string& what) {
  watchdog_.wait([&] { return staging_->api().finished(event); }, communicator_, deadline, what);
}

TableLimits NcclTransport::Channel::limits(TableKind kind) const {
  const bool buckets = kind == TableKind::kDeviceBuckets;
  return {options_.max_records, options_.max_bytes, buckets ? options_.staging_bytes : options_.max_bytes};
}

void NcclTransport::Channel::exchange_table(const CountTable& table, TableKind kind, int source, Deadline deadline) {
  Staging& staging = *staging_;
  DeviceApi& device = staging.api();
  const bool sends = rank() == source;
  if (sends) {
    std::memcpy(staging.h_table, &table, sizeof(table));
    device.copy_to_device(staging.d_table, staging.h_table, sizeof(table), staging.stream);
  }
  issue(staging.d_table, sizeof(table), source, deadline);
  if (!sends) device.copy_to_host(staging.h_table, staging.d_table, sizeof(table), staging.stream);
  device.record(staging.table_arrived, staging.stream);
  // The source goes on: its pieces follow on the same stream.
  if (sends) return;
  wait_event(staging.table_arrived, deadline, fmt::format("the count table of rank {}", source));
  check_table(*staging.h_table, kind, sequence_, limits(kind));
}

std::vector<std::uint64_t> NcclTransport::Channel::exchange_sizes(std::vector<std::uint64_t> sizes, TableKind kind,
                                                                  int source, Deadline deadline) {
  const bool sends = rank() == source;
  ++sequence_;
  const CountTable own = sends ? make_table(kind, sequence_, sizes) : CountTable{};
  exchange_table(own, kind, source, deadline);
  const CountTable table = sends ? own : *staging_->h_table;
  if (table.refusal != 0) return {};
  if (!sends) sizes = sizes_of(table);
  if (sizes.size() > kTableSizes) {
    std::byte* place = std::as_writable_bytes(std::span(sizes).subspan(kTableSizes)).data();
    pipe((sizes.size() - kTableSizes) * sizeof(std::uint64_t), source,
         [&](std::byte* h_staging, std::uint64_t bytes) {
           std::memcpy(sends ? h_staging : place, sends ? place : h_staging, static_cast<std::size_t>(bytes));
           place += bytes;
         },
         deadline);
  }
  check_sizes(table, sizes, limits(kind));
  return sizes;
}

void NcclTransport::Channel::pipe(std::uint64_t total, int source, const CopyPiece& copy, Deadline deadline) {
  Staging& staging = *staging_;
  DeviceApi& device = staging.api();
  const bool sends = rank() == source;
  const std::uint64_t pieces = (total + staging.bytes() - 1) / staging.bytes();
  const auto length = [&](std::uint64_t piece) { return std::min(staging.bytes(), total - piece * staging.bytes()); };
  const auto arrive = [&](std::uint64_t piece) {
    wait_event(staging.half(piece).arrived, deadline,
               sends ? fmt::format("piece {} of {}", piece + 1, pieces)
                     : fmt::format("piece {} of {} from rank {}", piece + 1, pieces, source));
    if (!sends) copy(staging.half(piece).h_data, length(piece));
  };
  for (std::uint64_t piece = 0; piece < pieces; ++piece) {
    StagingHalf& half = staging.half(piece);
    if (sends) {
      if (piece >= 2) arrive(piece - 2);
      copy(half.h_data, length(piece));
      device.copy_to_device(half.d_data, half.h_data, length(piece), staging.stream);
    }
    issue(half.d_data, length(piece), source, deadline);
    if (!sends) device.copy_to_host(half.h_data, half.d_data, length(piece), staging.stream);
    device.record(half.arrived, staging.stream);
    if (!sends && piece >= 1) arrive(piece - 1);  // While this one is on its way.
  }
  if (sends && pieces >= 2) arrive(pieces - 2);
  if (pieces >= 1) arrive(pieces - 1);
}

void NcclTransport::Channel::check_source(int source, const char* phase) const {
  if (source < 0 || source >= size()) {
    throw Error(ErrorCode::kUsage, fmt::format("source {} of {} ranks", source, size()), context(phase));
  }
}

void NcclTransport::Channel::broadcast(std::vector<Bytes>& records, int source, Deadline deadline) {
  check_source(source, "broadcast");
  guard("broadcast", [&] {
    const bool sends = rank() == source;
    coordinator_ = source;
    if (size() == 1) return;
    std::vector<std::uint64_t> sizes;
    if (sends) {
      for (const Bytes& record : records) sizes.push_back(record.size());
    }
    sizes = exchange_sizes(std::move(sizes), TableKind::kHostRecords, source, deadline);
    std::uint64_t total = 0;
    for (const std::uint64_t size : sizes) total += size;
    std::vector<Bytes> arriving(sends ? 0 : sizes.size());
    RecordCursor cursor(sends ? records : arriving, sizes, sends);
    pipe(
        total, source, [&](std::byte* h_staging, std::uint64_t bytes) { cursor.copy(h_staging, bytes); }, deadline);
    if (sends) {
      wait_event(staging_->table_arrived, deadline, "the count table");
    } else {
      records.swap(arriving);
    }
  });
}

std::vector<std::uint64_t> NcclTransport::Channel::broadcast_device(std::span<const DeviceBucket> buckets, int source,
                                                                    const DeviceConsumer& consume, Deadline deadline,
                                                                    void* ready_stream) {
  check_source(source, "broadcast_device");
  const bool sends = rank() == source;
  std::optional<Error> refusal;
  std::vector<std::uint64_t> sizes;
  if (sends) {
    for (const DeviceBucket& bucket : buckets) sizes.push_back(bucket.bytes);
    const auto largest = std::max_element(sizes.begin(), sizes.end());
    if (largest != sizes.end() && *largest > options_.staging_bytes) {
      refusal =
          Error(ErrorCode::kUsage,
                fmt::format("a bucket of {} bytes; the staging buffers hold {}", *largest, options_.staging_bytes),
                context("broadcast_device"));
    }
  }
  guard("broadcast_device", [&] {
    Staging& staging = *staging_;
    DeviceApi& device = staging.api();
    coordinator_ = source;
    if (refusal) {
      // The others wait for a table: they get one that says so, and the channel stays open.
      if (size() == 1) return;
      const auto code = static_cast<std::uint32_t>(refusal->code());
      exchange_table(make_refusal(TableKind::kDeviceBuckets, ++sequence_, code), TableKind::kDeviceBuckets, source,
                     deadline);
      wait_event(staging.table_arrived, deadline, "the count table");
      return;
    }
    if (size() == 1) return;
    sizes = exchange_sizes(std::move(sizes), TableKind::kDeviceBuckets, source, deadline);
    if (!sends && staging.h_table->refusal != 0) {
      refusal = Error(ErrorCode::kPeerFailed,
                      fmt::format("the source had nothing to send: {}",
                                  to_string(static_cast<ErrorCode>(staging.h_table->refusal))),
                      context("broadcast_device"));
      return;
    }
    if (sends && ready_stream != nullptr) {
      device.record(staging.ready, ready_stream);
      device.wait(staging.stream, staging.ready);
    }
    std::uint64_t used = 0;  // Empty buckets need no broadcast.
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 0) {
        if (!sends) consume(i, nullptr, 0, staging.consume_stream);
        continue;
      }
      StagingHalf& half = staging.half(used);
      if (sends) {
        device.copy_on_device(half.d_data, buckets[i].d_data, sizes[i], staging.stream);
      } else if (used >= 2) {
        device.wait(staging.stream, half.consumed);
      }
      issue(half.d_data, sizes[i], source, deadline);
      device.record(half.arrived, staging.stream);
      if (!sends) {
        device.wait(staging.consume_stream, half.arrived);
        consume(i, half.d_data, sizes[i], staging.consume_stream);
        device.record(half.consumed, staging.consume_stream);
      }
      ++used;
    }
    for (std::uint64_t half = 0; half < std::min<std::uint64_t>(used, 2); ++half) {
      wait_event(staging.half(half).arrived, deadline,
                 sends ? "the buckets" : fmt::format("the buckets of rank {}", source));
      if (!sends) wait_event(staging.half(half).consumed, deadline, "the consumer of the buckets");
    }
    if (sends) wait_event(staging.table_arrived, deadline, "the count table");
  });
  if (refusal) throw Error(*refusal);
  return sizes;
}

int NcclTransport::Channel::agree(int status, Deadline deadline) {
  return guard("agree", [&] { return control_->agree(status, coordinator_, deadline); });
}

void NcclTransport::Channel::abort(const std::string& reason) noexcept {
  try {
    fail(Error(ErrorCode::kPeerFailed, reason));
  } catch (...) {
  }
}

}  // namespace sparsecast

#endif
