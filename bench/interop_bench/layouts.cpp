// SPDX-License-Identifier: Apache-2.0
#include "interop_bench/layouts.hpp"

#include <time.h>

#include <algorithm>
#include <functional>

#include "codec/kernels.hpp"
#include "core/word.hpp"
#include "interop/formats/packed.hpp"
#include "interop/formats/patch_store.hpp"
#include "interop/formats/slime.hpp"
#include "interop/formats/sparse_files.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast::bench {
namespace {

using State = std::vector<Bytes>;

std::vector<ConstBytes> views(const State& state) { return {state.begin(), state.end()}; }
std::vector<MutableBytes> live_views(State& state) { return {state.begin(), state.end()}; }

/// Returns the processor time of this thread, which other processes on shared cores do not change much.
double milliseconds(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  };
  const double began = now();
  work();
  return now() - began;
}

void remove_all(FileSystem& fs, const std::string& path) {
  if (!fs.exists(path)) return;
  if (fs.is_directory(path)) {
    for (const std::string& name : fs.list(path)) remove_all(fs, path + "/" + name);
  }
  fs.remove(path);
}

std::uint64_t bytes_at(FileSystem& fs, const std::string& path) {
  if (!fs.is_directory(path)) return fs.open(path, OpenMode::kRead)->size();
  std::uint64_t bytes = 0;
  for (const std::string& name : fs.list(path)) bytes += bytes_at(fs, path + "/" + name);
  return bytes;
}

/// The two states, and the directory for files of them.
struct Bench {
  FileSystem& fs;
  std::string directory;
  int repeats;
  TensorTable table;
  State before;
  State after;
  Checkpoint base;
  DeltaHeader header;
  State live;

  /// Compares the states, as every encoder of other layouts does first, and adds the changes to `out`.
  void gather(PatchStore& out) const {
    std::vector<std::uint32_t> positions(kTileElems + 64);
    for (std::size_t t = 0; t < table.size(); ++t) {
      const std::size_t size = element_size(table[t].dtype);
      Bytes indices;
      Bytes values;
      for (std::uint64_t first = 0; first < table[t].elements(); first += kTileElems) {
        const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(kTileElems, table[t].elements() - first));
        const std::byte* bits = after[t].data() + first * size;
        const std::uint32_t changed =
            cpu::compare_tile(bits, before[t].data() + first * size, count, size, positions.data());
        for (std::uint32_t i = 0; i < changed; ++i) {
          const auto index = static_cast<std::uint32_t>(first + positions[i]);
          const auto* bytes = reinterpret_cast<const std::byte*>(&index);
          indices.insert(indices.end(), bytes, bytes + sizeof(index));
          values.insert(values.end(), bits + positions[i] * size, bits + (positions[i] + 1) * size);
        }
      }
      out.add({t, indices, values, indices.size() / sizeof(std::uint32_t)});
    }
  }

  void apply(const TensorPatches& patches) {
    Bytes room;
    for (std::size_t n = 0; n < patches.heads.size(); ++n) {
      const TensorPatch patch = patches.read(n, room);
      with_word(element_size(table[patch.tensor].dtype), [&]<class T>() {
        for (std::uint64_t i = 0; i < patch.count; ++i) {
          store_word(live[patch.tensor].data(), load_word<std::uint32_t>(patch.indices.data(), i),
                     load_word<T>(patch.values.data(), i));
        }
      });
    }
  }

  LayoutFigures measure(const std::string& name, const std::function<std::string()>& encode,
                        const std::function<void(const std::string&)>& decode) {
    LayoutFigures figures{name, 0, {}, {}};
    for (int i = 0; i < repeats; ++i) {
      remove_all(fs, directory);
      fs.make_directory(directory);
      std::string path;
      figures.encode_ms.push_back(milliseconds([&] { path = encode(); }));
      figures.bytes = bytes_at(fs, path);
      if (!decode) continue;
      live = before;
      figures.decode_ms.push_back(milliseconds([&] { decode(path); }));
      if (live != after) throw Error(ErrorCode::kDigestMismatch, "does not lead to the new state", name);
    }
    remove_all(fs, directory);
    return figures;
  }
};

LayoutFigures measure_ours(Bench& bench) {
  std::string path = bench.directory + "/delta.scd";
  const auto encode = [&] {
    const auto detector = make_compare_detector(bench.table, views(bench.after), views(bench.before));
    AtomicFile file(bench.fs, path);
    encode_delta(bench.table, *detector, bench.header, {}, true, [&](Bytes&& record) { file.append(record); });
    file.commit();
    return path;
  };
  LayoutFigures figures = bench.measure("sparsecast", encode, nullptr);
  bench.fs.make_directory(bench.directory);
  encode();
  for (int i = 0; i < bench.repeats; ++i) {
    bench.live = bench.before;
    SubscriberOptions options;
    options.version = bench.header.base_version;
    Subscriber subscriber(std::make_shared<const TensorTable>(bench.table),
                          refs_to(bench.table, live_views(bench.live)), options);
    figures.decode_ms.push_back(milliseconds([&] {
      const DeltaFile delta = DeltaFile::open(bench.fs, path);
      subscriber.stage(delta.header_record());
      for (std::size_t f = 0; f < delta.frames(); ++f) subscriber.stage(delta.frame(f));
      subscriber.stage(delta.commit_record());
      subscriber.apply();
    }));
    if (bench.live != bench.after) throw Error(ErrorCode::kDigestMismatch, "does not lead to the new state");
  }
  remove_all(bench.fs, bench.directory);
  return figures;
}

LayoutFigures measure_foreign(Bench& bench, ForeignFormat format) {
  ForeignWriteOptions options;
  options.format = format;
  std::string out = bench.directory + "/out";
  WorkDirectory scratch(bench.fs, out);
  const bool slime = format == ForeignFormat::kSlimeXor || format == ForeignFormat::kSlimeOverwrite;
  const auto encode = [&]() -> std::string {
    PatchStore store(bench.table, scratch);
    bench.gather(store);
    const TensorPatches patches = store.patches();
    if (format == ForeignFormat::kTrl) return write_trl_step(bench.fs, bench.header, patches, bench.table, out);
    if (format == ForeignFormat::kVllm) return write_vllm_update(bench.fs, bench.header, patches, bench.table, out);
    if (format == ForeignFormat::kVerl) {
      packed::write_verl(bench.fs, bench.header, patches, bench.table, out, options);
      return out;
    }
    if (slime) return slime::write_delta(bench.fs, bench.header, patches, bench.base, out, options, scratch);
    return packed::write_directory(bench.fs, bench.header, patches, bench.table, out, options);
  };
  const auto decode = [&](const std::string& path) {
    if (format == ForeignFormat::kTrl) {
      SparseStep::open(bench.fs, path, bench.table).apply(live_views(bench.live));
      return;
    }
    PatchStore store(bench.table, scratch);
    if (slime) {
      slime::read_delta(bench.fs, path, bench.base, store);
    } else {
      packed::read_directory(bench.fs, path, bench.base, store);
    }
    bench.apply(store.patches());
  };
  const bool readable = format != ForeignFormat::kVerl && format != ForeignFormat::kVllm;
  return bench.measure(std::string(to_string(format)), encode,
                       readable ? std::function<void(const std::string&)>(decode) : nullptr);
}

}  // namespace

std::vector<LayoutFigures> measure_layouts(FileSystem& fs, const std::string& series, std::size_t step, int repeats,
                                           const std::string& scratch) {
  const CheckpointSeries checkpoints(fs, series);
  const TensorTable& table = checkpoints.table();
  State before;
  for (const TensorSpec& spec : table) before.emplace_back(spec.bytes());
  checkpoints.load_first(live_views(before));
  for (std::size_t i = 1; i < step; ++i) checkpoints.advance(i, live_views(before));
  State after = before;
  checkpoints.advance(step, live_views(after));

  const std::string base_path = scratch + "/interop_bench_base.safetensors";
  SafetensorsWriter writer(fs, base_path, {table.begin(), table.end()});
  for (const Bytes& tensor : before) writer.append(tensor);
  writer.finish();
  Bench bench{fs, scratch + "/interop_bench", repeats, table, before, after, Checkpoint::open(fs, base_path), {}, {}};
  bench.header.base_version = step - 1;
  bench.header.version = step;
  bench.header.base_digest = sum(digest_tensors(table, refs_to(table, views(before))));

  std::vector<LayoutFigures> all = {measure_ours(bench)};
  for (const ForeignFormat format :
       {ForeignFormat::kSlimeXor, ForeignFormat::kSlimeOverwrite, ForeignFormat::kPackedIndices,
        ForeignFormat::kPackedDeltas, ForeignFormat::kPackedDeltasZstd, ForeignFormat::kTrl, ForeignFormat::kVerl,
        ForeignFormat::kVllm}) {
    all.push_back(measure_foreign(bench, format));
  }
  fs.remove(base_path);
  return all;
}

}  // namespace sparsecast::bench
