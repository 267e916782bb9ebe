// SPDX-License-Identifier: Apache-2.0
#include "tools/log/log_survey.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/parallel.hpp"
#include "log/reader/retention.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::tools {
namespace {

/// Number of threads that read records. Records are small, so reading them is bound by the latency of the store.
constexpr int kReadingThreads = 8;

ObjectTotal total_of(ObjectStore& store, const std::string& prefix) {
  ObjectTotal total;
  for (const StoredObject& object : store.list(prefix)) {
    ++total.objects;
    total.bytes += object.bytes;
  }
  return total;
}

void add(ObjectTotal& total, const ObjectTotal& more) {
  total.objects += more.objects;
  total.bytes += more.bytes;
}

}  // namespace

std::optional<double> density_of(const LogCommit& commit) {
  if (commit.kind != CommitKind::kDelta || commit.elements == 0) return std::nullopt;
  return static_cast<double>(commit.changed) / static_cast<double>(commit.elements);
}

std::vector<LogCommit> read_commits(LogReader& reader, std::uint64_t first, std::uint64_t last) {
  std::vector<LogCommit> commits(last - first + 1);
  parallel_for(kReadingThreads, commits.size(), [&](std::size_t, std::size_t i) {
    std::optional<LogCommit> commit = reader.commit(first + i);
    if (!commit) {
      throw Error(ErrorCode::kMixed, fmt::format("commit {} is missing, and there are later ones", first + i),
                  reader.store().location());
    }
    commits[i] = std::move(*commit);
  });
  return commits;
}

LogSurvey survey_log(OpenLog& log, std::uint64_t most) {
  LogSurvey survey;
  survey.location = log.store->location();
  survey.now = unix_milliseconds(log.store->wall_now());
  survey.head = log.head();
  survey.floor = log.reader->floor();
  const std::uint64_t first = std::max(survey.floor, survey.head.version - std::min(survey.head.version, most - 1));
  survey.versions = read_commits(*log.reader, first, survey.head.version);
  if (std::optional<LogCatalog> catalog = log.reader->catalog()) {
    survey.has_catalog = true;
    survey.merged = std::move(catalog->merged);
    survey.anchors = std::move(catalog->anchors);
  }
  survey.leases = log.reader->leases();
  survey.deltas = total_of(*log.store, "deltas/");
  survey.merged_total = total_of(*log.store, "merged/");
  survey.anchor_total = total_of(*log.store, "anchors/");
  for (const char* prefix : {"commits/", "catalog", "floor", "leases/"}) {
    add(survey.records, total_of(*log.store, prefix));
  }
  return survey;
}

}  // namespace sparsecast::tools
