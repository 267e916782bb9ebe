// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "codec/apply.hpp"
#include "codec/codec_common.hpp"
#include "core/strided_view.hpp"
#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "layout/local_tensors.hpp"
#include "sharded/shard_memory.hpp"
#include "sync/subscriber_backend.hpp"

namespace sparsecast {
namespace {

std::vector<StridedView> strided_views(const TensorTable& table, const std::vector<TensorRef>& regions) {
  std::vector<StridedView> views;
  for (std::size_t p = 0; p < table.size(); ++p) views.push_back(view_of_tensor(table[p], regions[p].strides));
  return views;
}

class HostRegionReader final : public RegionReader {
 public:
  HostRegionReader(const TensorTable& table, const std::vector<TensorRef>& regions)
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
  std::vector<TensorRef> regions_;
  std::vector<StridedView> views_;
};

class HostRegionWriter final : public RegionWriter {
 public:
  HostRegionWriter(const TensorTable& table, const std::vector<TensorRef>& regions)
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
  std::vector<TensorRef> regions_;
  std::vector<StridedView> views_;
  ApplyScratch scratch_;
};

class HostShardMemory final : public ShardMemory {
 public:
  HostShardMemory(std::vector<TensorRef> local, std::vector<DType> dtypes)
      : ShardMemory(std::move(local), std::move(dtypes), DeviceOptions{}) {}

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

  std::unique_ptr<RegionReader> make_reader(const TensorTable& table, const std::vector<TensorRef>& regions) override {
    return make_host_reader(table, regions);
  }
  std::unique_ptr<RegionWriter> make_writer(const TensorTable& table, const std::vector<TensorRef>& regions) override {
    return std::make_unique<HostRegionWriter>(table, regions);
  }
};

}  // namespace

std::unique_ptr<RegionReader> make_host_reader(const TensorTable& table, const std::vector<TensorRef>& regions) {
  return std::make_unique<HostRegionReader>(table, regions);
}

std::uint64_t ShardMemory::wire_bytes(std::size_t local) const {
  return local_[local].bytes() / element_size(local_[local].dtype) * element_size(dtypes_[local]);
}

std::unique_ptr<JoinedPublisher> ShardMemory::make_publisher(JoinedTables tables, std::vector<TensorRef> live,
                                                             std::vector<TensorRef> held,
                                                             const PublisherOptions& options) {
  DetectorOptions detecting;
  detecting.held = std::move(held);
  detecting.device = device_;
  auto detector = make_detector(tables.shared(), std::move(live), std::move(detecting));
  return std::make_unique<JoinedPublisher>(std::move(tables), std::move(detector), options);
}

std::unique_ptr<JoinedSubscriber> ShardMemory::make_subscriber(const JoinedTables& tables, std::vector<TensorRef> live,
                                                               const SubscriberOptions& options) const {
  return std::make_unique<JoinedSubscriber>(tables, std::move(live), options, device_);
}

std::shared_ptr<ShardMemory> make_shard_memory(const Layout& layout, std::size_t rank, std::vector<TensorRef> local,
                                               bool masters, const DeviceOptions& device, bool pinned_snapshot) {
  const std::vector<LocalTensor>& tensors = local_tensors(layout, rank, local.size());
  int place = kHostMemory;
  std::vector<DType> dtypes;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const LocalTensor& tensor = tensors[t];
    const std::string where = fmt::format("rank {}: local tensor '{}'", rank, tensor.name);
    const auto refuse = [&](const std::string& why) { throw Error(ErrorCode::kUsage, why, where); };
    const bool master = is_master(tensor.dtype, local[t].dtype, where);
    if (master && !masters) refuse("F32 given for BF16: an engine's tensors are of its layout's dtypes");
    if (local[t].elements() != tensor.elements) {
      refuse(fmt::format("{} elements, where the layout says {}", local[t].elements(), tensor.elements));
    }
    if (!local[t].contiguous()) refuse("it is not contiguous");
    if (t == 0) place = local[t].device;
    if (local[t].device != place)
      refuse("it is not where the first local tensor is: all are on one device, or on the host");
    if (tensor.elements != 0 && local[t].data == nullptr) refuse("its pointer is null");
    if (place != kHostMemory && reinterpret_cast<std::uintptr_t>(local[t].data) % element_size(local[t].dtype) != 0) {
      refuse("its pointer is not aligned to its elements");
    }
    dtypes.push_back(tensor.dtype);
  }
  if (place == kHostMemory) {
    if (pinned_snapshot) throw Error(ErrorCode::kUsage, "a pinned snapshot is for tensors in device memory");
    return std::make_shared<HostShardMemory>(std::move(local), std::move(dtypes));
  }
  try {
    return make_device_shard_memory(std::move(local), std::move(dtypes), on_device_of(device, place), pinned_snapshot);
  } catch (const Error& error) {
    throw error.within(fmt::format("rank {}", rank));
  }
}

}  // namespace sparsecast
