// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/nccl_transport.hpp"

#include <fmt/format.h>

#include <exception>

#ifdef SPARSECAST_HAVE_NCCL
#include "transport/nccl/nccl_group.hpp"
#include "transport/nccl/nccl_library.hpp"
#endif

namespace sparsecast {

std::string nccl_version_text(int version) {
  // Versions before 2.9 used one digit less for the minor number, but are refused anyway.
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

#ifdef SPARSECAST_HAVE_NCCL

bool nccl_available() noexcept { return true; }
FrameChannel* NcclTransport::frames() noexcept { return group_.get(); }
NcclLibraryInfo nccl_library() { return process_nccl().info; }

std::unique_ptr<NcclTransport> NcclTransport::open(std::shared_ptr<ControlChannel> control, const NcclOptions& options,
                                                   std::chrono::milliseconds timeout) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  NcclRuntime runtime;
  NcclOptions wanted;
  try {
    wanted = with_environment(options);
    const NcclLibrary& library = process_nccl();
    runtime = {&library.functions, &cuda_device_api(), library.info};
  } catch (const Error& error) {
    control->abort(error.what());  // Otherwise the other ranks would wait for this one.
    throw;
  }
  return std::make_unique<NcclTransport>(NcclGroup::form(runtime, std::move(control), wanted, nullptr, deadline));
}

#else

class NcclGroup {
 public:
  void broadcast(std::vector<Bytes>&, int, Deadline) {}
  ControlChannel& control() const noexcept { std::terminate(); }  // There is no object of this class.
  std::unique_ptr<NcclGroup> split(int, int, Deadline) { return nullptr; }
  std::unique_ptr<NcclGroup> reform(std::shared_ptr<ControlChannel>&&, Deadline) { return nullptr; }
  void abort(const std::string&) noexcept {}
  const NcclChannelReport& report() const noexcept { return report_; }

 private:
  NcclChannelReport report_;
};

bool nccl_available() noexcept { return false; }
FrameChannel* NcclTransport::frames() noexcept { return nullptr; }

NcclLibraryInfo nccl_library() {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no NCCL transport: it was made without nccl.h");
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is that of the NCCL transport.
std::unique_ptr<NcclTransport> NcclTransport::open(std::shared_ptr<ControlChannel> control, const NcclOptions&,
                                                   std::chrono::milliseconds) {
  const Error error(ErrorCode::kUnsupported,
                    "this build of the library has no NCCL transport: it was made without nccl.h");
  control->abort(error.what());
  throw Error(error);
}

#endif

NcclTransport::NcclTransport(std::unique_ptr<NcclGroup> group) : group_(std::move(group)) {}
NcclTransport::~NcclTransport() = default;
ControlChannel& NcclTransport::control() const noexcept { return group_->control(); }

void NcclTransport::broadcast(std::vector<Bytes>& records, int source, Deadline deadline) {
  group_->broadcast(records, source, deadline);
}

std::unique_ptr<NcclTransport> NcclTransport::split(int color, int key, std::chrono::milliseconds timeout) {
  auto part = group_->split(color, key, std::chrono::steady_clock::now() + timeout);
  return part ? std::make_unique<NcclTransport>(std::move(part)) : nullptr;
}

std::unique_ptr<NcclTransport> NcclTransport::reform(std::shared_ptr<ControlChannel> members,
                                                     std::chrono::milliseconds timeout) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  return std::make_unique<NcclTransport>(group_->reform(std::move(members), deadline));
}

void NcclTransport::abort(const std::string& reason) noexcept { group_->abort(reason); }
const NcclChannelReport& NcclTransport::report() const noexcept { return group_->report(); }

}  // namespace sparsecast
