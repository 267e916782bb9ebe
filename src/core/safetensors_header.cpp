// SPDX-License-Identifier: Apache-2.0

// Parses the header of a safetensors file, which may be hostile. Every number is checked against the file's real size
// before it determines an allocation.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
/// Metadata that says which tensors of integers hold two 4-bit numbers a byte: a JSON object of names, {"w": "I4X2"}.
constexpr const char* kDTypesKey = "sparsecast.dtypes";
/// The name of kF4X2 in files.
constexpr std::string_view kFp4Name = "F4";

/// Numbers of less than a byte that fill whole bytes.
struct PackedNumbers {
  std::uint64_t numbers = 1;
  std::uint64_t bytes = 1;
};

/// Returns how numbers of a dtype are packed into bytes, for dtypes whose shapes count numbers in files and bytes in
/// tables.
PackedNumbers packed_numbers(DType dtype) {
  if (dtype == DType::kF4X2) return {2, 1};
  return is_fp6(dtype) ? PackedNumbers{4, 3} : PackedNumbers{};
}

/// Last dimension of a tensor of pairs that a file has as I32, eight numbers a word: the bytes of a word.
constexpr std::uint64_t kWordBytes = 4;

[[noreturn]] void corrupt(const std::string& message, const std::string& where = {}) {
  throw Error(ErrorCode::kCorrupt, message, where);
}

[[noreturn]] void unsupported(const std::string& message, const std::string& where = {}) {
  throw Error(ErrorCode::kUnsupported, message, where);
}

std::string where(const std::string& name) { return fmt::format("tensor '{}'", excerpt(name)); }

/// One tensor's fields as they come in; -1 and empty mean "not seen".
struct RawEntry {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offsets;
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
};

/// Depth at which the reference reader refuses nested JSON.
constexpr int kMaxDepth = 128;

/// Reads the grammar that the reference reader (safetensors 0.8) takes: an object of objects, `__metadata__` with
/// strings or null, tensors with dtype, shape and data_offsets; it ignores other fields, and of two equal keys in the
/// metadata the last holds. Two tensors of one name are refused: the reference reader would take the last, but the
/// intended one is unknown. nlohmann's DOM would hide them and allow any depth; SAX events allow rejecting both.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<RawEntry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t) override {
    if (ignores_) return go_deeper();
    if (depth_ == 2 && !in_metadata_ && field_ == "dtype") unsupported("a dtype that is not a string", context());
    if (in_array_ || depth_ >= 2) corrupt("the header is nested too deeply", context());
    if (depth_ == 1 && !in_metadata_) {
      if (entries.size() == TensorTable::kMaxTensors) {
        unsupported(fmt::format("more than {} tensors", TensorTable::kMaxTensors), context());
      }
      entries.push_back({top_key_, {}, {}, {}, false, false, false});
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (ignores_) return end_ignored();
    --depth_;
    if (depth_ == 1) in_metadata_ = false;
    return true;
  }
  bool key(string_t& text) override {
    if (ignores_) return true;
    if (depth_ == 1) {
      if (!names_.insert(text).second) corrupt("the name occurs twice in the header", where(text));
      top_key_ = text;
      in_metadata_ = text == kMetadataKey;
      return true;
    }
    field_ = text;
    if (in_metadata_) return true;
    RawEntry& entry = entries.back();
    bool* seen = text == "dtype"          ? &entry.has_dtype
                 : text == "shape"        ? &entry.has_shape
                 : text == "data_offsets" ? &entry.has_offsets
                                          : nullptr;
    ignores_ = seen == nullptr;
    if (ignores_) return true;
    if (*seen) corrupt(fmt::format("field '{}' occurs twice", text), context());
    *seen = true;
    return true;
  }
  bool string(string_t& text) override {
    if (ignores_) return end_scalar();
    if (depth_ != 2 || in_array_) corrupt("a string where none belongs", context());
    if (in_metadata_) {
      metadata[field_] = text;
    } else if (field_ == "dtype") {
      entries.back().dtype = text;
    } else {
      corrupt(fmt::format("field '{}' is a string", field_), context());
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (ignores_) return go_deeper();
    if (depth_ == 1 && !in_metadata_) unsupported("a tensor whose fields have no names", context());
    if (depth_ != 2 || in_array_ || in_metadata_ || field_ == "dtype")
      corrupt("an array where none belongs", context());
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    if (ignores_) return end_ignored();
    in_array_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (ignores_) return end_scalar();
    if (!in_array_) corrupt("a number where none belongs", context());
    std::vector<std::uint64_t>& list = field_ == "shape" ? entries.back().shape : entries.back().offsets;
    if (field_ == "shape" && list.size() == TensorTable::kMaxRank) {
      unsupported(fmt::format("more than {} dimensions", TensorTable::kMaxRank), context());
    }
    if (field_ != "shape" && list.size() == 2) corrupt("more than two data_offsets", context());
    list.push_back(number);
    return true;
  }
  bool number_integer(number_integer_t) override {
    if (ignores_) return end_scalar();
    corrupt("a negative number", context());
  }
  bool number_float(number_float_t, const string_t&) override {
    if (ignores_) return end_scalar();
    corrupt("a number that is not an integer", context());
  }
  bool null() override {
    if (ignores_) return end_scalar();
    if (depth_ != 1 || !in_metadata_) corrupt("a null where none belongs", context());
    in_metadata_ = false;
    return true;
  }
  bool boolean(bool) override {
    if (ignores_) return end_scalar();
    corrupt("a boolean where none belongs", context());
  }
  bool binary(binary_t&) override { corrupt("binary data where none belongs", context()); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    corrupt(fmt::format("the header is not valid JSON at byte {}", position + 8));
  }

 private:
  std::string context() const { return top_key_.empty() ? std::string{} : where(top_key_); }

  bool go_deeper() {
    if (depth_ + ++ignored_depth_ == kMaxDepth) corrupt("the header is nested too deeply", context());
    return true;
  }
  bool end_scalar() {
    ignores_ = ignored_depth_ != 0;
    return true;
  }
  bool end_ignored() {
    --ignored_depth_;
    return end_scalar();
  }

  int depth_ = 0;
  bool in_array_ = false;
  bool in_metadata_ = false;
  bool ignores_ = false;  ///< Within the value of a field that is not known.
  int ignored_depth_ = 0;
  std::string top_key_;
  std::string field_;
  std::set<std::string> names_;
};

/// Refuses names that tables cannot hold.
void require_name(const std::string& name) {
  constexpr std::size_t kMost = 0xFFFF;
  if (!is_utf8(name)) corrupt("the name is not UTF-8", where(name));
  if (name.empty()) unsupported("a tensor without a name", where(name));
  if (name.size() > kMost)
    unsupported(fmt::format("a name of {} bytes: more than {}", name.size(), kMost), where(name));
  if (name.find('\0') != std::string::npos) unsupported("a name with a zero byte", where(name));
}

SafetensorsEntry check_entry(const RawEntry& raw, std::uint64_t data_bytes, std::uint64_t data_begin) {
  const std::string context = where(raw.name);
  require_name(raw.name);
  if (!raw.has_dtype || !raw.has_shape || !raw.has_offsets || raw.offsets.size() != 2) {
    corrupt("dtype, shape or data_offsets is missing", context);
  }
  std::optional<DType> dtype = dtype_from_name(raw.dtype);
  if (dtype && is_pair(*dtype)) dtype = std::nullopt;  // Its name is not one of the format.
  if (raw.dtype == kFp4Name) dtype = DType::kF4X2;
  if (!dtype) unsupported(fmt::format("dtype '{}' is not supported", excerpt(raw.dtype)), context);
  const std::uint64_t begin = raw.offsets[0];
  const std::uint64_t end = raw.offsets[1];
  if (begin > end || end > data_bytes) {
    corrupt(fmt::format("data [{}, {}) lies outside the {} bytes of data", begin, end, data_bytes), context);
  }
  std::vector<std::uint64_t> shape = raw.shape;
  if (const auto [numbers, bytes] = packed_numbers(*dtype); numbers != 1) {
    if (shape.empty() || shape.back() % numbers != 0) {
      unsupported(
          fmt::format("rows of {} whose length is no multiple of {}: they would share bytes", raw.dtype, numbers),
          context);
    }
    shape.back() = shape.back() / numbers * bytes;
  }
  const std::uint64_t most = (end - begin) / element_size(*dtype);
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : shape) elements = dim == 0 ? 0 : elements;
  for (const std::uint64_t dim : shape) {
    if (elements == 0) break;
    if (dim > most / elements) corrupt("the shape does not fit into its data", context);
    elements *= dim;
  }
  if (elements > TensorTable::kMaxElements || elements * element_size(*dtype) != end - begin) {
    corrupt(fmt::format("{} bytes of data for {} elements of {}", end - begin, elements, raw.dtype), context);
  }
  return {{raw.name, *dtype, std::move(shape)}, data_begin + begin};
}

/// Returns the tensor with the dtype that its file's metadata gives it.
TensorSpec as_declared(const TensorSpec& spec, const nlohmann::json& dtype) {
  const std::optional<DType> pairs = dtype.is_string() ? dtype_from_name(dtype.get<std::string>()) : std::nullopt;
  std::optional<TensorSpec> declared = pairs ? as_pairs(spec, *pairs) : std::nullopt;
  if (!declared) {
    corrupt(fmt::format("metadata '{}' gives {} to a tensor of {}", kDTypesKey, excerpt(dtype.dump()),
                        to_string(spec.dtype)),
            where(spec.name));
  }
  return std::move(*declared);
}

void declare_pairs(const std::string& metadata, std::vector<SafetensorsEntry>& entries) {
  // Drops deeper nested values, which cannot be names of dtypes.
  const auto flat = [](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) { return depth <= 1; };
  const nlohmann::json dtypes = nlohmann::json::parse(metadata, flat, false);
  if (!dtypes.is_object()) corrupt(fmt::format("metadata '{}' is not a JSON object", kDTypesKey));
  for (SafetensorsEntry& entry : entries) {
    if (const auto found = dtypes.find(entry.spec.name); found != dtypes.end()) {
      entry.spec = as_declared(entry.spec, *found);
    }
  }
}

/// Returns dtype and shape as a header states them. Pairs have the dtypes that engines' checkpoints use: words, or
/// bytes.
std::pair<std::string_view, std::vector<std::uint64_t>> type_in_file(const TensorSpec& spec) {
  if (is_fp6(spec.dtype)) {
    const auto [numbers, bytes] = packed_numbers(spec.dtype);
    std::vector<std::uint64_t> shape = spec.shape;
    shape.back() = shape.back() / bytes * numbers;
    return {to_string(spec.dtype), std::move(shape)};
  }
  if (!is_pair(spec.dtype)) return {to_string(spec.dtype), spec.shape};
  if (spec.shape.size() < 2 || spec.shape.back() != kWordBytes) return {to_string(DType::kU8), spec.shape};
  return {to_string(DType::kI32), {spec.shape.begin(), spec.shape.end() - 1}};
}

/// Returns the metadata with the declarations that the tensors need.
std::map<std::string, std::string> with_declarations(std::map<std::string, std::string> metadata,
                                                     std::span<const TensorSpec> specs) {
  nlohmann::json dtypes;
  for (const TensorSpec& spec : specs) {
    if (is_pair(spec.dtype)) dtypes[spec.name] = to_string(spec.dtype);
  }
  metadata.erase(kDTypesKey);
  if (!dtypes.is_null()) metadata[kDTypesKey] = dtypes.dump();
  return metadata;
}

/// Rejects everything that parse() would not read back.
void check_writable(std::span<const TensorSpec> specs, const std::map<std::string, std::string>& metadata) {
  const TensorTable table(std::vector<TensorSpec>(specs.begin(), specs.end()));
  for (const TensorSpec& spec : table) {
    if (spec.name == kMetadataKey) throw Error(ErrorCode::kUsage, "the format reserves this name", where(spec.name));
    if (spec.name.find('\0') != std::string::npos) {
      throw Error(ErrorCode::kUsage, "a name with a zero byte", where(spec.name));
    }
    if (!is_fp6(spec.dtype)) continue;
    const auto [numbers, bytes] = packed_numbers(spec.dtype);
    const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / numbers * bytes;
    if (spec.shape.empty() || spec.shape.back() % bytes != 0 || spec.shape.back() > most) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("rows of {} whose bytes are no multiple of {}", to_string(spec.dtype), bytes),
                  where(spec.name));
    }
  }
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) throw Error(ErrorCode::kUsage, "metadata that is not UTF-8");
  }
}

}  // namespace

std::optional<TensorSpec> as_pairs(const TensorSpec& spec, DType pairs) {
  const bool words = spec.dtype == DType::kI32 && spec.shape.size() < TensorTable::kMaxRank;
  if (!is_pair(pairs) || !(words || spec.dtype == DType::kU8 || spec.dtype == DType::kI8)) return std::nullopt;
  TensorSpec declared = spec;
  if (words) declared.shape.push_back(kWordBytes);
  declared.dtype = pairs;
  return declared;
}

TensorTable with_pairs(const TensorTable& table, const PairsOf& pairs_of) {
  std::vector<TensorSpec> specs(table.begin(), table.end());
  for (TensorSpec& spec : specs) {
    const std::optional<DType> pairs = pairs_of(spec);
    if (!pairs || *pairs == spec.dtype) continue;
    std::optional<TensorSpec> declared = as_pairs(spec, *pairs);
    if (!declared) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("{} cannot be {}: pairs of 4-bit numbers are U8, I8 or I32 in files",
                              to_string(spec.dtype), to_string(*pairs)),
                  where(spec.name));
    }
    spec = std::move(*declared);
  }
  return TensorTable(std::move(specs));
}

SafetensorsHeader SafetensorsHeader::parse(std::span<const std::byte> bytes, std::uint64_t file_bytes) {
  if (bytes.size() < 8 || file_bytes < 8) corrupt("the file is shorter than the 8 bytes of its header length");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > kMaxHeaderBytes)
    corrupt(fmt::format("a header of {} bytes is over the limit of {}", length, kMaxHeaderBytes));
  if (length > file_bytes - 8 || length > bytes.size() - 8) {
    corrupt(fmt::format("the header needs {} bytes, the file has {} after its length", length, file_bytes - 8));
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + 8;
  const std::string_view blanks = " \t\r\n";
  if (const std::size_t begin = std::string_view(text, length).find_first_not_of(blanks);
      begin == std::string_view::npos || text[begin] != '{') {
    corrupt("the header does not begin with '{' at byte 8");
  }
  // The JSON parser takes a zero byte for the end of its input, so bytes after it would not be checked.
  if (const void* zero = std::memchr(text, 0, length)) {
    corrupt(fmt::format("a zero byte in the header at byte {}", static_cast<const char*>(zero) - text + 8));
  }
  HeaderEvents events;
  nlohmann::json::sax_parse(text, text + length, &events);

  SafetensorsHeader header;
  header.metadata = std::move(events.metadata);
  header.data_begin = 8 + length;
  const std::uint64_t data_bytes = file_bytes - header.data_begin;
  header.entries.reserve(events.entries.size());
  for (const RawEntry& raw : events.entries) header.entries.push_back(check_entry(raw, data_bytes, header.data_begin));
  // The specs say it from here on, so that it cannot contradict them when they are written again.
  if (const auto dtypes = header.metadata.extract(kDTypesKey)) declare_pairs(dtypes.mapped(), header.entries);
  // Stable: empty tensors at one offset keep the order that they have in the header.
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::pair(a.begin, a.spec.bytes()) < std::pair(b.begin, b.spec.bytes());
                   });
  std::uint64_t next = header.data_begin;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != next) {
      corrupt(fmt::format("data begins at offset {}, but the tensor before ends at {}", entry.begin, next),
              where(entry.spec.name));
    }
    next += entry.spec.bytes();
  }
  if (next != file_bytes) corrupt(fmt::format("the tensors end at offset {}, the file at {}", next, file_bytes));
  return header;
}

SafetensorsHeader SafetensorsHeader::read(File& file) {
  const std::uint64_t size = file.size();
  std::vector<std::byte> bytes(std::min<std::uint64_t>(size, sizeof(std::uint64_t)));
  file.read_at(0, bytes);
  if (bytes.size() == sizeof(std::uint64_t)) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    if (length <= kMaxHeaderBytes && length <= size - sizeof(length)) {
      bytes.resize(sizeof(length) + length);
      file.read_at(sizeof(length), std::span(bytes).subspan(sizeof(length)));
    }
  }
  return parse(bytes, size);
}

std::vector<std::byte> SafetensorsHeader::serialize(std::span<const TensorSpec> specs,
                                                    const std::map<std::string, std::string>& metadata) {
  check_writable(specs, metadata);
  std::string text = "{";
  if (const auto all = with_declarations(metadata, specs); !all.empty()) {
    text += fmt::format("\"{}\":{}", kMetadataKey, nlohmann::json(all).dump());
  }
  std::uint64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    if (text.size() > 1) text += ',';
    const auto [dtype, shape] = type_in_file(spec);
    text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", nlohmann::json(spec.name).dump(),
                        dtype, fmt::join(shape, ","), offset, offset + spec.bytes());
    offset += spec.bytes();
  }
  text += '}';
  // The data begins aligned for every dtype.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) throw Error(ErrorCode::kUsage, "the header would exceed the format's limit");
  const std::uint64_t length = text.size();
  std::vector<std::byte> bytes(8 + text.size());
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, text.data(), text.size());
  return bytes;
}

}  // namespace sparsecast
