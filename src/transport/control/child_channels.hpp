#pragma once

// Which ranks of a group make a part of it, for ControlChannel::split.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"

namespace sparsecast {

struct SplitChoice {
  std::int32_t color = 0;
  std::int32_t key = 0;
};

/// The ranks of `color`, by key, then rank.
std::vector<int> ranks_of_color(const std::vector<SplitChoice>& choices, int color);

/// The parts that were made of a channel, as far as they live: who gives up the whole gives up these.
class ChildChannels {
 public:
  /// The part itself; it has given up when the whole has.
  std::shared_ptr<ControlChannel> add(std::shared_ptr<ControlChannel> part);
  /// From any thread.
  void abort(const std::string& reason) noexcept;

 private:
  std::mutex mutex_;
  std::optional<std::string> reason_;
  std::vector<std::weak_ptr<ControlChannel>> parts_;
};

}  // namespace sparsecast
