#pragma once

// What the picture of a plan shows, and its parts as SVG.

#include <string>
#include <string_view>
#include <vector>

#include "tools/common/page.hpp"
#include "tools/plan/plan_study.hpp"

namespace sparsecast::tools {

/// A side of the picture has at most this many boxes, and so has its middle.
inline constexpr std::size_t kMostBoxes = 40;

/// Ranks, or groups, that are drawn as one.
struct PictureBox {
  std::string label;
  std::string title;         ///< Shown when the pointer rests on it.
  std::string heading;       ///< Of the boxes that begin here; may be empty.
  std::vector<int> members;  ///< Ascending world ranks, or groups.
};

/// From a box of one column to one of the next.
struct PictureBand {
  std::size_t from = 0;
  std::size_t to = 0;
  double bytes = 0;
  std::string title;
};

/// Senders on the left, groups in the middle, receivers on the right.
struct Picture {
  std::vector<PictureBox> senders;
  std::vector<PictureBox> groups;
  std::vector<PictureBox> receivers;
  std::vector<PictureBand> sent;      ///< Senders to groups: bytes of all ranks of the box, each once.
  std::vector<PictureBand> received;  ///< Groups to receivers: bytes that a rank of the box wants, on average.
  std::size_t silent = 0;             ///< Trainer ranks that send nothing, and are not shown.
};

/// Ranks are boxes of their own when there are few enough of them; else those of a node are one, or those of the same
/// groups, or neighbours. Groups between the same boxes are one; small ones are, when there are too many.
Picture make_picture(const PlanStudy& study);

std::string flow_svg(const Picture& picture);
/// The transfers over time, a row a group, in the order and the colours of the picture.
std::string schedule_svg(const PlanStudy& study, const Picture& picture);

/// The colour of the i-th group in the picture, readable on light and on dark.
std::string group_colour(std::size_t i);

}  // namespace sparsecast::tools
