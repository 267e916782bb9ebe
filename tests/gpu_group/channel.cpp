#include "gpu_group/channel.hpp"

#include <cstring>

namespace sparsecast::test {
namespace {

class NcclGroupChannel final : public GroupChannel {
 public:
  void open(std::shared_ptr<ControlChannel> control, Deadline deadline) override {
    NcclOptions options;
    options.device = 0;
    options.staging_bytes = std::uint64_t{1} << 20;  // Several pieces for each version.
    transport_ = NcclTransport::open(std::move(control), options, deadline);
  }
  void reform(std::shared_ptr<ControlChannel> members, Deadline deadline) override {
    transport_ = transport_->reform(std::move(members), deadline);
  }
  Transport& transport() override { return *transport_; }
  NcclTransport* nccl() override { return transport_.get(); }

 private:
  std::unique_ptr<NcclTransport> transport_;
};

/// Records joined into one blob, sent through the hub. The source must be rank 0.
class ControlTransport final : public Transport {
 public:
  explicit ControlTransport(std::shared_ptr<ControlChannel> control) : control_(std::move(control)) {}
  int rank() const noexcept override { return control_->rank(); }
  int size() const noexcept override { return control_->size(); }
  int agree(int status, Deadline deadline) override { return control_->agree(status, 0, deadline); }

  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override {
    if (source != 0) throw Error(ErrorCode::kUsage, "the control channel has its source at rank 0");
    Bytes joined;
    for (const Bytes& record : records) {
      const std::uint64_t size = record.size();
      const auto* bytes = reinterpret_cast<const std::byte*>(&size);
      joined.insert(joined.end(), bytes, bytes + sizeof size);
      joined.insert(joined.end(), record.begin(), record.end());
    }
    const Bytes received = control_->broadcast(joined, deadline);
    if (rank() == 0) return;
    records.clear();
    for (std::size_t at = 0; at < received.size();) {
      std::uint64_t size = 0;
      std::memcpy(&size, received.data() + at, sizeof size);
      at += sizeof size;
      records.emplace_back(received.begin() + static_cast<std::ptrdiff_t>(at),
                           received.begin() + static_cast<std::ptrdiff_t>(at + size));
      at += size;
    }
  }

 private:
  std::shared_ptr<ControlChannel> control_;
};

class ControlGroupChannel final : public GroupChannel {
 public:
  void open(std::shared_ptr<ControlChannel> control, Deadline) override {
    transport_ = std::make_unique<ControlTransport>(std::move(control));
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
