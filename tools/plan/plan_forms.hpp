// SPDX-License-Identifier: Apache-2.0
#pragma once

// Output formats of `sparsecast plan`.

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "tools/plan/plan_study.hpp"

namespace sparsecast::tools {

/// Which tables are printed row by row, however long they are: that of the groups, and that of the ranks.
struct Every {
  bool group = false;
  bool rank = false;
};
/// Prints a summary of `study`, the groups, and the bytes and memory of each participant.
void print_plan(const PlanStudy& study, const Every& every, std::ostream& out);

/// Returns `study` as the JSON object whose keys docs/cli.md lists.
nlohmann::ordered_json plan_json(const PlanStudy& study);

/// Returns the seconds of each phase as a JSON object, keyed by the phase's name for machines.
nlohmann::ordered_json phases_json(const PhaseTimes& phases);

/// Returns the assumed size of a delta in words: "1 % of the elements change, 1.3 bytes each".
std::string density_words(const PlanRequest& request);
/// Returns the assumed links in words: "50 GB/s between nodes, 400 GB/s in a node, 50 us a transfer".
std::string link_words(const PlanRequest& request);
/// Returns in words what the prediction knows of the ranks' own work, besides the wire.
std::string ends_words(const PlanRequest& request);
/// Returns the predicted phases of a sync in words: "detect 2 ms, encode 1.1 ms, ...".
std::string phase_words(const PhaseTimes& phases);
/// Returns a predicted number of bytes in words, such as "1.2 GB".
std::string human_size(double bytes);
/// Returns a time in words: "1.25 s", "3.4 ms", "12 us".
std::string human_time(double seconds);

}  // namespace sparsecast::tools
