// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/delta_chain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/table_difference.hpp"
#include "codec/apply.hpp"
#include "codec/frame_reader.hpp"
#include "core/parallel.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

void require_follows(const DeltaFile& previous, const DeltaFile& next) {
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    throw Error(code, fmt::format("{} '{}'", what, previous.name()), next.name());
  };
  if (!(next.header().stream == previous.header().stream)) refuse(ErrorCode::kForeignStream, "another stream than");
  if (next.header().base_version != previous.header().version) {
    refuse(ErrorCode::kVersionGap, fmt::format("starts from version {}, not from version {} that is the result of",
                                               next.header().base_version, previous.header().version));
  }
  if (!(next.header().base_digest == previous.commit().result_digest)) {
    refuse(ErrorCode::kWrongBase, "its base digest is not the result digest of");
  }
}

/// Calls body(worker, frame, block) for every block of the delta. Blocks of one frame run concurrently.
template <class Body>
void for_each_block(const DeltaFile& delta, int threads, const char* phase, const Progress& progress,
                    const Body& body) {
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < delta.frames(); ++i) {
    const Bytes record = delta.frame(i);
    const FrameReader frame(record, delta.header(), delta.table());
    parallel_for(threads, frame.blocks().size(), [&](std::size_t worker, std::size_t b) {
      const BlockRef& block = frame.blocks()[b];
      try {
        body(worker, block);
      } catch (const Error& error) {
        throw error.within(fmt::format("{}: {}", delta.name(), describe(frame.header(), block, delta.table())));
      }
    });
    done += record.size();
    if (progress) progress(phase, done, delta.commit().frame_bytes);
  }
}

/// A block's elements before and after the delta.
struct Window {
  Bytes before;
  Bytes after;
  ApplyScratch scratch;

  void load(const CheckpointStore& store, const BlockRef& block, StateDigest* change) {
    const DType dtype = store.table()[block.tensor].dtype;
    before.resize(block.span * element_size(dtype));
    store.read(block.tensor, block.first_element * element_size(dtype), before);
    after = before;
    const DigestIndex index = digest_index_of(store.table(), block.tensor);
    apply_block(block, {after.data(), dtype, nullptr, &index, change, nullptr}, Direction::kForward, scratch);
  }
};

/// Writes the changed pages of the file, cut at the window's ends: neighbouring blocks may be written at the same time.
void write_changed_pages(CheckpointStore& store, const BlockRef& block, std::uint64_t begin_byte,
                         const Window& window) {
  const std::uint64_t size = window.after.size();
  const std::uint64_t misaligned = store.file_offset(block.tensor, begin_byte) % kPageBytes;
  std::uint64_t run_begin = 0;
  std::uint64_t run_end = 0;
  const auto flush = [&] {
    if (run_end == run_begin) return;
    store.write(block.tensor, begin_byte + run_begin, ConstBytes(window.after).subspan(run_begin, run_end - run_begin));
  };
  for (std::uint64_t page = 0; page < size;) {
    const std::uint64_t end = std::min(size, page == 0 ? kPageBytes - misaligned : page + kPageBytes);
    if (std::memcmp(window.before.data() + page, window.after.data() + page, end - page) != 0) {
      if (run_end != page) {
        flush();
        run_begin = page;
      }
      run_end = end;
    }
    page = end;
  }
  flush();
}

}  // namespace

DeltaChain::DeltaChain(FileSystem& fs, const std::vector<std::string>& paths, const TensorTable& table,
                       const std::string& checkpoint, const Progress& progress)
    : table_(table) {
  for (const std::string& path : paths) {
    if (progress) progress("verifying deltas", deltas_.size(), paths.size());
    DeltaFile delta = DeltaFile::open(fs, path);
    if (deltas_.empty()) table_ = with_pairs(table, pairs_of(delta.table()));
    require_same_table(table_, checkpoint, delta.table(), path);
    if (!deltas_.empty()) require_follows(deltas_.back(), delta);
    delta.report();
    deltas_.push_back(std::move(delta));
  }
}

std::size_t DeltaChain::position_of(const StateDigest& state, const std::string& checkpoint) const {
  for (std::size_t i = deltas_.size(); i > 0; --i) {
    if (deltas_[i - 1].commit().result_digest == state) return i;
  }
  if (deltas_.empty() || deltas_.front().header().base_digest == state) return 0;
  const DeltaHeader& first = deltas_.front().header();
  throw Error(
      ErrorCode::kWrongBase,
      fmt::format("the checkpoint has digest {}, but '{}' starts from version {} with digest {}", to_hex(state.value),
                  deltas_.front().name(), first.base_version, to_hex(first.base_digest.value)),
      checkpoint);
}

void apply_delta(CheckpointStore& store, const DeltaFile& delta, WriteBack write_back, int threads,
                 const Progress& progress) {
  std::vector<Window> windows(static_cast<std::size_t>(resolve_threads(threads)));
  for_each_block(delta, threads, "applying", progress, [&](std::size_t worker, const BlockRef& block) {
    Window& window = windows[worker];
    window.load(store, block, nullptr);
    const std::uint64_t begin_byte = block.first_element * element_size(store.table()[block.tensor].dtype);
    if (write_back == WriteBack::kWholeWindows) {
      store.write(block.tensor, begin_byte, window.after);
    } else {
      write_changed_pages(store, block, begin_byte, window);
    }
  });
}

StateDigest predict_digest(const CheckpointStore& store, const DeltaFile& delta, const StateDigest& state,
                           int threads) {
  std::vector<Window> windows(static_cast<std::size_t>(resolve_threads(threads)));
  std::vector<StateDigest> changes(windows.size());
  for_each_block(delta, threads, "", nullptr, [&](std::size_t worker, const BlockRef& block) {
    windows[worker].load(store, block, &changes[worker]);
  });
  StateDigest predicted = state;
  predicted += sum(changes);
  return predicted;
}

}  // namespace sparsecast
