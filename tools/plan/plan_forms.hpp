#pragma once

// The forms in which `sparsecast plan` says what it found.

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "tools/plan/plan_study.hpp"

namespace sparsecast::tools {

/// What is printed one by one, however many there are.
struct Every {
  bool group = false;
  bool rank = false;
};
/// For people: a summary, the groups, and bytes and memory by participant.
void print_plan(const PlanStudy& study, const Every& every, std::ostream& out);

/// For machines: docs/cli.md names the keys.
nlohmann::ordered_json plan_json(const PlanStudy& study);

/// One page with everything in it, no scripts; also well-formed XML.
std::string plan_html(const PlanStudy& study);

/// The words for a delta's size that the model assumes: "1 % of the elements change, 1.3 bytes each".
std::string density_words(const PlanRequest& request);
/// Of links and latency: "50 GB/s between nodes, 400 GB/s in a node, 50 us a transfer".
std::string link_words(const PlanRequest& request);
/// Of a number of bytes that is a prediction.
std::string human_size(double bytes);
/// "1.25 s", "3.4 ms", "12 us"
std::string human_time(double seconds);

}  // namespace sparsecast::tools
