// rank info -> plan -> communicator -> registration. Every rank sees what all ranks said before it creates anything.

#ifdef SPARSECAST_HAVE_NCCL

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "transport/control/blobs.hpp"
#include "transport/nccl/nccl_group.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kSmallestStaging = 4096;

}  // namespace

NcclRankInfo NcclTransport::Group::rank_info(const Group* old) const {
  const NcclFunctions& nccl = *runtime_.functions;
  NcclRankInfo own;
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

std::unique_ptr<NcclTransport::Group> NcclTransport::Group::form(const NcclRuntime& runtime,
                                                                     std::shared_ptr<ControlChannel> control,
                                                                     const NcclOptions& options, Group* old,
                                                                     Deadline deadline) {
  if (options.staging_bytes < kSmallestStaging) {
    throw Error(ErrorCode::kUsage, fmt::format("staging buffers of {} bytes; at least {} are needed",
                                               options.staging_bytes, kSmallestStaging));
  }
  std::unique_ptr<Group> channel(new Group(runtime, std::move(control), options));
  try {
    channel->staging_ = old != nullptr ? old->staging_
                                       : std::make_shared<Staging>(*runtime.device, *runtime.functions, options.device,
                                                                   options.staging_bytes, options.register_memory);
    channel->staging_->enter();
    channel->report_.device = channel->staging_->device();
    const std::vector<Bytes> all = channel->control_->all_gather(bytes_of(channel->rank_info(old)), deadline);
    const std::vector<NcclRankInfo> rank_infos = parse_rank_infos(all);
    check_rank_infos(rank_infos);
    const FormationPlan plan = plan_formation(rank_infos);
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

void NcclTransport::Group::create(const FormationPlan& plan, Group* old, Deadline deadline) {
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
    ids.push_back(value_of_rank<ncclUniqueId>(all[static_cast<std::size_t>(root)], static_cast<std::size_t>(root)));
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
void NcclTransport::Group::register_staging(bool wanted, Deadline deadline) {
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

}  // namespace sparsecast

#endif
