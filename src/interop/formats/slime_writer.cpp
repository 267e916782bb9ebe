// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include "core/word.hpp"
#include "interop/formats/directory_output.hpp"
#include "interop/formats/slime.hpp"
#include "interop/formats/sparse_files.hpp"
#include "interop/formats/tensor_checksum.hpp"
#include "interop/formats/zstd_stream.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::slime {

namespace {

constexpr int kLevel = 1;  // The level that the other system uses.

/// One tensor's compressed frame in the spool.
struct CompressedTensor {
  std::string name;
  std::string checksum;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

/// Writes a ^ b to `out`; all have `count` bytes. Uses plain pointers, so that compilers vectorize the loop.
void exclusive_or(const std::byte* a, const std::byte* b, std::size_t count, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i] ^ b[i];
}

/// Calls found(i) for every index i at which the bytes differ. Skips equal bytes eight at a time.
template <class Found>
void for_each_difference(const std::byte* a, const std::byte* b, std::size_t count, const Found& found) {
  std::size_t i = 0;
  while (i < count) {
    if (count - i >= 8 && load_word<std::uint64_t>(a + i) == load_word<std::uint64_t>(b + i)) {
      i += 8;
      continue;
    }
    for (const std::size_t end = std::min(i + 8, count); i < end; ++i) {
      if (a[i] != b[i]) found(i);
    }
  }
}

void encode_xor(const Checkpoint& base, const TensorPatch& patch, TensorChecksum& checksum, Bytes& difference,
                ZstdWriter& writer) {
  writer.begin(base.table()[patch.tensor].bytes());
  for_each_window(base, patch, [&](ConstBytes before, ConstBytes after) {
    checksum.update(after);
    difference.resize(after.size());
    exclusive_or(before.data(), after.data(), after.size(), difference.data());
    writer.append(difference);
  });
  writer.finish();
}

void encode_overwrite(const Checkpoint& base, const TensorPatch& patch, TensorChecksum& checksum, ZstdWriter& writer) {
  const TensorSpec& spec = base.table()[patch.tensor];
  if (spec.bytes() > std::uint64_t{1} << 32) {
    throw Error(ErrorCode::kUnsupported, "overwrite has 32-bit byte positions, and the tensor has more bytes; use xor",
                fmt::format("tensor '{}'", spec.name));
  }
  Bytes positions(sizeof(std::uint32_t));
  Bytes values;
  std::uint64_t begin = 0;
  for_each_window(base, patch, [&](ConstBytes before, ConstBytes after) {
    checksum.update(after);
    for_each_difference(before.data(), after.data(), after.size(), [&](std::size_t i) {
      const auto position = static_cast<std::uint32_t>(begin + i);
      const auto* bytes = reinterpret_cast<const std::byte*>(&position);
      positions.insert(positions.end(), bytes, bytes + sizeof(position));
      values.push_back(after[i]);
    });
    begin += after.size();
  });
  if (values.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ErrorCode::kUnsupported, "overwrite cannot count this many changed bytes; use xor",
                fmt::format("tensor '{}'", spec.name));
  }
  store_word(positions.data(), 0, static_cast<std::uint32_t>(values.size()));
  writer.begin(positions.size() + values.size());
  writer.append(positions);
  writer.append(values);
  writer.finish();
}

/// Returns the number of frames of each file: as many as fit into `bucket_bytes`, at least one.
std::vector<std::size_t> cut_into_files(const std::vector<CompressedTensor>& frames, std::uint64_t bucket_bytes) {
  std::vector<std::size_t> counts;
  std::uint64_t filled = 0;
  for (const CompressedTensor& frame : frames) {
    if (counts.empty() || filled + frame.bytes > bucket_bytes) {
      counts.push_back(0);
      filled = 0;
    }
    ++counts.back();
    filled += frame.bytes;
  }
  return counts;
}

void write_file(FileSystem& fs, const std::string& path, std::span<const CompressedTensor> frames, const Spool& spool) {
  std::vector<TensorSpec> specs;
  std::map<std::string, std::string> checksums;
  for (const CompressedTensor& frame : frames) {
    specs.push_back({frame.name, DType::kU8, {frame.bytes}});
    checksums[frame.name] = frame.checksum;
  }
  SafetensorsWriter writer(fs, path, specs, checksums);
  constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;
  Bytes window;
  for (const CompressedTensor& frame : frames) {
    for (std::uint64_t at = 0; at < frame.bytes; at += window.size()) {
      window.resize(std::min(kCopyBytes, frame.bytes - at));
      spool.read(frame.begin + at, window);
      writer.append(window);
    }
  }
  writer.finish();
}

}  // namespace

std::string write_delta(FileSystem& fs, const DeltaHeader& header, const TensorPatches& patches, const Checkpoint& base,
                        const std::string& parent, const ForeignWriteOptions& options, WorkDirectory& scratch) {
  const bool use_xor = options.format == ForeignFormat::kSlimeXor;
  Spool spool(scratch);
  std::vector<CompressedTensor> frames;
  ZstdWriter writer(kLevel, [&](ConstBytes piece) { spool.append(piece); });
  Bytes difference;
  Bytes room;
  for (std::size_t n = 0; n < patches.heads.size(); ++n) {
    const TensorPatch patch = patches.read(n, room);
    TensorChecksum checksum(options.checksum);
    CompressedTensor frame{base.table()[patch.tensor].name, {}, spool.size(), 0};
    use_xor ? encode_xor(base, patch, checksum, difference, writer) : encode_overwrite(base, patch, checksum, writer);
    frame.bytes = spool.size() - frame.begin;
    frame.checksum = checksum.hex();
    frames.push_back(std::move(frame));
  }

  DirectoryOutput output(fs, parent + "/" + version_name(header.version));
  const std::vector<std::size_t> counts = cut_into_files(frames, options.bucket_bytes);
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::span<const CompressedTensor> left = frames;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::string name = fmt::format("model-{:05d}-of-{:05d}.safetensors", i, counts.size());
    write_file(fs, output.path(name), left.first(counts[i]), spool);
    for (const CompressedTensor& frame : left.first(counts[i])) map[frame.name] = name;
    left = left.subspan(counts[i]);
  }
  const nlohmann::ordered_json index = {{"metadata",
                                         {{"version", fmt::format("{:06d}", header.version)},
                                          {"base_version", fmt::format("{:06d}", header.base_version)},
                                          {"delta_encoding", use_xor ? "xor" : "overwrite"},
                                          {"compression_format", "zstd"},
                                          {"checksum_format", options.checksum}}},
                                        {"weight_map", map}};
  output.write_text(kIndexName, index.dump());
  return output.publish();
}

std::string write_full(FileSystem& fs, const Checkpoint& checkpoint, std::uint64_t version, const std::string& parent) {
  DirectoryOutput output(fs, parent + "/" + version_name(version));
  const std::string file = "model.safetensors";
  write_all_tensors(fs, checkpoint, output.path(file), {{"format", "pt"}});
  std::uint64_t bytes = 0;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const TensorSpec& spec : checkpoint.table()) {
    bytes += spec.bytes();
    map[spec.name] = file;
  }
  const nlohmann::ordered_json index = {
      {"metadata", {{"total_size", bytes}, {"version", fmt::format("{:06d}", version)}}}, {"weight_map", map}};
  output.write_text(kIndexName, index.dump());
  return output.publish();
}

void for_each_window(const Checkpoint& base, const TensorPatch& patch, const WindowSink& sink) {
  constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 20;  // A multiple of every element size.
  const std::size_t size = element_size(base.table()[patch.tensor].dtype);
  const std::uint64_t bytes = base.table()[patch.tensor].bytes();
  Bytes before;
  Bytes after;
  std::uint64_t next = 0;  // Next entry of the patch.
  for (std::uint64_t begin = 0; begin < bytes; begin += kWindowBytes) {
    before.resize(std::min(kWindowBytes, bytes - begin));
    base.read(patch.tensor, begin, before);
    after = before;
    for (; next < patch.count; ++next) {
      const std::uint64_t at = std::uint64_t{load_word<std::uint32_t>(patch.indices.data(), next)} * size;
      if (at >= begin + before.size()) break;
      std::memcpy(after.data() + (at - begin), patch.values.data() + next * size, size);
    }
    sink(before, after);
  }
}

}  // namespace sparsecast::slime
