// SPDX-License-Identifier: Apache-2.0

// Draws the phases of a sync and its transfers over time, as SVG.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/plan/plan_forms.hpp"
#include "tools/plan/plan_picture.hpp"

namespace sparsecast::tools {
namespace {

constexpr double kWidth = 1240;
constexpr double kLeft = 110;
constexpr double kRight = 20;
constexpr double kTop = 40;
constexpr double kPhaseTop = 8;      ///< Top of the row of phases, above the rows of groups.
constexpr double kPhaseHeight = 20;  ///< Height of that row.
constexpr double kLetter = 7;        ///< Width of a letter; a phase whose name does not fit is not labelled.
constexpr double kMostRow = 18;
constexpr double kLeastRow = 4;
constexpr double kMostHeight = 640;  ///< Maximum height of all rows together, unless they have the minimum height.
constexpr double kLabelRow = 11;     ///< Minimum height of a row with a label.
constexpr double kJoinedGap = 0.5;   ///< Pixels below which two transfers are drawn as one bar.

/// Consecutive transfers of a group, too close to be drawn apart.
struct Bar {
  double start = 0;
  double end = 0;
  std::size_t transfers = 0;
  int source = 0;
};

struct GanttRow {
  std::size_t place = 0;
  std::size_t box = 0;  ///< Box of the picture that gives the colour.
  std::vector<Bar> bars;
};

class GanttChart {
 public:
  GanttChart(const PlanStudy& study, const Picture& picture) : study_(study), rows_(study.groups.size()) {
    std::size_t next = 0;
    for (std::size_t box = 0; box < picture.groups.size(); ++box) {
      for (const int c : picture.groups[box].members) {
        GanttRow& row = rows_[static_cast<std::size_t>(c)];
        row.place = next++;
        row.box = box;
      }
    }
    const double whole = study.cost.phases.total();
    scale_ = whole > 0 ? (kWidth - kLeft - kRight) / whole : 0;
    row_height_ =
        std::clamp(kMostHeight / static_cast<double>(std::max(rows_.size(), std::size_t{1})), kLeastRow, kMostRow);
    for (std::size_t t = 0; t < study.cost.transfers.size(); ++t) add_transfer(t);
  }

  std::string svg() const {
    const double bottom = kTop + row_height_ * static_cast<double>(rows_.size());
    std::string out = fmt::format(
        "<svg class=\"schedule\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-labelledby=\"time-title time-text\" "
        "xmlns=\"http://www.w3.org/2000/svg\">\n<title id=\"time-title\">The phases of a sync, and when each group is "
        "busy</title>\n"
        "<desc id=\"time-text\">{} transfers in {} groups, {} in all.</desc>\n",
        kWidth, bottom + 30, study_.cost.transfers.size(), rows_.size(), human_time(study_.cost.phases.total()));
    add_axis(out, bottom);
    add_phases(out);
    for (std::size_t c = 0; c < rows_.size(); ++c) add_row(out, c);
    return out + "</svg>\n";
  }

 private:
  void add_transfer(std::size_t t) {
    const Transfer& transfer = study_.plan->transfers()[t];
    const TransferTime& time = study_.cost.transfers[t];
    std::vector<Bar>& row = rows_[transfer.group].bars;
    const bool thin = (time.end_seconds - time.start_seconds) * scale_ < 2;
    if (!row.empty() && thin && (time.start_seconds - row.back().end) * scale_ < kJoinedGap &&
        (row.back().end - row.back().start) * scale_ < 2) {
      row.back().end = time.end_seconds;
      ++row.back().transfers;
      return;
    }
    row.push_back({time.start_seconds, time.end_seconds, 1, transfer.source});
  }

  void add_axis(std::string& out, double bottom) const {
    const double whole = study_.cost.phases.total();
    constexpr int kTicks = 5;
    for (int i = 0; i <= kTicks; ++i) {
      const double seconds = whole * i / kTicks;
      const double x = kLeft + seconds * scale_;
      out += fmt::format(
          "<path class=\"tick\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\" "
          "text-anchor=\"{4}\">{5}</text>\n",
          x, kTop, bottom + 5, bottom + 20, i == kTicks ? "end" : "middle", human_time(seconds));
      if (whole == 0) break;
    }
  }

  /// Draws the critical path, phase after phase, in two shades in turn.
  void add_phases(std::string& out) const {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">phases</text>\n", kLeft - 8,
                       kPhaseTop + kPhaseHeight / 2 + 4);
    double start = 0;
    bool odd = false;
    for (const PhaseColumn& column : phase_columns()) {
      const double seconds = study_.cost.phases.*column.seconds;
      if (seconds <= 0) continue;
      const std::string label = column.label;
      const double width = seconds * scale_;
      out += fmt::format(
          "<rect class=\"phase\" fill=\"hsl(0,0%,{}%)\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\">"
          "<title>{}: {}</title></rect>\n",
          odd ? 62 : 72, kLeft + start * scale_, kPhaseTop, std::max(0.4, width), kPhaseHeight, label,
          human_time(seconds));
      if (width > kLetter * static_cast<double>(label.size())) {
        out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" style=\"fill:#000\">{}</text>\n",
                           kLeft + (start + seconds / 2) * scale_, kPhaseTop + kPhaseHeight / 2 + 4, label);
      }
      start += seconds;
      odd = !odd;
    }
    // The pause of the engines is the end of the sync.
    const double pause = study_.cost.phases.pause();
    out += fmt::format(
        "<rect class=\"pause\" fill=\"hsl(0,70%,50%)\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"4\">"
        "<title>pause: {}</title></rect>\n",
        kLeft + (study_.cost.phases.total() - pause) * scale_, kPhaseTop + kPhaseHeight + 2,
        std::max(0.4, pause * scale_), human_time(pause));
  }

  void add_row(std::string& out, std::size_t group) const {
    const GanttRow& row = rows_[group];
    const double y = kTop + row_height_ * static_cast<double>(row.place);
    if (row_height_ >= kLabelRow) {
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">group {}</text>\n", kLeft - 8,
                         y + row_height_ / 2 + 4, group);
    }
    for (const Bar& bar : row.bars) {
      const std::string who = bar.transfers == 1
                                  ? fmt::format("from rank {}", bar.source)
                                  : fmt::format("{} transfers from rank {} on", bar.transfers, bar.source);
      out += fmt::format(
          "<rect class=\"bar\" fill=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\"><title>group "
          "{}, {}: {} to {}</title></rect>\n",
          group_colour(row.box), kLeft + bar.start * scale_, y + row_height_ * 0.1,
          std::max(0.4, (bar.end - bar.start) * scale_ - 0.3), row_height_ * 0.8, group, who, human_time(bar.start),
          human_time(bar.end));
    }
  }

  const PlanStudy& study_;
  double scale_ = 0;  ///< Pixels for a second.
  double row_height_ = kMostRow;
  std::vector<GanttRow> rows_;  ///< Rows, indexed by group.
};

}  // namespace

std::string schedule_svg(const PlanStudy& study, const Picture& picture) { return GanttChart(study, picture).svg(); }

}  // namespace sparsecast::tools
