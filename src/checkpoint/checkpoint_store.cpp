// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "core/parallel.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kSliceBytes = std::uint64_t{4} << 20;

template <class Operation>
void at_tensor(const TensorTable& table, std::size_t tensor, std::uint64_t begin_byte, const Operation& operation) {
  try {
    operation();
  } catch (const Error& error) {
    throw error.within(fmt::format("tensor '{}' at byte {}", table[tensor].name, begin_byte));
  }
}

}  // namespace

CheckpointLayout CheckpointLayout::of(const Checkpoint& checkpoint) {
  CheckpointLayout layout;
  layout.table = checkpoint.table();
  for (const Checkpoint::FilePart& part : checkpoint.files()) layout.files.push_back(part.path);
  for (std::size_t i = 0; i < layout.table.size(); ++i) layout.locations.push_back(checkpoint.location(i));
  return layout;
}

CheckpointStore::CheckpointStore(FileSystem& fs, CheckpointLayout layout, OpenMode mode) : layout_(std::move(layout)) {
  for (const std::string& path : layout_.files) files_.push_back(fs.open(path, mode));
}

CheckpointStore::CheckpointStore(const Checkpoint& checkpoint) : layout_(CheckpointLayout::of(checkpoint)) {
  for (const Checkpoint::FilePart& part : checkpoint.files()) files_.push_back(part.file);
}

void CheckpointStore::read(std::size_t tensor, std::uint64_t begin_byte, std::span<std::byte> buffer) const {
  at_tensor(layout_.table, tensor, begin_byte,
            [&] { files_[layout_.locations[tensor].file]->read_at(file_offset(tensor, begin_byte), buffer); });
}

void CheckpointStore::write(std::size_t tensor, std::uint64_t begin_byte, std::span<const std::byte> bytes) {
  at_tensor(layout_.table, tensor, begin_byte,
            [&] { files_[layout_.locations[tensor].file]->write_at(file_offset(tensor, begin_byte), bytes); });
}

void CheckpointStore::sync() {
  for (const std::shared_ptr<File>& file : files_) file->sync();
}

std::vector<StateDigest> digest_store(const CheckpointStore& store, int threads, const Progress& progress) {
  struct TensorSlice {
    std::size_t tensor;
    std::uint64_t first;
    std::uint64_t bytes;
    StateDigest digest;
  };
  const TensorTable& table = store.table();
  std::vector<TensorSlice> slices;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const std::uint64_t size = element_size(table[t].dtype);
    for (std::uint64_t begin = 0; begin < table[t].bytes(); begin += kSliceBytes) {
      slices.push_back({t, begin / size, std::min(kSliceBytes, table[t].bytes() - begin), {}});
    }
  }
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(resolve_threads(threads)));
  std::atomic<std::uint64_t> done{0};
  parallel_for(threads, slices.size(), [&](std::size_t worker, std::size_t i) {
    TensorSlice& slice = slices[i];
    const TensorSpec& spec = table[slice.tensor];
    std::vector<std::byte>& buffer = buffers[worker];
    buffer.resize(slice.bytes);
    store.read(slice.tensor, slice.first * element_size(spec.dtype), buffer);
    slice.digest = digest_span(table.digest_key(slice.tensor), spec.dtype, slice.first, buffer);
    const std::uint64_t so_far = done += slice.bytes;
    if (progress) progress("reading", so_far, table.bytes());
  });
  std::vector<StateDigest> digests(table.size());
  for (const TensorSlice& slice : slices) digests[slice.tensor] += slice.digest;
  return digests;
}

void require_anchor_digest(const CheckpointStore& store, const StateDigest& expected, const std::string& path,
                           int threads, const Progress& progress) {
  const StateDigest found = sum(digest_store(store, threads, progress));
  if (found == expected) return;
  throw Error(ErrorCode::kMixed,
              fmt::format("the anchor has digest {}, not {}", to_hex(found.value), to_hex(expected.value)), path);
}

}  // namespace sparsecast
