// sparsecast plan --html: one page that needs nothing else.

#include <fmt/format.h>

#include <sstream>

#include "tools/plan_forms.hpp"
#include "tools/plan_picture.hpp"
#include "tools/report.hpp"

namespace sparsecast::tools {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--page:#fff;--text:#1c1c1e;--soft:#6b6b70;--line:#d8d8dc;--box:#55555a}
@media (prefers-color-scheme:dark){:root{--page:#17171a;--text:#ececf0;--soft:#9a9aa2;--line:#3a3a40;--box:#b4b4bc}}
body{margin:2rem auto;max-width:1240px;padding:0 1rem;background:var(--page);color:var(--text);
font:15px/1.45 system-ui,sans-serif}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
svg{width:100%;height:auto;font:11px system-ui,sans-serif}
svg text{fill:var(--text);paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round}
svg .heading{font-weight:bold}.box{fill:var(--box)}.band{fill-opacity:.4}.band:hover{fill-opacity:.75}
.tick{stroke:var(--line);fill:none}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px}
th,td{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;
font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:600}.left{text-align:left}dl{display:grid;grid-template-columns:max-content 1fr;
gap:.15rem 1rem}dt{color:var(--soft)}dd{margin:0}.note{color:var(--soft)}
)";

class Table {
 public:
  /// The columns in `left` hold text, the others numbers.
  Table(const std::vector<std::string>& heading, std::vector<bool> left) : left_(std::move(left)) {
    out_ = "<div class=\"scroll\"><table>\n<thead>";
    add_row(heading, "th");
    out_ += "</thead>\n<tbody>\n";
  }
  void add(const std::vector<std::string>& row) { add_row(row, "td"); }
  std::string end() { return std::move(out_) + "</tbody></table></div>\n"; }

 private:
  void add_row(const std::vector<std::string>& row, const char* cell) {
    out_ += "<tr>";
    for (std::size_t c = 0; c < row.size(); ++c) {
      out_ += fmt::format("<{0}{1}>{2}</{0}>", cell, left_[c] ? " class=\"left\"" : "", escape_markup(row[c]));
    }
    out_ += "</tr>\n";
  }

  std::vector<bool> left_;
  std::string out_;
};

std::string summary(const PlanStudy& study) {
  std::string out = "<dl>\n";
  const auto add = [&](const char* term, const std::string& text) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", term, escape_markup(text));
  };
  const FanoutPlan& plan = *study.plan;
  const PlanRequest& request = study.request;
  add("trainer", fmt::format("{}, {} ranks", request.trainer_file, plan.trainer().ranks.size()));
  add("engines", fmt::format("{} of {}, {} ranks", plan.engines().size(), request.engine_file, study.receivers()));
  add("tensors", fmt::format("{}, {}", human_count(plan.table().size()), human_bytes(plan.table().bytes())));
  add("plan", fmt::format("{} lanes, {} channels in {} rounds, {} transfers; {}", plan.lanes().size(),
                          plan.channels().size(), plan.rounds(), plan.transfers().size(), to_hex(plan.hash())));
  add("delta", fmt::format("{} a sync: {}", human_size(study.delta_bytes), density_words(request)));
  add("wire time",
      fmt::format("{} a sync, {} to seed every engine; predicted for {}", human_time(study.cost.wire_seconds),
                  human_time(study.anchor_seconds), link_words(request)));
  return out + "</dl>\n";
}

std::string channel_table(const PlanStudy& study) {
  Table table({"channel", "round", "sources", "receivers", "lanes", "dense", "delta", "for nothing", "tensors"},
              {false, false, true, true, false, false, false, false, true});
  for (std::size_t c = 0; c < study.channels.size(); ++c) {
    const Channel& channel = study.plan->channels()[c];
    const ChannelStudy& of = study.channels[c];
    table.add({std::to_string(c), std::to_string(channel.round), rank_ranges(channel.sources),
               rank_ranges(channel.receivers), std::to_string(of.lanes.size()), human_bytes(of.dense_bytes),
               human_size(of.delta_bytes), human_size(of.foreign_bytes), join_patterns(of.tensors)});
  }
  return table.end();
}

std::string group_table(const PlanStudy& study) {
  std::vector<std::string> heading = {"group", "ranks", ""};
  std::vector<bool> left = {true, true, true};
  for (const RankColumn& column : rank_columns()) {
    heading.emplace_back(column.label);
    left.push_back(false);
  }
  Table table(heading, left);
  for (std::size_t g = 0; g < study.first_of.size(); ++g) {
    const FanoutGroup& group = study.group(g);
    std::vector<std::string> rows[3] = {
        {group.name, rank_ranges(group.ranks), "least"}, {"", "", "median"}, {"", "", "most"}};
    for (const RankColumn& column : rank_columns()) {
      const Spread spread = spread_of(study, g, column.value);
      rows[0].push_back(human_size(spread.least));
      rows[1].push_back(human_size(spread.median));
      rows[2].push_back(human_size(spread.most));
    }
    for (const std::vector<std::string>& row : rows) table.add(row);
  }
  return table.end();
}

}  // namespace

std::string plan_html(const PlanStudy& study) {
  const Picture picture = make_picture(study);
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>Fan-out plan</title>"
      "<style>{}</style></head>\n<body>\n<h1>Fan-out plan</h1>\n",
      kStyle);
  page += summary(study);
  page +=
      "<h2>Senders, channels, receivers</h2>\n<p class=\"note\">Left, the bytes that leave each sender, once, however "
      "many ranks get them; right, those that one rank of a box gets for itself.";
  if (picture.silent > 0) page += fmt::format(" {} trainer ranks send nothing: others hold the same.", picture.silent);
  page += "</p>\n" + flow_svg(picture) + channel_table(study);
  page +=
      "<h2>Schedule</h2>\n<p class=\"note\">A row a channel; every rank takes part in the transfers of its channels in "
      "one agreed order.</p>\n" +
      schedule_svg(study, picture);
  page += "<h2>Ranks</h2>\n<p class=\"note\">Bytes of a sync on the wire, and memory.</p>\n" + group_table(study);
  return page + "</body></html>\n";
}

}  // namespace sparsecast::tools
