// SPDX-License-Identifier: Apache-2.0
#include "log/reader/plain_deltas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/file_tree.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::string_view kSuffix = ".scd";

/// Returns the two versions in a file name, or nullopt if the name has another form.
std::optional<std::pair<std::uint64_t, std::uint64_t>> versions_of(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  std::pair<std::uint64_t, std::uint64_t> versions;
  const char* const end = name.data() + name.size();
  const auto first = std::from_chars(name.data(), end, versions.first);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, versions.second);
  if (second.ec != std::errc() || second.ptr != end) return std::nullopt;
  return versions;
}

}  // namespace

bool is_context(const DeltaFile& delta) { return delta.header().positions == PositionMode::kContext; }

bool is_compressed(const DeltaFile& delta) {
  return delta.frames() > 0 && parse_frame_header(delta.frame(0)).compressed;
}

PlainDeltas::PlainDeltas(FileSystem& fs, const std::string& checkpoint)
    : fs_(fs), directory_(settled_path(fs, checkpoint) + ".follow/plain") {}

std::string PlainDeltas::path(std::uint64_t from, std::uint64_t to) const {
  return fmt::format("{}/{}-{}{}", directory_, from, to, kSuffix);
}

void PlainDeltas::make_directory() {
  if (!fs_.is_directory(directory_)) fs_.make_directory(directory_);
}

void PlainDeltas::keep(const DeltaFile& delta, const TensorReader& base, int threads) {
  if (!is_context(delta)) return;
  make_directory();
  const DeltaHeader& header = delta.header();
  EncodeOptions options;
  options.frame_capacity = header.frame_capacity;
  options.block_changes = kLargeBlockChanges;
  options.zstd_level = is_compressed(delta) ? kDerivedZstdLevel : 0;
  options.threads = threads;
  AtomicFile file(fs_, path(header.base_version, header.version));
  recode(
      delta, options, [&](Bytes&& record) { file.append(record); }, base);
  file.commit();
}

void PlainDeltas::adopt(const std::string& file, std::uint64_t from, std::uint64_t to) {
  make_directory();
  constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 20;
  const std::unique_ptr<File> original = fs_.open(file, OpenMode::kRead);
  AtomicFile copy(fs_, path(from, to));
  const std::uint64_t size = original->size();
  Bytes window;
  for (std::uint64_t at = 0; at < size; at += window.size()) {
    window.resize(std::min(kWindowBytes, size - at));
    original->read_at(at, window);
    copy.append(window);
  }
  copy.commit();
}

std::optional<std::string> PlainDeltas::find(std::uint64_t from, std::uint64_t to,
                                             const VersionDigest& digest_of) const {
  std::string file = path(from, to);
  if (!fs_.exists(file)) return std::nullopt;
  const DeltaFile delta = DeltaFile::open(fs_, file);
  const bool same = delta.header().base_digest == digest_of(from) && delta.commit().result_digest == digest_of(to);
  return same ? std::optional(std::move(file)) : std::nullopt;
}

void PlainDeltas::remove_if(const std::function<bool(std::uint64_t from, std::uint64_t to)>& done) {
  if (!fs_.is_directory(directory_)) return;
  for (const std::string& name : fs_.list(directory_)) {
    const auto versions = versions_of(name);
    if (!versions || done(versions->first, versions->second)) fs_.remove(directory_ + "/" + name);
  }
}

}  // namespace sparsecast
