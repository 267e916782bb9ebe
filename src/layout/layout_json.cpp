// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/layout_json.hpp"

#include <fmt/format.h>

#include "core/utf8.hpp"
#include "layout/layout_json_forms.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

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

/// The explicit form as text, without an object for each value.
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
    // A refusal by a layout's rules is the file's fault when the file is read as it stands, and the caller's when it
    // is scaled down.
    const bool fault_of_file = error.code() == ErrorCode::kUsage && options.scale_down == 1;
    const ErrorCode code = fault_of_file ? ErrorCode::kCorrupt : error.code();
    throw Error(code, error.message(), error.context()).within(name);
  }
}

Layout read_layout_file(FileSystem& fs, const std::string& path, const LayoutFileOptions& options) {
  const auto mapping = fs.map(path);
  const auto bytes = mapping->bytes();
  return parse_layout_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, options);
}

std::string layout_to_json(const Layout& layout) { return JsonWriter(layout).text(); }

}  // namespace sparsecast
