// SPDX-License-Identifier: Apache-2.0
#include "tools/log/log_survey.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/parallel.hpp"
#include "log/reader/retention.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::tools {
namespace {

constexpr int kReadingThreads = 8;  ///< Records are small, so reading them is bound by the latency of the store.

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

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
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

LayerHeat survey_layers(FileSystem& fs, OpenLog& log, const LogSurvey& survey, const std::string& scratch,
                        const Progress& progress) {
  struct SurveyedLayer {
    std::uint64_t elements = 0;
    std::vector<std::uint64_t> changed;
  };
  std::map<std::string, SurveyedLayer, decltype(&natural_less)> layers(&natural_less);
  const std::string path = scratch + "/delta.scd";
  for (std::size_t v = 0; v < survey.versions.size(); ++v) {
    const LogCommit& commit = survey.versions[v];
    if (progress) progress("reading deltas", v, survey.versions.size());
    if (commit.kind != CommitKind::kDelta) continue;
    log.reader->fetch_delta({commit.version - 1, commit.version, commit.delta, commit.delta_bytes}, fs, path);
    const DeltaFile delta = DeltaFile::open(fs, path);
    if (layers.empty()) {
      for (std::size_t t = 0; t < delta.table().size(); ++t) {
        SurveyedLayer& layer = layers[layer_of(delta.table()[t].name)];
        layer.elements += delta.table()[t].elements();
        layer.changed.resize(survey.versions.size());
      }
    }
    for (const DeltaReport::Tensor& tensor : delta.report().tensors) {
      layers.at(layer_of(delta.table()[tensor.index].name)).changed[v] += tensor.changed;
    }
    fs.remove(path);
  }
  LayerHeat heat;
  for (auto& [name, layer] : layers) {
    heat.layers.push_back(name);
    heat.elements.push_back(layer.elements);
    heat.changed.push_back(std::move(layer.changed));
  }
  return heat;
}

std::string layer_of(const std::string& tensor) {
  std::string layer;
  std::size_t begin = tensor.starts_with("model.") ? 6 : 0;
  while (begin < tensor.size()) {
    const std::size_t end = std::min(tensor.find('.', begin), tensor.size());
    const std::string_view part = std::string_view(tensor).substr(begin, end - begin);
    const bool last = end == tensor.size();
    if (last && !layer.empty()) return layer;
    if (!layer.empty()) layer += '.';
    layer += part;
    if (is_number(part)) return layer;
    begin = end + 1;
  }
  return layer.empty() ? tensor : layer;
}

bool natural_less(const std::string& a, const std::string& b) {
  std::size_t i = 0;
  std::size_t j = 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (!digit(a[i]) || !digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    std::size_t a_end = i;
    std::size_t b_end = j;
    while (a_end < a.size() && digit(a[a_end])) ++a_end;
    while (b_end < b.size() && digit(b[b_end])) ++b_end;
    if (a_end - i != b_end - j) return a_end - i < b_end - j;
    const int order = a.compare(i, a_end - i, b, j, b_end - j);
    if (order != 0) return order < 0;
    i = a_end, j = b_end;
  }
  return a.size() - i < b.size() - j;
}

}  // namespace sparsecast::tools
