// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/layout.hpp"

#include <fmt/format.h>

#include "core/utf8.hpp"
#include "layout/layout_json_model.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

DType read_dtype(const JsonPlace& place) {
  const auto dtype = dtype_from_name(place.text());
  if (!dtype) place.fail(fmt::format("unknown dtype '{}'", excerpt(place.text())));
  return *dtype;
}

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

constexpr const char* kFormat = "sparsecast-layout";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

Layout read_form(const JsonPlace& root, const LayoutFileOptions& options) {
  if (root.at("format").text() != kFormat) root.at("format").fail(fmt::format("this is not '{}'", kFormat));
  if (root.at("version").number() != kVersion) {
    throw Error(ErrorCode::kUnsupported, fmt::format("a layout of version {}", root.at("version").number()), "version");
  }
  if (!root.has("ranks")) return read_rules_layout(root, options);
  if (options.scale_down != 1) {
    throw Error(ErrorCode::kUsage, "a layout in the explicit form cannot be scaled down");
  }
  return read_explicit_layout(root);
}

/// Writes the explicit form as text, without an object for each value.
class JsonWriter {
 public:
  explicit JsonWriter(const Layout& layout) : layout_(layout) {}

  std::string text() {
    out_ = fmt::format("{{\"format\":\"{}\",\"version\":{},\n\"tensors\":[", kFormat, kVersion);
    list(layout_.table(), [this](const TensorSpec& spec) {
      append("[{},\"{}\",[{}]]", quoted(spec.name), to_string(spec.dtype), fmt::join(spec.shape, ","));
    });
    out_ += "],\n\"ties\":[";
    list(layout_.ties(), [this](const TiedTensor& tie) { append("[{},{}]", quoted(tie.alias), quoted(tie.original)); });
    out_ += "],\n\"ranks\":[";
    list(layout_.ranks(), [this](const RankLayout& rank) { add_rank(rank); });
    return out_ + "]}\n";
  }

 private:
  template <class... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  static std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }
  template <class Values, class Add>
  void list(const Values& values, const Add& add) {
    bool first = true;
    for (const auto& value : values) {
      out_ += first ? "\n" : ",\n";
      first = false;
      add(value);
    }
  }
  void add_rank(const RankLayout& rank) {
    append("{{\"node\":{},\n\"tensors\":[", quoted(rank.node));
    list(rank.tensors, [this](const LocalTensor& local) {
      append("[{},\"{}\",{}]", quoted(local.name), to_string(local.dtype), local.elements);
    });
    out_ += "],\n\"shards\":[";
    list(rank.shards, [this](const Shard& shard) {
      append("[{},{},{},[{}],[{}],[{}],{}]", shard.tensor, shard.local, shard.first, fmt::join(shard.box.offset, ","),
             fmt::join(shard.box.extent, ","), fmt::join(shard.strides, ","), shard.has_base);
    });
    out_ += "]}";
  }

  const Layout& layout_;
  std::string out_;
};

}  // namespace

Layout parse_layout_json(std::string_view json, const std::string& name, const LayoutFileOptions& options) {
  if (options.scale_down == 0) throw Error(ErrorCode::kUsage, "sizes cannot be divided by 0", name);
  try {
    if (json.size() > kMaxTextBytes) {
      throw Error(ErrorCode::kCorrupt, fmt::format("{} bytes are over the limit of {}", json.size(), kMaxTextBytes));
    }
    const nlohmann::json root = parse_bounded_json(json);
    return read_form(JsonPlace(root), options);
  } catch (const Error& error) {
    // If a layout breaks its rules, the file is at fault if it is read unchanged, and the caller if it is scaled down.
    const bool fault_of_file = error.code() == ErrorCode::kUsage && options.scale_down == 1;
    const ErrorCode code = fault_of_file ? ErrorCode::kCorrupt : error.code();
    throw Error(code, error.message(), error.context()).within(name);
  }
}

Layout read_layout_file(FileSystem& fs, const std::string& path, const LayoutFileOptions& options) {
  const std::vector<std::byte> bytes = read_file(fs, path);
  return parse_layout_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, options);
}

std::string layout_to_json(const Layout& layout) { return JsonWriter(layout).text(); }

}  // namespace sparsecast
