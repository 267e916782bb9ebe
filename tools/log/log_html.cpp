// SPDX-License-Identifier: Apache-2.0

// sparsecast log status --html: one self-contained page.

#include <fmt/format.h>

#include "tools/common/page.hpp"
#include "tools/common/report.hpp"
#include "tools/log/log_picture.hpp"

namespace sparsecast::tools {
namespace {

constexpr std::size_t kMostVersionRows = 40;

constexpr const char* kStyle = R"(
:root{--density:#1d6fb8;--bytes:#3a9d8f;--anchor:#b3541e;--reader:#8a3ffc;
--h0:#fbfbd0;--h1:#e6f5b2;--h2:#c7e9b4;--h3:#7fcdbb;--h4:#41b6c4;--h5:#1d91c0;--h6:#225ea8;--h7:#253494;--h8:#081d58;
--none:#f0f0f2}
@media (prefers-color-scheme:dark){:root{--density:#6db3f2;--bytes:#5cc4b4;--anchor:#f0a35e;--reader:#c5a3ff;
--h0:#1b2550;--h1:#253494;--h2:#225ea8;--h3:#1d91c0;--h4:#41b6c4;--h5:#7fcdbb;--h6:#c7e9b4;--h7:#edf8b1;--h8:#ffffd9;
--none:#202024}}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.8rem;margin:1rem 0}
.card{border:1px solid var(--line);border-radius:8px;padding:.6rem .9rem}
.card b{display:block;font-size:1.35rem;font-weight:600;font-variant-numeric:tabular-nums}
.card span{color:var(--soft);font-size:.85rem}
svg .heading{font-size:14px;stroke-width:0}svg .soft{fill:var(--soft)}
.line{fill:none;stroke:var(--density);stroke-width:1.8;stroke-linejoin:round}.area{fill:var(--density);fill-opacity:.13}
.dot{fill:var(--density)}.bar{fill:var(--bytes)}.event{stroke:var(--soft);stroke-dasharray:3 3;fill:none}
.anchor{fill:var(--anchor)}.merged{fill:var(--bytes);fill-opacity:.65}.reader{fill:var(--reader)}
.behind{stroke:var(--reader);stroke-width:3;stroke-opacity:.35;fill:none}
.h0{fill:var(--h0)}.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}.h4{fill:var(--h4)}.h5{fill:var(--h5)}
.h6{fill:var(--h6)}.h7{fill:var(--h7)}.h8{fill:var(--h8)}.none{fill:var(--none)}
svg rect:hover{stroke:var(--text);stroke-width:1}
)";

std::string card(const std::string& number, const std::string& words) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escape_markup(number),
                     escape_markup(words));
}

std::string cards(const LogSurvey& survey) {
  const LogCommit& head = survey.head;
  std::string out = "<div class=\"cards\">\n";
  out += card(std::to_string(head.version), fmt::format("newest version, {} old{}{}", human_duration(survey.head_age()),
                                                        head.label.empty() ? "" : ": ", head.label));
  const std::optional<double> density = density_of(head);
  out += card(density ? human_percent(*density) : "-", "of it changed");
  out += card(human_bytes(head.delta_bytes), "its delta");
  out += card(human_bytes(survey.total_bytes()), "kept in all");
  out += card(std::to_string(survey.floor), "oldest version kept");
  out += card(survey.anchors.empty() ? "none" : std::to_string(survey.anchors.back().version), "newest anchor");
  out += card(std::to_string(survey.leases.size()), survey.leases.size() == 1 ? "reader" : "readers");
  return out + "</div>\n";
}

std::string facts(const LogSurvey& survey) {
  std::string out = "<dl>\n";
  const auto add = [&](const char* term, const std::string& text) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", term, escape_markup(text));
  };
  const auto total = [](const ObjectTotal& of) {
    return fmt::format("{} in {} {}", human_bytes(of.bytes), human_count(of.objects),
                       of.objects == 1 ? "object" : "objects");
  };
  add("stream", fmt::format("{}, epoch {}", to_hex(survey.head.stream), survey.head.epoch));
  add("model", fmt::format("{} elements", human_count(survey.head.elements)));
  add("keys", signers_in_words(survey));
  add("deltas", total(survey.deltas));
  const std::string spans = spans_in_words(survey);
  add("merged deltas", total(survey.merged_total) + (spans.empty() ? "" : "; spans " + spans));
  add("anchors", total(survey.anchor_total));
  add("records", total(survey.records));
  add("digest", to_hex(survey.head.digest.value));
  add("seen", human_moment(survey.now));
  return out + "</dl>\n";
}

std::string reader_table(const LogSurvey& survey) {
  if (survey.leases.empty()) return "<p class=\"note\">No reader holds a lease.</p>\n";
  PageTable table({"reader", "version", "behind", "renewed", "expires"}, {true, false, false, false, false});
  for (const LogLease& lease : survey.leases) {
    table.add({lease.name, std::to_string(lease.version),
               std::to_string(survey.head.version - std::min(survey.head.version, lease.version)),
               human_duration(survey.now - lease.renewed) + " ago",
               "in " + human_duration(lease.expires - survey.now)});
  }
  return table.end();
}

std::string version_table(const LogSurvey& survey) {
  PageTable table({"version", "kind", "epoch", "time", "changed", "density", "bytes", "label"},
                  {false, true, false, true, false, false, false, true});
  std::size_t rows = 0;
  for (auto commit = survey.versions.rbegin(); commit != survey.versions.rend() && rows < kMostVersionRows;
       ++commit, ++rows) {
    const std::optional<double> density = density_of(*commit);
    table.add({std::to_string(commit->version), to_string(commit->kind), std::to_string(commit->epoch),
               human_moment(commit->time), human_count(commit->changed), density ? human_percent(*density) : "",
               human_count(commit->delta_bytes), commit->label});
  }
  return table.end();
}

}  // namespace

std::string status_html(const LogSurvey& survey, const LayerHeat& heat) {
  std::string page = page_start("Delta log " + survey.location, kStyle);
  page += cards(survey) + status_svg(survey, heat);
  page += "<h2>Readers</h2>\n" + reader_table(survey);
  page += "<h2>Log</h2>\n" + facts(survey);
  page += "<h2>Newest versions</h2>\n" + version_table(survey);
  return page + page_end();
}

}  // namespace sparsecast::tools
