// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "sparsecast/control_channel.hpp"

namespace sparsecast::test {

/// A control channel that is another one; tests override what they want to see, or to alter.
class ForwardingControl : public ControlChannel {
 public:
  explicit ForwardingControl(std::shared_ptr<ControlChannel> inner) : inner_(std::move(inner)) {}

  int rank() const noexcept override { return inner_->rank(); }
  int size() const noexcept override { return inner_->size(); }
  std::uint64_t max_blob_bytes() const noexcept override { return inner_->max_blob_bytes(); }
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) override {
    return inner_->all_gather(own, deadline);
  }
  Bytes reduce(std::span<const std::byte> own, const Combine& combine, Deadline deadline) override {
    return inner_->reduce(own, combine, deadline);
  }
  Bytes broadcast(std::span<const std::byte> own, Deadline deadline) override {
    return inner_->broadcast(own, deadline);
  }
  int agree(int status, int coordinator, Deadline deadline) override {
    return inner_->agree(status, coordinator, deadline);
  }
  std::shared_ptr<ControlChannel> split(int color, int key, Deadline deadline) override {
    return inner_->split(color, key, deadline);
  }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }
  std::optional<std::string> aborted() noexcept override { return inner_->aborted(); }

 private:
  std::shared_ptr<ControlChannel> inner_;
};

}  // namespace sparsecast::test
