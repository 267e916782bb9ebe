// SPDX-License-Identifier: Apache-2.0
#pragma once

// sparsecast plan --study: dense transfers whose times others have published, predicted by the same model as a sync.

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "tools/plan/plan_study.hpp"

namespace sparsecast::tools {

/// A transfer of all weights whose time somebody has published.
struct PublishedTransfer {
  const char* model;
  const char* trainer;  ///< Name of the trainer's layout file, without its folder.
  const char* engine;   ///< Name of the engine's layout file, without its folder.
  std::size_t engines;
  double bytes_per_byte;  ///< Bytes on the wire per byte of bf16 weights.
  /// The published time in seconds, or the lower end of its range; most_seconds is the upper end.
  double least_seconds;
  double most_seconds;
  const char* source;   ///< Address (URL) of the publication.
  const char* assumed;  ///< What the publication does not say, so that it is assumed here.

  double middle() const { return (least_seconds + most_seconds) / 2; }
};

/// What is predicted for a sync of a delta by the plan of a published transfer.
struct SparseSync {
  double density_percent = 0;
  double bytes_per_change = 0;
  double delta_bytes = 0;
  PhaseTimes phases;
};

struct PublishedRow {
  const PublishedTransfer* published = nullptr;
  std::size_t senders = 0;    ///< Number of the trainer's ranks.
  std::size_t receivers = 0;  ///< Number of the ranks of all engines together.
  double wire_bytes = 0;      ///< Bytes of all routes, each counted once.
  double line_seconds = 0;    ///< Predicted time in seconds if links reach their full rate.
  double seconds = 0;         ///< Predicted time in seconds if links reach PublishedStudy::share of their rate.
  std::vector<SparseSync> syncs;
};

struct PublishedStudy {
  PlanRequest request;  ///< Links and ends that all rows share.
  /// Share of the links' rate, 0 to 1, at which the predicted time of the first row is the published one.
  double share = 0;
  std::vector<PublishedRow> rows;
};

/// Plans and predicts the published transfers, with the layout files in the folder `layouts`, then syncs by the same
/// plans at several densities. Uses only links and ends of `request`. Throws what reading and planning throw.
PublishedStudy study_published(FileSystem& fs, const std::string& layouts, const PlanRequest& request);

void print_published(const PublishedStudy& study, std::ostream& out);
/// Returns `study` as the JSON object whose keys docs/cli.md lists.
nlohmann::ordered_json published_json(const PublishedStudy& study);

}  // namespace sparsecast::tools
