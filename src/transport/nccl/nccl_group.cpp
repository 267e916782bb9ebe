// SPDX-License-Identifier: Apache-2.0

// State of a group:
//
//     form: rank info -> plan -> communicator -> registration --every rank ready--> open
//     open --any Error in a collective--> broken: tell the control channel, stop the communicator (revoke or abort)
//     open or broken --reform--> used up
//
// A rank that fails tells the others at once through the control channel. The watchdogs of their waits notice, and they
// stop their communicators, too. So a failure of one rank reaches every rank within milliseconds, and never causes a
// hang. The content of an interrupted broadcast is undefined, but it is in staging memory and is never passed on.

#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/nccl_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>
#include <utility>

#include "core/unstopped_work.hpp"
#include "transport/control/blobs.hpp"

namespace sparsecast {

NcclGroup::NcclGroup(const NcclRuntime& runtime, std::shared_ptr<ControlChannel> control, const NcclOptions& options)
    : runtime_(runtime), control_(std::move(control)), options_(options), watchdog_(*runtime.functions, control_) {
  report_.library = runtime.info;
}

NcclGroup::~NcclGroup() {
  if (communicator_ == nullptr) return;
  const NcclFunctions& nccl = *runtime_.functions;
  const int device = staging_->device();
  bool gone = false;
  release_on(*runtime_.device, device, [&] {
    const bool asleep = suspended_ && !wake_up();
    for (void* const handle : registrations_) nccl.comm_deregister(communicator_, handle);
    gone = broken_ || asleep || control_->aborted()
               ? finish_abort(begin_abort(nccl, *runtime_.device, device, communicator_, made_), stop_deadline())
               : destroy_communicator(nccl, *runtime_.device, device, communicator_);
  });
  if (!gone) keep_device_memory();
}

std::string NcclGroup::context(const char* phase) const {
  return fmt::format("nccl channel, rank {} of {}: {}", rank(), size(), phase);
}

/// Marks the group broken, tells the other ranks, and begins to stop the communicator. Returns false if the group was
/// already broken.
bool NcclGroup::give_up(const Error& error) noexcept {
  if (broken_) return false;
  try {
    broken_ = error.message();
  } catch (...) {
    broken_.emplace();
  }
  control_->abort(error.what());
  if (communicator_ == nullptr) return true;
  revoking_ = open_ && !made_ && !suspended_ && begin_revoke(*runtime_.functions, communicator_);
  if (!revoking_) abort_for_good();
  return true;
}

void NcclGroup::abort_for_good() noexcept {
  aborting_ = begin_abort(*runtime_.functions, *runtime_.device, staging_->device(),
                          std::exchange(communicator_, nullptr), std::move(made_));
  registrations_.clear();
}

void NcclGroup::fail(std::span<NcclGroup* const> groups, const Error& error) noexcept {
  const std::shared_ptr<Staging>& staging = groups.front()->staging_;
  std::optional<DeviceApiGuard> on_device;
  try {
    if (staging) on_device.emplace(staging->api(), staging->device());
  } catch (const Error&) {  // The other ranks are told of the failure anyway.
  }
  bool any = false;
  for (NcclGroup* const group : groups) any = group->give_up(error) || any;
  if (!any) return;
  const Deadline deadline = stop_deadline();
  bool stopped = true;
  for (NcclGroup* const group : groups) {
    if (!std::exchange(group->revoking_, false)) continue;
    if (!finish_revoke(*group->runtime_.functions, group->communicator_, deadline)) group->abort_for_good();
  }
  for (NcclGroup* const group : groups)
    stopped = finish_abort(std::exchange(group->aborting_, {}), deadline) && stopped;
  // The error returns the caller's memory, so no work may use it any more. If some work still may, frames and staging
  // memory are never freed, and this process forms no further group, because its frames would be in that memory.
  if (!stopped || (staging && !staging->becomes_idle())) keep_device_memory();
}

std::unique_ptr<NcclGroup> NcclGroup::split(int color, int key, Deadline deadline) {
  return guard("split", [&]() -> std::unique_ptr<NcclGroup> {
    const NcclFunctions& nccl = *runtime_.functions;
    ++sequence_;  // Counted on every rank, even without a part.
    resume(deadline);
    const std::shared_ptr<ControlChannel> control = control_->split(color, key, deadline);
    ncclConfig_t config = nonblocking_config(options_.max_ctas);
    made_ = std::make_shared<ncclComm_t>();
    constexpr int kNoColor = -1;
    check_nccl(nccl, nccl.comm_split(communicator_, color < 0 ? kNoColor : color, key, made_.get(), &config),
               communicator_, "ncclCommSplit");
    watchdog_.settle(communicator_, deadline, "ncclCommSplit");
    const ncclComm_t part = *std::exchange(made_, nullptr);
    if (!control) return nullptr;
    std::unique_ptr<NcclGroup> channel(new NcclGroup(runtime_, control, options_));
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

std::unique_ptr<NcclGroup> NcclGroup::reform(std::shared_ptr<ControlChannel> members, Deadline deadline) {
  const DeviceApiGuard on_device = staging_->enter();
  const auto use_up = [this] {
    // Later calls report it, and the destructor stops the rest of the old group.
    if (!broken_) broken_ = "it was formed anew";
  };
  try {
    auto channel = form(runtime_, std::move(members), options_, this, deadline);
    use_up();
    return channel;
  } catch (...) {
    if (derived_ && communicator_ != nullptr) {
      use_up();
      abort_for_good();
      if (!finish_abort(std::exchange(aborting_, {}), stop_deadline())) keep_device_memory();
    }
    throw;
  }
}

void NcclGroup::abort(const std::string& reason) noexcept {
  try {
    fail(Error(ErrorCode::kPeerFailed, reason));
  } catch (...) {
  }
}

void NcclGroup::settle(std::span<NcclGroup* const> groups, Deadline deadline, const char* what) {
  const auto all_settled = [&] {
    return std::ranges::all_of(
        groups, [](const NcclGroup* group) { return settled(*group->runtime_.functions, group->communicator_); });
  };
  wait_for(groups, all_settled, deadline, what);
}

void NcclGroup::resume(std::span<NcclGroup* const> groups, Deadline deadline) {
  std::vector<NcclGroup*> suspended;
  std::ranges::copy_if(groups, std::back_inserter(suspended), &NcclGroup::suspended_);
  if (suspended.empty()) return;
  settle(suspended, deadline, "ncclCommSuspend");
  // All at the same time, because other ranks may list the channels of a round in another order.
  for (const NcclGroup* group : suspended) {
    check_nccl(*group->runtime_.functions, group->runtime_.functions->comm_resume(group->communicator_),
               group->communicator_, "ncclCommResume");
  }
  settle(suspended, deadline, "ncclCommResume");
  for (NcclGroup* const group : suspended) group->suspended_ = false;
}

void NcclGroup::suspend(std::span<NcclGroup* const> groups) {
  for (NcclGroup* const group : groups) {
    if (!group->report_.suspends || group->suspended_ || group->size() == 1) continue;
    group->suspended_ = true;
    check_nccl(*group->runtime_.functions,
               group->runtime_.functions->comm_suspend(group->communicator_, kSuspendMemory), group->communicator_,
               "ncclCommSuspend");
  }
}

/// Resumes a suspended communicator before it is destroyed, because NCCL cannot free a suspended one. All ranks of the
/// communicator must call it. Returns false if that fails or takes more than 5 s.
bool NcclGroup::wake_up() noexcept {
  constexpr std::chrono::seconds kPatience{5};
  try {
    if (broken_ || control_->aborted()) return false;
    resume(std::chrono::steady_clock::now() + kPatience);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Forming: rank info -> plan -> communicator -> registration. Every rank gets the plan, which is made from the rank
// info of all ranks, before it creates anything.

namespace {

constexpr std::uint64_t kSmallestStaging = 4096;

}  // namespace

NcclRankInfo NcclGroup::rank_info(const NcclGroup* old) const {
  const NcclFunctions& nccl = *runtime_.functions;
  NcclRankInfo own;
  own.nccl_version = nccl.version;
  own.staging_bytes = options_.staging_bytes;
  own.can_register = options_.register_memory && staging_->nccl_memory() ? 1 : 0;
  own.can_configure = nccl.broadcast_config != nullptr ? 1 : 0;
  own.can_suspend = nccl.has_suspend() ? 1 : 0;
  own.max_ctas = options_.max_ctas;
  own.broadcast_ctas = options_.broadcast_ctas;
  own.suspend_between_rounds = options_.suspend_between_rounds ? 1 : 0;
  own.can_init_scalable = nccl.comm_init_rank_scalable != nullptr ? 1 : 0;
  own.can_grow = nccl.has_grow() ? 1 : 0;
  own.nonce = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  if (old != nullptr) {
    own.old_channel = old->channel_;
    own.old_rank = old->rank();
    own.old_size = old->size();
    // A suspended communicator cannot shrink, because a resume needs all of its ranks.
    own.can_shrink = nccl.comm_shrink != nullptr && old->communicator_ != nullptr && !old->suspended_ ? 1 : 0;
    if (old->broken_ || old->suspended_) own.can_grow = 0;
  }
  set_text(own.device, staging_->api().uuid(staging_->device()));
  const char* const host_id = std::getenv("NCCL_HOSTID");
  set_text(own.host_id, host_id == nullptr ? "" : host_id);
  set_text(own.settings, nccl_settings());
  return own;
}

std::unique_ptr<NcclGroup> NcclGroup::form(const NcclRuntime& runtime, std::shared_ptr<ControlChannel> control,
                                           const NcclOptions& options, NcclGroup* old, Deadline deadline) {
  if (options.staging_bytes < kSmallestStaging) {
    throw Error(ErrorCode::kUsage, fmt::format("staging buffers of {} bytes; at least {} are needed",
                                               options.staging_bytes, kSmallestStaging));
  }
  if (options.max_ctas < 0 || options.broadcast_ctas < 0 ||
      (options.max_ctas != 0 && options.broadcast_ctas > options.max_ctas)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} CTAs of a communicator, {} of a broadcast", options.max_ctas, options.broadcast_ctas));
  }
  if (options.profiler_tag >> 63 != 0) throw Error(ErrorCode::kUsage, "a profiler tag of 2^63 or more");
  std::unique_ptr<NcclGroup> channel(new NcclGroup(runtime, std::move(control), options));
  try {
    if (device_memory_is_kept()) {
      throw Error(ErrorCode::kDevice,
                  "work on a device could not be stopped after an earlier failure and may still use the memory of this "
                  "process; start the process anew");
    }
    channel->staging_ = old != nullptr ? old->staging_
                                       : std::make_shared<Staging>(*runtime.device, *runtime.functions, options.device,
                                                                   options.staging_bytes, options.register_memory);
    const DeviceApiGuard on_device = channel->staging_->enter();
    channel->report_.device = channel->staging_->device();
    const auto plan_for_all = [](const std::vector<Bytes>& all) {
      const std::vector<NcclRankInfo> rank_infos = parse_rank_infos(all);
      check_rank_infos(rank_infos);
      return pack_formation(plan_formation(rank_infos));
    };
    const FormationPlan plan =
        parse_formation(channel->control_->reduce(bytes_of(channel->rank_info(old)), plan_for_all, deadline));
    channel->channel_ = plan.channel;
    channel->report_.configured = plan.configured && (options.broadcast_ctas != 0 || options.profiler_tag != 0);
    channel->report_.suspends = plan.suspends;
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

void NcclGroup::create(const FormationPlan& plan, NcclGroup* old, Deadline deadline) {
  if (plan.formation == Formation::kShrink) return shrink(*old, plan.lost, deadline);
  const NcclFunctions& nccl = *runtime_.functions;
  const bool grows = plan.formation == Formation::kGrow;
  ncclUniqueId own{};
  const bool is_root = std::find(plan.roots.begin(), plan.roots.end(), rank()) != plan.roots.end();
  if (is_root) {
    check_nccl(nccl, grows ? nccl.comm_get_unique_id(old->communicator_, &own) : nccl.get_unique_id(&own), nullptr,
               "ncclGetUniqueId");
  }
  const Bytes all =
      control_->reduce(is_root ? bytes_of(own) : std::span<const std::byte>{}, join_values<ncclUniqueId>, deadline);
  std::vector<ncclUniqueId> ids = values_of<ncclUniqueId>(all, plan.roots.size());
  if (grows) return grow(old, old == nullptr || is_root ? ids.data() : nullptr, deadline);
  ncclConfig_t config = nonblocking_config(options_.max_ctas);
  // Only the NCCL call writes to it.
  if (plan.formation == Formation::kInitScalable) {
    check_nccl(
        nccl,
        nccl.comm_init_rank_scalable(&communicator_, size(), rank(), static_cast<int>(ids.size()), ids.data(), &config),
        nullptr, "ncclCommInitRankScalable");
  } else {
    check_nccl(nccl, nccl.comm_init_rank_config(&communicator_, size(), ids[0], rank(), &config), nullptr,
               "ncclCommInitRankConfig");
  }
  watchdog_.settle(communicator_, deadline, "forming the communicator");
}

void NcclGroup::shrink(NcclGroup& old, std::vector<int> lost, Deadline deadline) {
  const NcclFunctions& nccl = *runtime_.functions;
  ncclConfig_t config = nonblocking_config(options_.max_ctas);
  old.derived_ = true;
  old.made_ = std::make_shared<ncclComm_t>();
  // The old communicator must exist until the new one is made. Afterwards they are independent.
  check_nccl(nccl,
             nccl.comm_shrink(old.communicator_, lost.data(), static_cast<int>(lost.size()), old.made_.get(), &config,
                              old.broken_ ? kShrinkAbort : 0),
             old.communicator_, "ncclCommShrink");
  watchdog_.settle(old.communicator_, deadline, "ncclCommShrink");
  communicator_ = *std::exchange(old.made_, nullptr);
  watchdog_.settle(communicator_, deadline, "ncclCommShrink");
}

void NcclGroup::grow(NcclGroup* old, const ncclUniqueId* id, Deadline deadline) {
  constexpr const char* kCall = "ncclCommGrow";
  const NcclFunctions& nccl = *runtime_.functions;
  const ncclComm_t parent = old == nullptr ? nullptr : old->communicator_;
  if (old != nullptr) old->derived_ = true;
  const auto made = std::make_shared<ncclComm_t>();
  // The call blocks: ranks of the old communicator wait in it for a message from their coordinator.
  const auto call = [grow = nccl.comm_grow, parent, ranks = size(), rank = parent == nullptr ? rank() : -1, made,
                     id = id == nullptr ? std::nullopt : std::optional(*id), ctas = options_.max_ctas] {
    ncclConfig_t config = nonblocking_config(ctas);
    return grow(parent, ranks, id ? &*id : nullptr, rank, made.get(), &config);
  };
  check_nccl(nccl, watchdog_.make_apart(staging_->api(), staging_->device(), made, call, deadline, kCall), parent,
             kCall);
  communicator_ = communicator_in(made);
  made_ = made;
  watchdog_.settle(communicator_, deadline, kCall);
  made_.reset();
}

/// Registers staging memory on all ranks or on none, because NCCL must not get both kinds of memory in one collective.
/// The exchange also shows that all ranks are ready.
void NcclGroup::register_staging(bool wanted, Deadline deadline) {
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
