// State of a channel:
//
//     form: rank info -> plan -> communicator -> registration --every rank ready--> open
//     open --any Error in a collective--> broken: tell the control channel, stop the communicator (revoke or abort)
//     open or broken --reform--> used up
//
// Who fails tells the others through the control channel at once; they notice it in the watchdog of whatever they wait
// for, and stop their communicator likewise. So one rank's failure is every rank's within milliseconds, and never a
// hang. What an interrupted broadcast has written is undefined, but it lies in staging memory: nothing of it is handed
// out.

#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/nccl_group.hpp"

#include <fmt/format.h>

#include "transport/nccl/nccl_guard.hpp"

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
  const bool gone = broken_ ? abort_communicator(nccl, communicator_) : destroy_communicator(nccl, communicator_);
  if (!gone && staging_) staging_->leave_behind();
}

std::string NcclTransport::Group::context(const char* phase) const {
  return fmt::format("nccl channel, rank {} of {}: {}", rank(), size(), phase);
}

void NcclTransport::Group::fail(const Error& error) noexcept {
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

int NcclTransport::Group::agree(int status, Deadline deadline) {
  return guard("agree", [&] { return control_->agree(status, coordinator_, deadline); });
}

void NcclTransport::Group::abort(const std::string& reason) noexcept {
  try {
    fail(Error(ErrorCode::kPeerFailed, reason));
  } catch (...) {
  }
}

}  // namespace sparsecast

#endif
