// SPDX-License-Identifier: Apache-2.0

// State of a group:
//
//     form: rank info -> plan -> communicator -> registration --every rank ready--> open
//     open --any Error in a collective--> broken: tell the control channel, stop the communicator (revoke or abort)
//     open or broken --reform--> used up
//
// A rank that fails tells the others through the control channel at once; the watchdogs of their waits notice it, and
// they stop their communicator likewise. So one rank's failure is every rank's within milliseconds, and never a hang.
// The content of an interrupted broadcast is undefined, but it lies in staging memory, and none of it is handed out.

#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/nccl_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

#include "core/unstopped_work.hpp"
#include "transport/control/blobs.hpp"

namespace sparsecast {

NcclTransport::Group::Group(const NcclRuntime& runtime, std::shared_ptr<ControlChannel> control,
                            const NcclOptions& options)
    : runtime_(runtime), control_(std::move(control)), options_(options), watchdog_(*runtime.functions, control_) {
  report_.library = runtime.info;
}

NcclTransport::Group::~Group() {
  if (communicator_ == nullptr) return;
  const NcclFunctions& nccl = *runtime_.functions;
  for (void* const handle : registrations_) nccl.comm_deregister(communicator_, handle);
  const int device = staging_->device();
  const bool gone = broken_ || control_->aborted()
                        ? finish_abort(begin_abort(nccl, *runtime_.device, device, communicator_), stop_deadline())
                        : destroy_communicator(nccl, *runtime_.device, device, communicator_);
  if (!gone) keep_device_memory();
}

std::string NcclTransport::Group::context(const char* phase) const {
  return fmt::format("nccl channel, rank {} of {}: {}", rank(), size(), phase);
}

/// Marks the group broken, tells the other ranks, and begins to stop the communicator. Returns false when the group was
/// broken before.
bool NcclTransport::Group::give_up(const Error& error) noexcept {
  if (broken_) return false;
  try {
    broken_ = error.message();
  } catch (...) {
    broken_.emplace();
  }
  control_->abort(error.what());
  if (communicator_ == nullptr) return true;
  revoking_ = open_ && begin_revoke(*runtime_.functions, communicator_);
  if (!revoking_) abort_for_good();
  return true;
}

void NcclTransport::Group::abort_for_good() noexcept {
  aborting_ =
      begin_abort(*runtime_.functions, *runtime_.device, staging_->device(), std::exchange(communicator_, nullptr));
  registrations_.clear();
}

void NcclTransport::Group::fail(std::span<Group* const> groups, const Error& error) noexcept {
  bool any = false;
  for (Group* const group : groups) any = group->give_up(error) || any;
  if (!any) return;
  const Deadline deadline = stop_deadline();
  bool stopped = true;
  for (Group* const group : groups) {
    if (!std::exchange(group->revoking_, false)) continue;
    if (!finish_revoke(*group->runtime_.functions, group->communicator_, deadline)) group->abort_for_good();
  }
  for (Group* const group : groups) stopped = finish_abort(std::exchange(group->aborting_, {}), deadline) && stopped;
  // The caller gets its memory back with the error: nothing may still use it. If something may, frames and staging
  // memory are never freed, and this process forms no further group, whose frames would lie there.
  const std::shared_ptr<Staging>& staging = groups.front()->staging_;
  if (!stopped || (staging && !staging->becomes_idle())) keep_device_memory();
}

std::unique_ptr<NcclTransport::Group> NcclTransport::Group::split(int color, int key, Deadline deadline) {
  return guard("split", [&]() -> std::unique_ptr<Group> {
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
    std::unique_ptr<Group> channel(new Group(runtime_, control, options_));
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

std::unique_ptr<NcclTransport::Group> NcclTransport::Group::reform(std::shared_ptr<ControlChannel> members,
                                                                   Deadline deadline) {
  staging_->enter();
  auto channel = form(runtime_, std::move(members), options_, this, deadline);
  // Used up: a later call says so, and the destructor stops what is left of it.
  if (!broken_) broken_ = "it was formed anew";
  return channel;
}

void NcclTransport::Group::abort(const std::string& reason) noexcept {
  try {
    fail(Error(ErrorCode::kPeerFailed, reason));
  } catch (...) {
  }
}

// rank info -> plan -> communicator -> registration. Every rank sees what all ranks said before it creates anything.

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
    if (device_memory_is_kept()) {
      throw Error(ErrorCode::kDevice,
                  "work on a device could not be stopped after an earlier failure and may still use the memory of this "
                  "process; start the process anew");
    }
    channel->staging_ = old != nullptr ? old->staging_
                                       : std::make_shared<Staging>(*runtime.device, *runtime.functions, options.device,
                                                                   options.staging_bytes, options.register_memory);
    channel->staging_->enter();
    channel->report_.device = channel->staging_->device();
    const auto plan_for_all = [](const std::vector<Bytes>& all) {
      const std::vector<NcclRankInfo> rank_infos = parse_rank_infos(all);
      check_rank_infos(rank_infos);
      return pack_formation(plan_formation(rank_infos));
    };
    const FormationPlan plan =
        parse_formation(channel->control_->reduce(bytes_of(channel->rank_info(old)), plan_for_all, deadline));
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
    // The old communicator must live until the new one is made; afterwards they are independent.
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
  const Bytes all =
      control_->reduce(is_root ? bytes_of(own) : std::span<const std::byte>{}, join_values<ncclUniqueId>, deadline);
  std::vector<ncclUniqueId> ids = values_of<ncclUniqueId>(all, plan.roots.size());
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

/// Registers staging memory on all ranks or on none: NCCL must not see both kinds of memory in one collective. The
/// exchange also shows that all ranks are ready.
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
