// SPDX-License-Identifier: Apache-2.0

// The chart of `sparsecast log status --html` as SVG: stacked panels that share the axis of versions.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "tools/common/page.hpp"
#include "tools/common/report.hpp"
#include "tools/log/log_picture.hpp"

namespace sparsecast::tools {
namespace {

constexpr double kWidth = 1240;
constexpr double kLeft = 150;
constexpr double kRight = 24;
constexpr double kPlot = kWidth - kLeft - kRight;
constexpr double kDensityHeight = 130;
constexpr double kBytesHeight = 80;
constexpr double kRow = 18;      ///< Height of a row of anchors, of merged deltas of one span, or of readers.
constexpr double kHeading = 34;  ///< Space above each panel.
constexpr double kAxis = 22;     ///< Space for version numbers below a panel.
constexpr double kMostBar = 36;
constexpr std::uint64_t kMostColumns = 240;
constexpr int kShades = 9;
constexpr std::size_t kMostLabel = 22;

/// Returns the smallest of 1, 2, 5, 10, 20, ... times a power of ten that gives at most `ticks` steps up to `most`.
double nice_step(double most, int ticks) {
  if (!(most > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(most / ticks)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (most <= factor * power * ticks) return factor * power;
  }
  return 20 * power;
}

std::string clipped(const std::string& label) {
  return label.size() <= kMostLabel ? label : "..." + label.substr(label.size() - kMostLabel + 3);
}

class Chart {
 public:
  Chart(const LogSurvey& survey, const LayerHeat& heat)
      : survey_(survey),
        heat_(heat),
        columns_(survey, kMostColumns),
        step_(kPlot / static_cast<double>(columns_.size())) {}

  std::string svg() {
    density_panel();
    bytes_panel();
    ways_panel();
    if (!heat_.layers.empty()) heat_panel();
    return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"The log by version\">\n{}</svg>\n",
                       kWidth, y_ + 6, out_);
  }

 private:
  double left_of(std::size_t column) const { return kLeft + static_cast<double>(column) * step_; }
  double middle_of(std::size_t column) const { return left_of(column) + step_ / 2; }
  double bar_width() const { return std::min(kMostBar, std::max(1.0, step_ * 0.7)); }

  void text(double x, double y, const char* anchor, const std::string& words, const char* kind = "") {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, kind,
                        escape_markup(words));
  }

  void heading(const std::string& words) {
    text(kLeft, y_ + kHeading - 12, "start", words, " class=\"heading\"");
    y_ += kHeading;
  }

  /// Draws horizontal lines with their values, down from `most`.
  template <class Words>
  void grid(double top, double height, double most, int ticks, const Words& words) {
    const double step = nice_step(most, ticks);
    for (int i = 0; i * step <= most * 1.0001; ++i) {
      const double y = top + height - height * i * step / most;
      out_ += fmt::format("<path class=\"tick\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", kLeft, y, kLeft + kPlot);
      text(kLeft - 8, y + 4, "end", words(i * step), " class=\"soft\"");
    }
  }

  /// Draws version numbers below the last panel.
  void axis() {
    const double wanted = nice_step(static_cast<double>(columns_.last - columns_.first + 1), 14);
    const auto step = static_cast<std::uint64_t>(std::max(1.0, wanted));
    const std::uint64_t begin = (columns_.first + step - 1) / step * step;
    for (std::uint64_t version = begin; version <= columns_.last; version += step) {
      text(middle_of(columns_.column_of(version)), y_ + 15, "middle", std::to_string(version), " class=\"soft\"");
    }
    y_ += kAxis;
  }

  std::string column_title(std::size_t column, const std::string& rest) const {
    return fmt::format("version {}: {}", columns_.name(column), rest);
  }

  void density_panel() {
    heading("Density: changed elements of all elements");
    const std::vector<double> densities = columns_.densities(survey_);
    const double highest = *std::max_element(densities.begin(), densities.end());
    const double most = highest > 0 ? highest * 1.08 : 1;
    grid(y_, kDensityHeight, most, 4, [](double share) { return human_percent(share); });
    const double bottom = y_ + kDensityHeight;
    std::string path;
    std::string area;
    double last_x = 0;
    const auto close_area = [&] {
      if (!area.empty()) out_ += fmt::format("<path class=\"area\" d=\"{}V{:.1f}Z\"/>\n", area, bottom);
      area.clear();
    };
    for (std::size_t c = 0; c < densities.size(); ++c) {
      if (densities[c] < 0) {
        close_area();
        continue;
      }
      const double x = middle_of(c);
      const double y = bottom - kDensityHeight * densities[c] / most;
      path += fmt::format("{}{:.1f} {:.1f}", area.empty() ? "M" : "L", x, y);
      area += area.empty() ? fmt::format("M{:.1f} {:.1f}V{:.1f}", x, bottom, y) : fmt::format("L{:.1f} {:.1f}", x, y);
      last_x = x;
    }
    close_area();
    if (last_x > 0) out_ += fmt::format("<path class=\"line\" d=\"{}\"/>\n", path);
    for (std::size_t c = 0; c < densities.size(); ++c) {
      if (densities[c] < 0) continue;
      out_ +=
          fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}</title></circle>\n",
                      middle_of(c), bottom - kDensityHeight * densities[c] / most, columns_.size() > 80 ? "1.6" : "3",
                      escape_markup(column_title(c, human_percent(densities[c]))));
    }
    epochs(y_, bottom);
    y_ = bottom + 8;
  }

  /// Marks takeovers and changes of keys, which are versions too.
  void epochs(double top, double bottom) {
    for (const LogCommit& commit : survey_.versions) {
      if (commit.kind != CommitKind::kTakeover && commit.kind != CommitKind::kKeys) continue;
      const double x = middle_of(columns_.column_of(commit.version));
      const std::string words =
          commit.kind == CommitKind::kKeys ? std::string("keys") : fmt::format("epoch {}", commit.epoch);
      out_ += fmt::format("<path class=\"event\" d=\"M{:.1f} {:.1f}V{:.1f}\"><title>version {}: {}</title></path>\n", x,
                          top, bottom, commit.version, escape_markup(words));
      text(x + 4, top + 10, "start", words, " class=\"soft\"");
    }
  }

  void bytes_panel() {
    heading("Bytes of each version's delta");
    std::vector<double> bytes(columns_.size(), 0);
    for (const LogCommit& commit : survey_.versions) {
      double& of_column = bytes[columns_.column_of(commit.version)];
      of_column = std::max(of_column, static_cast<double>(commit.delta_bytes));
    }
    const double highest = *std::max_element(bytes.begin(), bytes.end());
    const double most = highest > 0 ? highest * 1.08 : 1;
    grid(y_, kBytesHeight, most, 3, [](double b) { return human_bytes(static_cast<std::uint64_t>(b)); });
    const double bottom = y_ + kBytesHeight;
    for (std::size_t c = 0; c < bytes.size(); ++c) {
      if (bytes[c] == 0) continue;
      const double height = kBytesHeight * bytes[c] / most;
      out_ += fmt::format(
          "<rect class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>{}</title></rect>\n",
          middle_of(c) - bar_width() / 2, bottom - height, bar_width(), height,
          escape_markup(column_title(c, human_bytes(static_cast<std::uint64_t>(bytes[c])))));
    }
    y_ = bottom;
    axis();
  }

  void row(const std::string& name) {
    text(kLeft - 8, y_ + kRow / 2 + 4, "end", name, " class=\"soft\"");
    out_ += fmt::format("<path class=\"tick\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", kLeft, y_ + kRow / 2, kLeft + kPlot);
  }

  void ways_panel() {
    heading("Ways to catch up, and where readers are");
    row("anchors");
    for (const AnchorRef& anchor : survey_.anchors) {
      if (anchor.version < columns_.first) continue;
      const double x = middle_of(columns_.column_of(anchor.version));
      out_ += fmt::format(
          "<path class=\"anchor\" d=\"M{:.1f} {:.1f}l6 6l-6 6l-6 -6Z\"><title>anchor of version {}: "
          "{}</title></path>\n",
          x, y_ + kRow / 2 - 6, anchor.version, human_bytes(anchor.bytes));
    }
    y_ += kRow;
    std::map<std::uint64_t, std::vector<const DeltaRef*>> by_span;
    for (const DeltaRef& merged : survey_.merged) by_span[merged.to - merged.from].push_back(&merged);
    for (const auto& [span, refs] : by_span) {
      row(fmt::format("{} versions in one", span));
      for (const DeltaRef* ref : refs) {
        if (ref->to <= columns_.first) continue;
        const double begin = left_of(columns_.column_of(ref->from + 1)) + 1;
        const double end = left_of(columns_.column_of(ref->to)) + step_ - 1;
        out_ += fmt::format(
            "<rect class=\"merged\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"8\" rx=\"3\"><title>merged "
            "delta "
            "from version {} to {}: {}</title></rect>\n",
            begin, y_ + kRow / 2 - 4, std::max(2.0, end - begin), ref->from, ref->to, human_bytes(ref->bytes));
      }
      y_ += kRow;
    }
    for (const LogLease& lease : survey_.leases) reader_row(lease);
    axis();
  }

  /// Draws a bar from the version of the reader to the head.
  void reader_row(const LogLease& lease) {
    row(clipped(lease.name));
    const double x = middle_of(columns_.column_of(std::max(lease.version, columns_.first)));
    const double head = middle_of(columns_.column_of(columns_.last));
    const std::uint64_t behind = survey_.head.version - std::min(survey_.head.version, lease.version);
    const std::string words = fmt::format("{}: at version {}, {} behind, heard of {} ago", lease.name, lease.version,
                                          behind, human_duration(survey_.now - lease.renewed));
    out_ += fmt::format(
        "<path class=\"behind\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n<circle class=\"reader\" cx=\"{:.1f}\" cy=\"{:.1f}\" "
        "r=\"5\"><title>{}</title></circle>\n",
        x, y_ + kRow / 2, head, x, y_ + kRow / 2, escape_markup(words));
    y_ += kRow;
  }

  /// Returns the share of changed elements of one layer in each column; negative where no version has a delta.
  std::vector<double> shares_of(std::size_t layer) const {
    std::vector<double> changed(columns_.size(), 0);
    std::vector<double> versions(columns_.size(), 0);
    for (std::size_t v = 0; v < survey_.versions.size(); ++v) {
      if (!density_of(survey_.versions[v])) continue;
      changed[columns_.column_of(survey_.versions[v].version)] += static_cast<double>(heat_.changed[layer][v]);
      versions[columns_.column_of(survey_.versions[v].version)] += 1;
    }
    for (std::size_t c = 0; c < changed.size(); ++c) {
      changed[c] = versions[c] == 0 ? -1 : ratio(changed[c], versions[c] * static_cast<double>(heat_.elements[layer]));
    }
    return changed;
  }

  void heat_panel() {
    heading("Density by layer");
    std::vector<std::vector<double>> shares(heat_.layers.size());
    std::vector<double> positive;
    for (std::size_t l = 0; l < heat_.layers.size(); ++l) {
      shares[l] = shares_of(l);
      std::copy_if(shares[l].begin(), shares[l].end(), std::back_inserter(positive), [](double s) { return s > 0; });
    }
    // A few tiny tensors that hardly change must not use up the shades of all others.
    std::sort(positive.begin(), positive.end());
    const double least = positive.empty() ? 0 : positive[positive.size() / 10];
    const double most = positive.empty() ? 0 : positive.back();
    const double row = std::clamp(560.0 / static_cast<double>(heat_.layers.size()), 9.0, 20.0);
    const std::size_t label_every = row < 11 ? 2 : 1;
    for (std::size_t l = 0; l < heat_.layers.size(); ++l) {
      if (l % label_every == 0) {
        text(kLeft - 8, y_ + row / 2 + 4, "end", clipped(heat_.layers[l]), " class=\"soft\"");
      }
      for (std::size_t c = 0; c < columns_.size(); ++c) heat_cell(l, c, shares[l][c], least, most, row);
      y_ += row;
    }
    axis();
    legend(least, most);
  }

  static int shade(double share, double least, double most) {
    if (most <= least) return kShades - 1;
    const double place = std::log(std::max(share, least) / least) / std::log(most / least);
    return std::clamp(static_cast<int>(place * kShades), 0, kShades - 1);
  }

  void heat_cell(std::size_t layer, std::size_t column, double share, double least, double most, double height) {
    if (share < 0) return;
    const std::string kind = share == 0 ? "none" : fmt::format("h{}", shade(share, least, most));
    const double gap = step_ > 6 ? 1 : 0;
    out_ += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>{}</title></rect>\n",
        kind, left_of(column), y_, std::max(0.5, step_ - gap) + (gap == 0 ? 0.1 : 0), height - 1,
        escape_markup(fmt::format("{}, {}", heat_.layers[layer], column_title(column, human_percent(share)))));
  }

  /// Draws the legend of a logarithmic scale: a factor of ten between two layers is the same distance everywhere.
  void legend(double least, double most) {
    if (most == 0) return;
    const double begin = kLeft + kPlot - kShades * 26 - 90;
    y_ += 8;
    text(begin - 8, y_ + 10, "end", "up to " + human_percent(least), " class=\"soft\"");
    for (int i = 0; i < kShades; ++i) {
      out_ += fmt::format("<rect class=\"h{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"26\" height=\"12\"/>\n", i,
                          begin + i * 26, y_);
    }
    text(begin + kShades * 26 + 8, y_ + 10, "start", human_percent(most), " class=\"soft\"");
    text(kLeft, y_ + 10, "start", "Logarithmic shades; rest the pointer on a cell for its number.", " class=\"soft\"");
    y_ += 18;
  }

  const LogSurvey& survey_;
  const LayerHeat& heat_;
  VersionColumns columns_;
  double step_;
  double y_ = 0;
  std::string out_;
};

}  // namespace

std::string status_svg(const LogSurvey& survey, const LayerHeat& heat) { return Chart(survey, heat).svg(); }

}  // namespace sparsecast::tools
