// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "codec/apply.hpp"
#include "codec/codec_common.hpp"
#include "core/strided_view.hpp"
#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "sharded/shard_memory.hpp"

namespace sparsecast {
namespace {

std::vector<HostTensor> host_tensors_at(const std::vector<ShardView>& views) {
  std::vector<HostTensor> tensors;
  for (const ShardView& view : views) tensors.push_back({view.data, view.strides});
  return tensors;
}

std::vector<StridedView> strided_views(const TensorTable& table, const std::vector<ShardView>& regions) {
  std::vector<StridedView> views;
  for (std::size_t p = 0; p < table.size(); ++p) views.push_back(view_of_tensor(table[p], regions[p].strides));
  return views;
}

class HostRegionReader final : public RegionReader {
 public:
  HostRegionReader(const TensorTable& table, const std::vector<ShardView>& regions)
      : table_(table), regions_(regions), views_(strided_views(table, regions)) {}

  const std::byte* read(std::size_t region, std::uint64_t first, std::uint32_t count, std::byte* scratch) override {
    const std::size_t size = element_size(table_[region].dtype);
    if (is_contiguous(views_[region])) return regions_[region].data + first * size;
    for_each_rectangle(views_[region], first, count, [&](const RowRectangle& next) {
      for (std::uint64_t r = 0; r < next.rows; ++r) {
        std::memcpy(scratch + (next.first + r * next.run) * size,
                    regions_[region].data + (next.offset + r * next.pitch) * size, next.run * size);
      }
    });
    return scratch;
  }

 private:
  const TensorTable& table_;
  std::vector<ShardView> regions_;
  std::vector<StridedView> views_;
};

class HostRegionWriter final : public RegionWriter {
 public:
  HostRegionWriter(const TensorTable& table, const std::vector<ShardView>& regions)
      : table_(table), regions_(regions), views_(strided_views(table, regions)) {}

  void write(const BlockRef& block) override {
    const StridedView& view = views_[block.tensor];
    const ApplyTarget target = target_in(regions_[block.tensor].data, is_contiguous(view) ? nullptr : &view,
                                         table_[block.tensor].dtype, block);
    apply_block(block, target, Direction::kForward, scratch_);
  }
  void finish() override {}

 private:
  const TensorTable& table_;
  std::vector<ShardView> regions_;
  std::vector<StridedView> views_;
  ApplyScratch scratch_;
};

class HostShardMemory final : public ShardMemory {
 public:
  HostShardMemory(std::vector<TensorBytes> local, std::vector<bool> masters)
      : ShardMemory(std::move(local), std::move(masters)) {}

  ShardBuffer allocate(std::uint64_t bytes) override {
    const auto memory = std::make_shared<Bytes>(bytes);
    return {memory, memory->data()};
  }

  void copy(const ShardBox& box, const std::byte* from, std::byte* to) override {
    const std::size_t size = box.element_bytes;
    for_each_rectangle(box, [&](const RowRectangle& next) {
      for (std::uint64_t r = 0; r < next.rows; ++r) {
        const std::uint64_t at = (next.offset + r * next.pitch) * size;
        std::memcpy(to + at, from + at, next.run * size);
      }
    });
  }

  void cast(const ShardBox& box, const std::byte* masters, std::byte* to) override {
    for_each_rectangle(box, [&](const RowRectangle& next) {
      for (std::uint64_t r = 0; r < next.rows; ++r) {
        const std::uint64_t at = next.offset + r * next.pitch;
        for (std::uint64_t i = at; i < at + next.run; ++i) {
          store_word(to, i, bf16_from_f32_bits(load_word<std::uint32_t>(masters, i)));
        }
      }
    });
  }

  std::unique_ptr<JoinedPublisher> make_publisher(JoinedTables tables, const std::vector<ShardView>& live,
                                                  const std::vector<ShardView>& held,
                                                  const PublisherOptions& options) override {
    std::vector<HostSourceTensor> sources;
    for (std::size_t p = 0; p < live.size(); ++p) {
      sources.push_back({{live[p].data, live[p].strides}, live[p].masters ? DType::kF32 : tables.all()[p].dtype});
    }
    auto detector = make_cast_snapshot(tables.all(), std::move(sources), host_tensors_at(held));
    return std::make_unique<JoinedPublisher>(std::move(tables), std::move(detector), options);
  }
  std::unique_ptr<JoinedSubscriber> make_subscriber(JoinedTables tables, const std::vector<ShardView>& live,
                                                    const SubscriberOptions& options) override {
    return std::make_unique<JoinedSubscriber>(std::move(tables), host_tensors_at(live), options);
  }

  std::unique_ptr<RegionReader> make_reader(const TensorTable& table, const std::vector<ShardView>& regions) override {
    return make_host_reader(table, regions);
  }
  std::unique_ptr<RegionWriter> make_writer(const TensorTable& table, const std::vector<ShardView>& regions) override {
    return std::make_unique<HostRegionWriter>(table, regions);
  }
};

}  // namespace

const std::vector<LocalTensor>& local_tensors(const Layout& layout, std::size_t rank, std::size_t given) {
  if (rank >= layout.ranks().size()) {
    throw Error(ErrorCode::kUsage, fmt::format("rank {} of a layout of {}", rank, layout.ranks().size()));
  }
  const std::vector<LocalTensor>& tensors = layout.ranks()[rank].tensors;
  if (given == tensors.size()) return tensors;
  throw Error(ErrorCode::kUsage, fmt::format("{} local tensors for a layout of {}", given, tensors.size()),
              fmt::format("rank {}", rank));
}

std::vector<bool> local_masters(const std::vector<LocalTensor>& tensors, std::size_t rank,
                                const std::vector<DType>& dtypes) {
  std::vector<bool> masters(tensors.size());
  if (dtypes.empty()) return masters;
  if (dtypes.size() != tensors.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} dtypes for {} local tensors", dtypes.size(), tensors.size()),
                fmt::format("rank {}", rank));
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    masters[t] =
        is_master(tensors[t].dtype, dtypes[t], fmt::format("rank {}: local tensor '{}'", rank, tensors[t].name));
  }
  return masters;
}

std::unique_ptr<RegionReader> make_host_reader(const TensorTable& table, const std::vector<ShardView>& regions) {
  return std::make_unique<HostRegionReader>(table, regions);
}

std::shared_ptr<ShardMemory> make_host_shard_memory(const Layout& layout, std::size_t rank,
                                                    std::vector<TensorBytes> local, const std::vector<DType>& dtypes) {
  const std::vector<LocalTensor>& tensors = local_tensors(layout, rank, local.size());
  std::vector<bool> masters = local_masters(tensors, rank, dtypes);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t bytes = tensors[t].elements * element_size(masters[t] ? DType::kF32 : tensors[t].dtype);
    if (local[t].size() == bytes) continue;
    throw Error(ErrorCode::kUsage, fmt::format("{} bytes for {}", local[t].size(), bytes),
                fmt::format("rank {}: local tensor '{}'", rank, tensors[t].name));
  }
  return std::make_shared<HostShardMemory>(std::move(local), std::move(masters));
}

}  // namespace sparsecast
