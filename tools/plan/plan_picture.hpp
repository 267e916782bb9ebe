// SPDX-License-Identifier: Apache-2.0
#pragma once

// Contents of the picture of a plan, and its parts as SVG.

#include <string>
#include <string_view>
#include <vector>

#include "tools/common/page.hpp"
#include "tools/plan/plan_study.hpp"

namespace sparsecast::tools {

/// Maximum number of boxes on each side of the picture and in its middle.
inline constexpr std::size_t kMostBoxes = 40;

/// Ranks, or groups, that are drawn as one box.
struct PictureBox {
  std::string label;
  std::string title;         ///< Tooltip.
  std::string heading;       ///< Heading above this box; may be empty.
  std::vector<int> members;  ///< World ranks, or groups, ascending.
};

/// A band from a box of one column to a box of the next.
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
  std::vector<PictureBand> sent;      ///< From senders to groups: bytes of all ranks of the box, each once.
  std::vector<PictureBand> received;  ///< From groups to receivers: bytes that a rank of the box needs, on average.
  std::size_t silent = 0;             ///< Number of trainer ranks that send nothing and are not shown.
};

/// Makes the picture. Each rank has a box if there are few enough; otherwise the ranks of a node, of the same groups,
/// or neighbours share one. Groups between the same boxes share one; if there are still too many, small ones do.
Picture make_picture(const PlanStudy& study);

std::string flow_svg(const Picture& picture);
/// Returns the transfers over time, one row for each group, in the order and colours of the picture.
std::string schedule_svg(const PlanStudy& study, const Picture& picture);

/// Returns the colour of the i-th group in the picture, readable on light and dark backgrounds.
std::string group_colour(std::size_t i);

}  // namespace sparsecast::tools
