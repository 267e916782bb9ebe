// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/utf8.hpp"
#include "layout/layout_json_forms.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

void check_length(const JsonPlace& place, std::size_t least, std::size_t most) {
  if (place.size() < least || place.size() > most) place.fail(fmt::format("an array of {}", place.size()));
}

std::vector<TensorSpec> read_specs(const JsonPlace& place) {
  if (place.size() > TensorTable::kMaxTensors) place.fail("too many tensors");
  std::vector<TensorSpec> specs;
  specs.reserve(place.size());
  for (std::size_t i = 0; i < place.size(); ++i) {
    const JsonPlace entry = place[i];
    check_length(entry, 3, 3);
    specs.push_back({entry[0].text(), read_dtype(entry[1]), entry[2].numbers(TensorTable::kMaxRank)});
  }
  return specs;
}

LocalTensor read_local(const JsonPlace& place) {
  check_length(place, 3, 3);
  return {place[0].text(), read_dtype(place[1]), place[2].number(TensorTable::kMaxElements)};
}

Shard read_shard(const JsonPlace& place) {
  check_length(place, 6, 7);
  constexpr std::uint64_t kMaxIndex = 0xFFFFFFFF;
  constexpr std::uint64_t kMaxStride = 0x7FFFFFFFFFFFFFFF;
  Shard shard;
  shard.tensor = static_cast<std::uint32_t>(place[0].number(kMaxIndex));
  shard.local = static_cast<std::uint32_t>(place[1].number(kMaxIndex));
  shard.first = place[2].number();
  shard.box.offset = place[3].numbers(kMaxLayoutDims);
  shard.box.extent = place[4].numbers(kMaxLayoutDims);
  const JsonPlace strides = place[5];
  check_length(strides, 0, kMaxLayoutDims);
  for (std::size_t d = 0; d < strides.size(); ++d) {
    shard.strides.push_back(static_cast<std::int64_t>(strides[d].number(kMaxStride)));
  }
  if (place.size() > 6) shard.has_base = place[6].flag();
  return shard;
}

RankLayout read_rank(const JsonPlace& place) {
  place.check_keys({"node", "tensors", "shards"});
  RankLayout rank;
  if (place.has("node")) rank.node = place.at("node").text();
  const JsonPlace tensors = place.at("tensors");
  for (std::size_t i = 0; i < tensors.size(); ++i) rank.tensors.push_back(read_local(tensors[i]));
  const JsonPlace shards = place.at("shards");
  rank.shards.reserve(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) rank.shards.push_back(read_shard(shards[i]));
  return rank;
}

}  // namespace

DType read_dtype(const JsonPlace& place) {
  const auto dtype = dtype_from_name(place.text());
  if (!dtype) place.fail(fmt::format("unknown dtype '{}'", excerpt(place.text())));
  return *dtype;
}

Layout read_explicit_layout(const JsonPlace& root) {
  root.check_keys({"format", "version", "model", "source", "comment", "tensors", "ties", "ranks"});
  std::vector<TensorSpec> specs = read_specs(root.at("tensors"));
  std::vector<TiedTensor> ties;
  if (root.has("ties")) {
    const JsonPlace place = root.at("ties");
    for (std::size_t i = 0; i < place.size(); ++i) {
      check_length(place[i], 2, 2);
      ties.push_back({place[i][0].text(), place[i][1].text()});
    }
  }
  const JsonPlace place = root.at("ranks");
  if (place.size() > Layout::kMaxRanks) place.fail("too many ranks");
  std::vector<RankLayout> ranks;
  ranks.reserve(place.size());
  for (std::size_t r = 0; r < place.size(); ++r) ranks.push_back(read_rank(place[r]));
  return Layout(TensorTable(std::move(specs)), std::move(ranks), std::move(ties));
}

}  // namespace sparsecast
