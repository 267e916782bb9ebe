#include "transport/control/child_channels.hpp"

#include <algorithm>

namespace sparsecast {

std::vector<int> ranks_of_color(const std::vector<SplitChoice>& choices, int color) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < choices.size(); ++r) {
    if (choices[r].color == color) ranks.push_back(static_cast<int>(r));
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  return ranks;
}

std::shared_ptr<ControlChannel> ChildChannels::add(std::shared_ptr<ControlChannel> part) {
  std::optional<std::string> reason;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(parts_, [](const auto& known) { return known.expired(); });
    parts_.push_back(part);
    reason = reason_;
  }
  if (reason) part->abort(*reason);
  return part;
}

void ChildChannels::abort(const std::string& reason) noexcept {
  try {
    std::vector<std::shared_ptr<ControlChannel>> parts;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!reason_) reason_ = reason;
      for (const auto& known : parts_) {
        if (auto part = known.lock()) parts.push_back(std::move(part));
      }
    }
    for (const auto& part : parts) part->abort(reason);
  } catch (...) {
  }
}

}  // namespace sparsecast
