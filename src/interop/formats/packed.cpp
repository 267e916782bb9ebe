// SPDX-License-Identifier: Apache-2.0
#include "interop/formats/packed.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <limits>

#include "core/utf8.hpp"
#include "core/word.hpp"
#include "interop/formats/directory_output.hpp"
#include "interop/formats/slime.hpp"
#include "interop/formats/tensor_checksum.hpp"
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

/// The blobs of a flush (positions and values), and the encoding of their bytes.
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

/// Returns the values in the tensor's dtype. They were widened because the flush also has float32 parameters. Only bf16
/// can be narrowed without loss.
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

/// Joins consecutive patches of a tensor, because some writers split long patches.
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
  if (expected == header.metadata.end()) return;  // The first writers stored no checksum.
  const std::string found = packed_checksum(flush.positions, flush.dtype, flush.values);
  if (found != expected->second) {
    corrupt(fmt::format("the checksum of positions and values is {}, not {}", found, excerpt(expected->second)));
  }
}

/// Returns the size in bytes of the largest possible flush of this table, with its header. Larger content is not
/// decompressed.
std::uint64_t most_bytes(const TensorTable& table) {
  constexpr std::uint64_t kAnElement = sizeof(std::uint32_t) + sizeof(std::uint64_t);
  return SafetensorsHeader::kMaxHeaderBytes + 8 + kAnElement * table.elements();
}

Bytes decompress(ConstBytes frame, std::uint64_t most) {
  ZstdReader reader(frame);
  Bytes window(std::size_t{1} << 20);
  Bytes out;
  while (const std::size_t got = reader.read(window)) {
    out.insert(out.end(), window.begin(), window.begin() + static_cast<std::ptrdiff_t>(got));
    if (out.size() > most) corrupt(fmt::format("the file holds more than {} bytes", most));
  }
  reader.require_end();
  return out;
}

}  // namespace

bool is_flush_name(const std::string& name) { return name.starts_with("rank") && name.ends_with(".safetensors"); }

void read_flush(ConstBytes bytes, const std::string& name, const TensorTable& table, const PatchSink& sink) {
  try {
    Bytes decompressed;
    const bool compressed = bytes.size() >= 4 && load_word<std::uint32_t>(bytes.data()) == 0xFD2FB528;
    if (compressed) {
      decompressed = decompress(bytes, most_bytes(table));
      bytes = decompressed;
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

void read_directory(FileSystem& fs, const std::string& directory, const Checkpoint& base, PatchStore& out) {
  if (!fs.exists(directory + "/" + kDoneName)) {
    throw Error(ErrorCode::kIncomplete, "there is no DONE: its writer has not finished", directory);
  }
  for (const std::string& name : fs.list(directory)) {
    if (!is_flush_name(name)) continue;
    const std::string path = directory + "/" + name;
    read_flush(read_file(fs, path), path, base.table(), out.sink());
  }
}

namespace {

constexpr int kLevel = 1;  // The level that the other system uses.

const char* encoding_name(ForeignFormat format) {
  switch (format) {
    case ForeignFormat::kPackedIndices:
      return "indices";
    case ForeignFormat::kPackedDeltas:
      return "deltas";
    default:
      return "deltas_zstd";
  }
}

struct FlushPiece {
  TensorSpec spec;
  ConstBytes bytes;
};

FlushPiece positions_piece(const PackedFlush& flush) {
  return {{"__positions__", DType::kU8, {flush.positions.size()}}, flush.positions};
}

FlushPiece values_piece(const PackedFlush& flush) {
  return {{"__values__", flush.dtype, {flush.values.size() / element_size(flush.dtype)}}, flush.values};
}

/// Returns the pieces in an order that aligns 4-byte positions and values of every dtype, for readers that map the file
/// into memory.
std::vector<FlushPiece> pieces_of(const PackedFlush& flush) {
  if (element_size(flush.dtype) >= 4) return {values_piece(flush), positions_piece(flush)};
  return {positions_piece(flush), values_piece(flush)};
}

void write_pieces(FileSystem& fs, const std::string& path, std::span<const FlushPiece> pieces,
                  const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const FlushPiece& piece : pieces) specs.push_back(piece.spec);
  SafetensorsWriter writer(fs, path, specs, metadata);
  for (const FlushPiece& piece : pieces) writer.append(piece.bytes);
  writer.finish();
}

void write_compressed(FileSystem& fs, const std::string& path, std::span<const FlushPiece> pieces,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  std::uint64_t content = 0;
  for (const FlushPiece& piece : pieces) {
    specs.push_back(piece.spec);
    content += piece.bytes.size();
  }
  const Bytes head = SafetensorsHeader::serialize(specs, metadata);
  AtomicFile file(fs, path);
  ZstdWriter writer(kLevel, [&](ConstBytes bytes) { file.append(bytes); });
  writer.begin(head.size() + content);
  writer.append(head);
  for (const FlushPiece& piece : pieces) writer.append(piece.bytes);
  writer.finish();
  file.commit();
}

std::map<std::string, std::string> flush_metadata(const PackedFlush& flush, const DeltaHeader& header,
                                                  const TensorTable& table, ForeignFormat format) {
  std::map<std::string, std::string> metadata = {
      {"encoding", encoding_name(format)},
      {"params", flush.params_json(table)},
      // The receiver's version before its first delta is "default".
      {"prev_version", header.base_version == 0 ? "default" : std::to_string(header.base_version)},
      {"current_version", std::to_string(header.version)}};
  // The receiver can compute checksums only for the dtypes that every release of torch supports.
  const bool hashable = flush.dtype <= DType::kBool && flush.dtype != DType::kF8E4M3 && flush.dtype != DType::kF8E5M2;
  if (hashable) metadata["checksum"] = flush.checksum();
  return metadata;
}

void flush_patches(const TensorPatches& patches, const TensorTable& table, PackedEncoding encoding,
                   const ForeignWriteOptions& options, const PackedFlusher::Sink& sink) {
  PackedFlusher flusher(table, encoding, options.bucket_bytes, sink);
  Bytes room;
  for (std::size_t n = 0; n < patches.heads.size(); ++n) flusher.add(patches.read(n, room));
  flusher.finish();
}

}  // namespace

std::string write_directory(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                            const TensorTable& table, const std::string& parent, const ForeignWriteOptions& options) {
  DirectoryOutput output(fs, parent + "/" + slime::version_name(header.version));
  const bool gaps = options.format != ForeignFormat::kPackedIndices;
  std::size_t flushes = 0;
  flush_patches(patches, table, gaps ? PackedEncoding::kDeltas : PackedEncoding::kIndices, options,
                [&](PackedFlush&& flush) {
                  const std::string path = output.path(fmt::format("rank0000_flush{:06d}.safetensors", flushes++));
                  const std::vector<FlushPiece> pieces = pieces_of(flush);
                  const auto metadata = flush_metadata(flush, header, table, options.format);
                  const bool compressed = options.format == ForeignFormat::kPackedDeltasZstd;
                  compressed ? write_compressed(fs, path, pieces, metadata) : write_pieces(fs, path, pieces, metadata);
                });
  output.write_text(kDoneName, "");
  return output.publish();
}

std::vector<std::string> write_verl(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches,
                                    const TensorTable& table, const std::string& directory,
                                    const ForeignWriteOptions& options) {
  make_output_directory(fs, directory);
  std::vector<std::string> paths;
  flush_patches(patches, table, PackedEncoding::kIndices, options, [&](PackedFlush&& flush) {
    const std::string path = fmt::format("{}/flush_{:06d}_{:06d}.safetensors", directory, header.version, paths.size());
    require_absent(fs, path);
    const std::string spec = flush.verl_spec(table);
    std::vector<FlushPiece> pieces = pieces_of(flush);
    pieces.push_back({{"__delta_spec__", DType::kU8, {spec.size()}}, std::as_bytes(std::span(spec))});
    write_pieces(fs, path, pieces, {});
    paths.push_back(path);
  });
  return paths;
}

}  // namespace sparsecast::packed
