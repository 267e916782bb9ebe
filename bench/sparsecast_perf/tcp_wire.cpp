// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/tcp_transport.hpp"
#include "sparsecast_perf/wire.hpp"

namespace sparsecast::perf {
namespace {

class TcpWire final : public Wire {
 public:
  explicit TcpWire(Group& group) : transport_(make_tcp_transport(group.open_control())) {}

  Transport& transport() noexcept override { return *transport_; }
  void broadcast(std::vector<Bytes>& records, Deadline deadline) override {
    transport_->broadcast(records, kPublisher, deadline);
  }
  std::vector<std::string> libraries() const override { return {}; }
  const char* dense_call() const noexcept override { return "the transport's own broadcast"; }

 private:
  std::unique_ptr<Transport> transport_;
};

}  // namespace

std::unique_ptr<Wire> make_tcp_wire(Group& group) { return std::make_unique<TcpWire>(group); }

}  // namespace sparsecast::perf
