// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "codec/apply.hpp"
#include "codec/codec_common.hpp"
#include "core/tensor_view.hpp"
#include "core/word.hpp"
#include "memory/memory_backend.hpp"

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
  void write(std::size_t region, std::uint64_t first, ConstBytes elements) override {
    const std::size_t size = element_size(table_[region].dtype);
    for_each_rectangle(views_[region], first, elements.size() / size, [&](const RowRectangle& next) {
      for (std::uint64_t r = 0; r < next.rows; ++r) {
        std::memcpy(regions_[region].data + (next.offset + r * next.pitch) * size,
                    elements.data() + (next.first + r * next.run) * size, next.run * size);
      }
    });
  }
  void finish() override {}

 private:
  const TensorTable& table_;
  std::vector<TensorRef> regions_;
  std::vector<StridedView> views_;
  ApplyScratch scratch_;
};

class HostMemory final : public MemoryBackend {
 public:
  int device() const noexcept override { return kHostMemory; }

  std::unique_ptr<Detector> make_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                          DetectorOptions options) const override {
    return make_host_detector(table, std::move(live), std::move(options));
  }
  std::unique_ptr<SubscriberBackend> make_subscriber(const JoinedTables& tables, std::vector<TensorRef> live,
                                                     int threads) const override {
    return make_host_subscriber_backend(tables, std::move(live), threads);
  }

  Allocation allocate(std::uint64_t bytes) const override {
    const auto memory = std::make_shared<Bytes>(bytes);
    return {memory, memory->data()};
  }

  void copy(const MemoryBox& box, const std::byte* from, std::byte* to, bool) const override {
    const std::size_t size = box.element_bytes;
    for_each_rectangle(box, [&](const RowRectangle& next) {
      for (std::uint64_t r = 0; r < next.rows; ++r) {
        const std::uint64_t at = (next.offset + r * next.pitch) * size;
        std::memcpy(to + at, from + at, next.run * size);
      }
    });
  }

  void cast(const MemoryBox& box, const std::byte* masters, std::byte* to) const override {
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

std::shared_ptr<MemoryBackend> make_host_memory() { return std::make_shared<HostMemory>(); }

std::shared_ptr<MemoryBackend> memory_at(int place, DeviceOptions options, bool pinned_copies) {
  if (place == kHostMemory) {
    if (pinned_copies) throw Error(ErrorCode::kUsage, "a pinned snapshot is for tensors in device memory");
    return make_host_memory();
  }
  if (options.device >= 0 && options.device != place) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the tensors are on device {}, the options name device {}", place, options.device));
  }
  options.device = place;
  return make_device_memory(options, pinned_copies);
}

int place_of(const TensorTable& table, const std::vector<TensorRef>& tensors, const char* what,
             const DeviceOptions& options) {
  const int device = common_device(table, tensors, what);
  return tensors.empty() && options.device >= 0 ? options.device : device;
}

std::unique_ptr<Detector> make_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                        DetectorOptions options) {
  const int device = place_of(*table, live, "live", options.device);
  if (!options.held.empty() && common_device(*table, options.held, "held") != device) {
    throw Error(ErrorCode::kUsage, "what receivers hold is not on the device of the live tensors");
  }
  const auto memory = memory_at(device, options.device);
  return memory->make_detector(std::move(table), std::move(live), std::move(options));
}

std::unique_ptr<RegionReader> make_host_reader(const TensorTable& table, const std::vector<TensorRef>& regions) {
  return std::make_unique<HostRegionReader>(table, regions);
}

}  // namespace sparsecast
