// SPDX-License-Identifier: Apache-2.0

// sparsecast log status: text for a terminal, and JSON.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "tools/common/report.hpp"
#include "tools/log/log_forms.hpp"

namespace sparsecast::tools {
namespace {

constexpr std::uint64_t kPlotColumns = 64;
constexpr std::size_t kWidestColumn = 4;  ///< Largest number of characters in a column.
constexpr std::size_t kNameColumns = 10;

/// Distributes versions over columns: equal numbers of versions in a column if there are more versions than columns.
struct VersionColumns {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t group = 1;  ///< Number of versions in one column.

  VersionColumns(const LogSurvey& survey, std::uint64_t most)
      : first(survey.versions.front().version), last(survey.versions.back().version) {
    group = (last - first) / most + 1;
  }
  std::size_t size() const { return static_cast<std::size_t>((last - first) / group + 1); }
  std::size_t column_of(std::uint64_t version) const {
    return static_cast<std::size_t>((std::min(std::max(version, first), last) - first) / group);
  }
  /// Returns, for each column, the changed share of all elements over its versions that have a delta; negative if none
  /// has.
  std::vector<double> densities(const LogSurvey& survey) const {
    std::vector<double> sums(size(), 0);
    std::vector<double> counts(size(), 0);
    for (const LogCommit& commit : survey.versions) {
      const std::optional<double> density = density_of(commit);
      if (!density) continue;
      sums[column_of(commit.version)] += *density;
      counts[column_of(commit.version)] += 1;
    }
    for (std::size_t c = 0; c < sums.size(); ++c) sums[c] = counts[c] == 0 ? -1 : sums[c] / counts[c];
    return sums;
  }
};

/// A row of characters, each of one or more bytes.
class PlotLine {
 public:
  explicit PlotLine(std::size_t characters) : cells_(characters, " ") {}
  void put(std::size_t place, const std::string& character) { cells_[place] = character; }
  void fill(std::size_t begin, std::size_t end, const std::string& character) {
    for (std::size_t place = begin; place < end; ++place) cells_[place] = character;
  }
  std::string text() const {
    std::string line;
    for (const std::string& cell : cells_) line += cell;
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  }

 private:
  std::vector<std::string> cells_;
};

class Plot {
 public:
  Plot(const LogSurvey& survey, bool unicode, std::ostream& out)
      : survey_(survey),
        columns_(survey, kPlotColumns),
        wide_(std::clamp<std::size_t>(kPlotColumns / columns_.size(), 1, kWidestColumn)),
        unicode_(unicode),
        out_(out) {}

  void print() const {
    out_ << '\n';
    print_density();
    print_axis();
    print_anchors();
    print_merged();
    print_leases();
  }

 private:
  std::size_t width() const { return columns_.size() * wide_; }
  /// Returns the offset at which the characters of a column begin; end_of() that at which they end, without the gap to
  /// the next.
  std::size_t begin_of(std::size_t column) const { return column * wide_; }
  std::size_t end_of(std::size_t column) const { return begin_of(column) + std::max<std::size_t>(1, wide_ - 1); }

  void line(const std::string& name, const PlotLine& plot, const std::string& note) const {
    const std::string text = plot.text();
    if (note.empty()) {
      out_ << fmt::format("{:<{}}{}\n", name, kNameColumns, text);
      return;
    }
    std::size_t shown = 0;  // Columns, not bytes.
    for (const char c : text) shown += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    out_ << fmt::format("{:<{}}{}{:<{}}  {}\n", name, kNameColumns, text, "", width() - shown, note);
  }

  /// Prints bars of eighths over two rows.
  void print_density() const {
    const std::vector<double> densities = columns_.densities(survey_);
    const double most = *std::max_element(densities.begin(), densities.end());
    double least = most;
    for (const double density : densities) {
      if (density >= 0) least = std::min(least, density);
    }
    if (most < 0) return;
    static constexpr std::array<const char*, 9> kBlocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static constexpr std::array<const char*, 9> kPlain = {" ", ".", ".", ":", ":", "+", "+", "#", "#"};
    const auto& levels = unicode_ ? kBlocks : kPlain;
    for (int row = 1; row >= 0; --row) {
      PlotLine plot(width());
      for (std::size_t c = 0; c < densities.size(); ++c) {
        if (densities[c] < 0) continue;
        const int eighths = most == 0 ? 1 : std::max(1, static_cast<int>(std::lround(densities[c] / most * 16)));
        plot.fill(begin_of(c), end_of(c), levels[static_cast<std::size_t>(std::clamp(eighths - row * 8, 0, 8))]);
      }
      line(row == 1 ? "density" : "", plot,
           row == 1 ? fmt::format("most  {}", human_percent(most)) : fmt::format("least {}", human_percent(least)));
    }
  }

  void print_axis() const {
    const std::string first = std::to_string(columns_.first);
    const std::string last = std::to_string(columns_.last);
    std::string axis = first;
    const std::size_t end = end_of(columns_.size() - 1);
    if (end > first.size() + last.size()) axis += std::string(end - first.size() - last.size(), ' ') + last;
    if (columns_.group > 1) axis += fmt::format("  {} versions a column", columns_.group);
    out_ << fmt::format("{:<{}}{}\n", "version", kNameColumns, axis);
  }

  void print_anchors() const {
    PlotLine plot(width());
    for (const AnchorRef& anchor : survey_.anchors) {
      if (anchor.version >= columns_.first)
        plot.put(begin_of(columns_.column_of(anchor.version)), unicode_ ? "◆" : "A");
    }
    line("anchors", plot, "");
  }

  /// Prints one line for each span, longest last; spans that begin before the picture are cut off.
  void print_merged() const {
    std::map<std::uint64_t, std::vector<const DeltaRef*>> by_span;
    for (const DeltaRef& merged : survey_.merged) by_span[merged.to - merged.from].push_back(&merged);
    for (const auto& [span, refs] : by_span) {
      PlotLine plot(width());
      for (const DeltaRef* ref : refs) {
        if (ref->to <= columns_.first) continue;
        const std::size_t begin = begin_of(columns_.column_of(ref->from + 1));
        const std::size_t end = end_of(columns_.column_of(ref->to));
        plot.fill(begin, end, unicode_ ? "━" : "-");
        if (end - begin < 2) continue;
        plot.put(begin, unicode_ ? "┣" : "(");
        plot.put(end - 1, unicode_ ? "┫" : ")");
      }
      line(fmt::format("merged {}", span), plot, "");
    }
  }

  void print_leases() const {
    if (survey_.leases.empty()) return;
    PlotLine plot(width());
    for (const LogLease& lease : survey_.leases) {
      if (lease.version >= columns_.first) plot.put(begin_of(columns_.column_of(lease.version)), unicode_ ? "▲" : "^");
    }
    line("readers", plot, "");
  }

  const LogSurvey& survey_;
  VersionColumns columns_;
  std::size_t wide_;  ///< Number of characters in one column.
  bool unicode_;
  std::ostream& out_;
};

std::string total_in_words(const ObjectTotal& total) {
  return fmt::format("{:>10}  in {} {}", human_bytes(total.bytes), human_count(total.objects),
                     total.objects == 1 ? "object" : "objects");
}

nlohmann::ordered_json total_json(const ObjectTotal& total) {
  return {{"objects", total.objects}, {"bytes", total.bytes}};
}

std::int64_t lag(const LogSurvey& survey, const LogLease& lease) {
  return static_cast<std::int64_t>(survey.head.version) - static_cast<std::int64_t>(lease.version);
}

/// Returns "unsigned", or the keys that may sign.
std::string signers_in_words(const LogSurvey& survey) {
  std::string text;
  for (const PublicKey& key : survey.head.keys) text += (text.empty() ? "" : ", ") + to_string(key);
  return text.empty() ? "unsigned: whoever can write here is believed" : text;
}

/// Returns the spans of the merged deltas with their numbers: "4 (3), 16 (1)".
std::string spans_in_words(const LogSurvey& survey) {
  std::map<std::uint64_t, std::size_t> count;
  for (const DeltaRef& merged : survey.merged) ++count[merged.to - merged.from];
  std::string text;
  for (const auto& [span, number] : count) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", span, number);
  return text;
}

void print_leases(const LogSurvey& survey, std::ostream& out) {
  out << '\n';
  if (survey.leases.empty()) {
    out << "no reader holds a lease\n";
    return;
  }
  Columns columns({"reader", "version", "behind", "renewed", "expires"});
  for (const LogLease& lease : survey.leases) {
    columns.add({lease.name, std::to_string(lease.version), std::to_string(lag(survey, lease)),
                 human_duration(survey.now - lease.renewed) + " ago",
                 "in " + human_duration(lease.expires - survey.now)});
  }
  columns.print(out);
}

}  // namespace

void print_status(const LogSurvey& survey, bool unicode, std::ostream& out) {
  const LogCommit& head = survey.head;
  const auto line = [&](const char* name, const std::string& text) {
    out << fmt::format("{:<{}}{}\n", name, kNameColumns, text);
  };
  line("log", survey.location);
  line("stream", to_hex(head.stream));
  line("head", fmt::format("version {}, epoch {}, {} ago{}{}", head.version, head.epoch,
                           human_duration(survey.head_age()), head.label.empty() ? "" : ": ", head.label));
  line("kept", fmt::format("from version {} on", survey.floor));
  line("model", fmt::format("{} elements", human_count(head.elements)));
  line("keys", signers_in_words(survey));
  line("deltas", total_in_words(survey.deltas));
  const std::string spans = spans_in_words(survey);
  line("merged", total_in_words(survey.merged_total) + (spans.empty() ? "" : "; spans " + spans));
  line("anchors", total_in_words(survey.anchor_total) +
                      (survey.anchors.empty() ? std::string("; NONE is known: nobody can join")
                                              : fmt::format("; newest of version {}", survey.anchors.back().version)));
  line("records", total_in_words(survey.records));
  line("total", fmt::format("{:>10}", human_bytes(survey.total_bytes())));
  if (!survey.has_catalog) line("", "there is no catalog: merged deltas and anchors are not known without it");
  Plot(survey, unicode, out).print();
  print_leases(survey, out);
}

nlohmann::ordered_json status_json(const LogSurvey& survey) {
  using nlohmann::ordered_json;
  const LogCommit& head = survey.head;
  ordered_json keys = ordered_json::array();
  for (const PublicKey& key : head.keys) keys.push_back(to_string(key));
  ordered_json result = {{"log", survey.location},
                         {"stream", to_hex(head.stream)},
                         {"version", head.version},
                         {"epoch", head.epoch},
                         {"publisher", to_hex(head.publisher)},
                         {"digest", to_hex(head.digest.value)},
                         {"label", head.label},
                         {"age_seconds", static_cast<double>(survey.head_age().count()) / 1000},
                         {"floor", survey.floor},
                         {"elements", head.elements},
                         {"keys", std::move(keys)},
                         {"total_bytes", survey.total_bytes()},
                         {"deltas", total_json(survey.deltas)},
                         {"merged", total_json(survey.merged_total)},
                         {"anchors", total_json(survey.anchor_total)},
                         {"records", total_json(survey.records)}};
  for (const char* rows : {"anchor_rows", "merged_rows", "lease_rows", "version_rows"}) {
    result[rows] = ordered_json::array();
  }
  for (const AnchorRef& anchor : survey.anchors) {
    result["anchor_rows"].push_back({{"version", anchor.version}, {"bytes", anchor.bytes}});
  }
  for (const DeltaRef& merged : survey.merged) {
    result["merged_rows"].push_back({{"from", merged.from}, {"to", merged.to}, {"bytes", merged.bytes}});
  }
  for (const LogLease& lease : survey.leases) {
    const auto seconds = [](std::chrono::milliseconds span) { return static_cast<double>(span.count()) / 1000; };
    result["lease_rows"].push_back({{"name", lease.name},
                                    {"version", lease.version},
                                    {"behind", lag(survey, lease)},
                                    {"renewed_seconds_ago", seconds(survey.now - lease.renewed)},
                                    {"expires_in_seconds", seconds(lease.expires - survey.now)}});
  }
  for (const LogCommit& commit : survey.versions) {
    result["version_rows"].push_back({{"version", commit.version},
                                      {"kind", to_string(commit.kind)},
                                      {"epoch", commit.epoch},
                                      {"time", static_cast<double>(commit.time.count()) / 1000},
                                      {"changed", commit.changed},
                                      {"density", density_of(commit).value_or(0)},
                                      {"delta_bytes", commit.delta_bytes},
                                      {"label", commit.label}});
  }
  return result;
}

}  // namespace sparsecast::tools
