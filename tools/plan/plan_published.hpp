// SPDX-License-Identifier: Apache-2.0
#pragma once

// sparsecast plan --study: dense transfers whose times others have published, predicted by the same model as a sync.

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "tools/plan/plan_study.hpp"

namespace sparsecast::tools {

/// A transfer of all weights, as somebody has published it.
struct PublishedTransfer {
  const char* model;
  const char* trainer;  ///< Layout file, without its folder.
  const char* engine;   ///< Layout file, without its folder.
  std::size_t engines;
  double bytes_per_byte;  ///< Bytes on the wire for a byte of bf16.
  double least_seconds;   ///< The published time, or the range of it.
  double most_seconds;
  const char* source;   ///< Address of the publication.
  const char* assumed;  ///< What it does not say, and is assumed here.

  double middle() const { return (least_seconds + most_seconds) / 2; }
};

/// A sync by the plan of a published transfer.
struct SparseSync {
  double density_percent = 0;
  double bytes_per_change = 0;
  double delta_bytes = 0;
  PhaseTimes phases;
};

struct PublishedRow {
  const PublishedTransfer* published = nullptr;
  std::size_t senders = 0;    ///< Number of the trainer's ranks.
  std::size_t receivers = 0;  ///< Number of the ranks of all engines.
  double wire_bytes = 0;      ///< Bytes of all routes, each once.
  double line_seconds = 0;    ///< Predicted for links at their full rate.
  double seconds = 0;         ///< Predicted for links at the share of it that the first row reaches.
  std::vector<SparseSync> syncs;
};

struct PublishedStudy {
  PlanRequest request;  ///< Links and ends that all rows share.
  double share = 0;     ///< Calibrated: the share of the links' rate at which the first row takes the published time.
  std::vector<PublishedRow> rows;
};

/// Plans and predicts the published transfers, by the layout files of a folder, then syncs by the same plans at several
/// densities. Only links and ends are taken from the request. Throws what reading and planning do.
PublishedStudy study_published(FileSystem& fs, const std::string& layouts, const PlanRequest& request);

void print_published(const PublishedStudy& study, std::ostream& out);
/// Returns the JSON object whose keys docs/cli.md lists.
nlohmann::ordered_json published_json(const PublishedStudy& study);

}  // namespace sparsecast::tools
