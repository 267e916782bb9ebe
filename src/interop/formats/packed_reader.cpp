// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "core/utf8.hpp"
#include "core/word.hpp"
#include "interop/formats/packed.hpp"
#include "interop/formats/torch_hash.hpp"
#include "interop/formats/zstd_stream.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::packed {
namespace {

[[noreturn]] void corrupt(const std::string& sentence) { throw Error(ErrorCode::kCorrupt, sentence); }

const SafetensorsEntry& entry_of(const SafetensorsHeader& header, const char* name) {
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.spec.name == name) return entry;
  }
  corrupt(fmt::format("there is no tensor '{}'", name));
}

const std::string& metadata_of(const SafetensorsHeader& header, const char* key) {
  const auto found = header.metadata.find(key);
  if (found == header.metadata.end()) corrupt(fmt::format("the metadata has no '{}'", key));
  return found->second;
}

std::uint64_t number_of(const nlohmann::json& param, const char* key) {
  const auto found = param.find(key);
  if (found == param.end() || !found->is_number_unsigned()) corrupt(fmt::format("'{}' is no count", key));
  return found->get<std::uint64_t>();
}

std::string text_of(const nlohmann::json& param, const char* key) {
  const auto found = param.find(key);
  if (found == param.end() || !found->is_string()) corrupt(fmt::format("'{}' is no text", key));
  return found->get<std::string>();
}

/// Blobs of a flush, positions and values, and how their bytes are to be read.
struct Flush {
  bool gaps = false;
  DType dtype = DType::kBF16;  ///< Dtype of the values as stored.
  ConstBytes positions;
  ConstBytes values;
};

/// A manifest entry that has been checked against the table and the blobs.
struct Param {
  std::size_t tensor = 0;
  std::uint32_t width = 4;
  std::uint64_t count = 0;
  ConstBytes positions;
  ConstBytes values;  ///< Values of dtype Flush::dtype.
};

Param parse_param(const nlohmann::json& json, const Flush& flush, const TensorTable& table) {
  if (!json.is_object()) corrupt("a parameter's entry is no JSON object");
  Param param;
  const std::optional<std::size_t> tensor = table.find(text_of(json, "name"));
  if (!tensor) throw Error(ErrorCode::kTableMismatch, "the base has no such tensor");
  param.tensor = *tensor;
  const TensorSpec& spec = table[*tensor];
  const auto shape = json.find("shape");
  if (dtype_from_torch_name(text_of(json, "dtype")) != spec.dtype || shape == json.end() || *shape != spec.shape) {
    throw Error(ErrorCode::kTableMismatch, "dtype or shape are not those of the base");
  }
  const std::uint64_t positions_begin = number_of(json, "pos_start");
  const std::uint64_t positions_end = number_of(json, "pos_end");
  const std::uint64_t values_begin = number_of(json, "val_start");
  const std::uint64_t values_end = number_of(json, "val_end");
  const std::uint64_t width = number_of(json, "pos_width");
  const std::size_t size = element_size(flush.dtype);
  if (positions_begin > positions_end || positions_end > flush.positions.size() || values_begin > values_end ||
      values_end > flush.values.size() / size) {
    corrupt(fmt::format("positions [{}, {}) of {} bytes, values [{}, {}) of {}", positions_begin, positions_end,
                        flush.positions.size(), values_begin, values_end, flush.values.size() / size));
  }
  param.count = values_end - values_begin;
  if ((width != 4 && !(flush.gaps && width == 2)) || positions_end - positions_begin != width * param.count) {
    corrupt(fmt::format("{} bytes of positions, {} bytes each, for {} values", positions_end - positions_begin, width,
                        param.count));
  }
  param.width = static_cast<std::uint32_t>(width);
  param.positions = flush.positions.subspan(positions_begin, positions_end - positions_begin);
  param.values = flush.values.subspan(values_begin * size, param.count * size);
  return param;
}

template <class Gap>
Bytes indices_from_gaps(const Param& param) {
  Bytes indices(param.count * sizeof(std::uint32_t));
  std::uint64_t next = 0;
  for (std::uint64_t i = 0; i < param.count; ++i) {
    const std::uint64_t index = next + load_word<Gap>(param.positions.data(), i);
    if (index > static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max())) {
      corrupt(fmt::format("gap {} leads to element {}", i, index));
    }
    store_word(indices.data(), i, static_cast<std::uint32_t>(index));
    next = index + 1;
  }
  return indices;
}

/// Returns values in the tensor's dtype. They were widened because the flush also has float32 parameters; only bf16 can
/// be narrowed without loss.
Bytes narrowed(const Param& param, DType stored, DType own) {
  if (stored != DType::kF32 || own != DType::kBF16) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("values of {} for a tensor of {}", to_string(stored), to_string(own)));
  }
  Bytes values(param.count * sizeof(std::uint16_t));
  for (std::uint64_t i = 0; i < param.count; ++i) {
    const auto wide = load_word<std::uint32_t>(param.values.data(), i);
    if ((wide & 0xFFFF) != 0) corrupt(fmt::format("value {} is no bf16 number", i));
    store_word(values.data(), i, static_cast<std::uint16_t>(wide >> 16));
  }
  return values;
}

/// Joins consecutive patches of a tensor: some writers slice long ones.
class Joiner {
 public:
  explicit Joiner(const PatchSink& sink) : sink_(sink) {}

  void add(std::size_t tensor, ConstBytes indices, ConstBytes values, std::uint64_t count) {
    if (tensor != tensor_) flush();
    tensor_ = tensor;
    indices_.insert(indices_.end(), indices.begin(), indices.end());
    values_.insert(values_.end(), values.begin(), values.end());
    count_ += count;
  }
  void flush() {
    if (count_ != 0) sink_({tensor_, indices_, values_, count_});
    indices_.clear();
    values_.clear();
    count_ = 0;
  }

 private:
  const PatchSink& sink_;
  std::size_t tensor_ = 0;
  std::uint64_t count_ = 0;
  Bytes indices_;
  Bytes values_;
};

void read_params(const std::string& text, const Flush& flush, const TensorTable& table, const PatchSink& sink) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array()) corrupt("'params' is no JSON list");
  Joiner joiner(sink);
  std::size_t place = 0;
  for (const nlohmann::json& json : list) {
    try {
      const Param param = parse_param(json, flush, table);
      Bytes indices;
      if (flush.gaps) {
        indices = param.width == 2 ? indices_from_gaps<std::uint16_t>(param) : indices_from_gaps<std::uint32_t>(param);
      }
      const DType own = table[param.tensor].dtype;
      Bytes values;
      if (own != flush.dtype) values = narrowed(param, flush.dtype, own);
      joiner.add(param.tensor, flush.gaps ? ConstBytes(indices) : param.positions,
                 own != flush.dtype ? ConstBytes(values) : param.values, param.count);
    } catch (const Error& error) {
      const auto name = json.is_object() ? json.find("name") : json.end();
      const bool named = json.is_object() && name != json.end() && name->is_string();
      throw error.within(fmt::format("parameter {} ('{}')", place,
                                     named ? excerpt(name->get_ref<const std::string&>()) : std::string("?")));
    }
    ++place;
  }
  joiner.flush();
}

void verify_checksum(const SafetensorsHeader& header, const Flush& flush) {
  const auto expected = header.metadata.find("checksum");
  if (expected == header.metadata.end()) return;  // The first writers had none.
  const std::string found = packed_checksum(flush.positions, flush.dtype, flush.values);
  if (found != expected->second) {
    corrupt(fmt::format("the checksum of positions and values is {}, not {}", found, excerpt(expected->second)));
  }
}

/// Returns the size in bytes of the largest possible flush of this table, with its header: nothing larger is
/// decompressed.
std::uint64_t most_bytes(const TensorTable& table) {
  constexpr std::uint64_t kAnElement = sizeof(std::uint32_t) + sizeof(std::uint64_t);
  return SafetensorsHeader::kMaxHeaderBytes + 8 + kAnElement * table.elements();
}

void decompress(ConstBytes frame, std::uint64_t most, Spool& out) {
  ZstdReader reader(frame);
  Bytes window(std::size_t{1} << 20);
  while (const std::size_t got = reader.read(window)) {
    out.append(ConstBytes(window).first(got));
    if (out.size() > most) corrupt(fmt::format("the file holds more than {} bytes", most));
  }
  reader.require_end();
}

}  // namespace

bool is_flush_name(const std::string& name) { return name.starts_with("rank") && name.ends_with(".safetensors"); }

void read_flush(ConstBytes bytes, const std::string& name, const TensorTable& table, WorkDirectory& scratch,
                const PatchSink& sink) {
  try {
    Spool spool(scratch);
    const bool compressed = bytes.size() >= 4 && load_word<std::uint32_t>(bytes.data()) == 0xFD2FB528;
    if (compressed) {
      decompress(bytes, most_bytes(table), spool);
      bytes = spool.bytes();
    }
    const SafetensorsHeader header = SafetensorsHeader::parse(bytes, bytes.size());
    const std::string& encoding = metadata_of(header, "encoding");
    if (encoding != "indices" && encoding != "deltas" && encoding != "deltas_zstd") {
      throw Error(ErrorCode::kUnsupported, fmt::format("positions of encoding '{}' are not known", excerpt(encoding)));
    }
    const SafetensorsEntry& positions = entry_of(header, "__positions__");
    const SafetensorsEntry& values = entry_of(header, "__values__");
    if (positions.spec.dtype != DType::kU8) corrupt("'__positions__' must be of U8");
    const Flush flush{encoding != "indices", values.spec.dtype, bytes.subspan(positions.begin, positions.spec.bytes()),
                      bytes.subspan(values.begin, values.spec.bytes())};
    verify_checksum(header, flush);
    read_params(metadata_of(header, "params"), flush, table, sink);
  } catch (const Error& error) {
    throw error.within(name);
  }
}

void read_directory(FileSystem& fs, const std::string& directory, const Checkpoint& base, WorkDirectory& scratch,
                    PatchStore& out) {
  if (!fs.exists(directory + "/" + kDoneName)) {
    throw Error(ErrorCode::kIncomplete, "there is no DONE: its writer has not finished", directory);
  }
  for (const std::string& name : fs.list(directory)) {
    if (!is_flush_name(name)) continue;
    const std::string path = directory + "/" + name;
    const std::unique_ptr<FileMapping> mapping = fs.map(path);
    read_flush(mapping->bytes(), path, base.table(), scratch, out.sink());
  }
}

}  // namespace sparsecast::packed
