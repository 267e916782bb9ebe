// SPDX-License-Identifier: Apache-2.0
#include "gpu_group/transport.hpp"

#include "sparsecast/tcp_transport.hpp"

namespace sparsecast::test {
namespace {

class NcclGroupChannel final : public GroupChannel {
 public:
  void open(std::shared_ptr<ControlChannel> control, Deadline deadline) override {
    NcclOptions options;
    options.device = 0;
    options.staging_bytes = std::uint64_t{1} << 20;  // Several pieces for each version.
    transport_ = NcclTransport::open(std::move(control), options, time_left(deadline));
  }
  void reform(std::shared_ptr<ControlChannel> members, Deadline deadline) override {
    transport_ = transport_->reform(std::move(members), time_left(deadline));
  }
  Transport& transport() override { return *transport_; }
  NcclTransport* nccl() override { return transport_.get(); }

 private:
  std::unique_ptr<NcclTransport> transport_;
};

class ControlGroupChannel final : public GroupChannel {
 public:
  void open(std::shared_ptr<ControlChannel> control, Deadline) override {
    transport_ = make_tcp_transport(std::move(control));
  }
  void reform(std::shared_ptr<ControlChannel> members, Deadline deadline) override {
    open(std::move(members), deadline);
  }
  Transport& transport() override { return *transport_; }
  NcclTransport* nccl() override { return nullptr; }

 private:
  std::unique_ptr<Transport> transport_;
};

}  // namespace

std::unique_ptr<GroupChannel> make_nccl_channel() { return std::make_unique<NcclGroupChannel>(); }
std::unique_ptr<GroupChannel> make_control_channel() { return std::make_unique<ControlGroupChannel>(); }

}  // namespace sparsecast::test
