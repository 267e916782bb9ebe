// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/word.hpp"
#include "interop/formats/directory_output.hpp"
#include "interop/formats/packed.hpp"
#include "interop/formats/slime.hpp"
#include "interop/formats/zstd_stream.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::packed {
namespace {

constexpr int kLevel = 1;  // Theirs.

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

/// Returns the pieces in an order that aligns positions of 4 bytes and values of any dtype, for readers that map the
/// file.
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
  const bool hashable = flush.dtype != DType::kF8E4M3 && flush.dtype != DType::kF8E5M2;
  if (hashable) metadata["checksum"] = flush.checksum();
  return metadata;
}

void flush_patches(const std::vector<TensorPatch>& patches, const TensorTable& table, PackedEncoding encoding,
                   const ForeignWriteOptions& options, const PackedFlusher::Sink& sink) {
  PackedFlusher flusher(table, encoding, options.bucket_bytes, sink);
  for (const TensorPatch& patch : patches) flusher.add(patch);
  flusher.finish();
}

}  // namespace

std::string write_directory(FileSystem& fs, const DeltaHeader& header, const std::vector<TensorPatch>& patches,
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

std::vector<std::string> write_verl(FileSystem& fs, const DeltaHeader& header, const std::vector<TensorPatch>& patches,
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
