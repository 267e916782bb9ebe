// SPDX-License-Identifier: Apache-2.0

// Copies between a rank's tensors on a device, their snapshots, and anchors.

#include <gtest/gtest.h>

#include <algorithm>

#include "memory/encoder.hpp"
#include "sharded/shard_memory.hpp"
#include "support/expect_error.hpp"
#include "support/random.hpp"
#include "tests/cuda/device_access.hpp"
#include "tests/cuda/sharded_scene.hpp"

namespace sparsecast::test {
namespace {

constexpr std::size_t kElementBytes = 2;

/// One local tensor of bf16 [rows, columns].
std::shared_ptr<const Layout> one_tensor(std::uint64_t rows, std::uint64_t columns) {
  LayoutBuilder builder({Mesh{{"dp", 1}}});
  builder.tensor({"w", DType::kBF16, {rows, columns}});
  builder.add("w", {"w"}, Cut::replicate());
  return std::make_shared<const Layout>(builder.build());
}

LocalStorage random_storage(Random& random, std::uint64_t elements) {
  LocalStorage storage{std::vector<std::byte>(elements * kElementBytes)};
  for (std::byte& byte : storage[0]) byte = static_cast<std::byte>(random.next());
  return storage;
}

/// A part of the local tensor: element (i, j) lies at first + i * strides[0] + j * strides[1].
struct PartOfIt {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t first = 0;
  std::vector<std::int64_t> strides;

  std::uint64_t elements() const { return rows * columns; }
  TensorTable table() const { return TensorTable({{"part", DType::kBF16, {rows, columns}}}); }
  std::size_t byte_of(std::uint64_t element) const {
    const auto i = static_cast<std::int64_t>(element / columns);
    const auto j = static_cast<std::int64_t>(element % columns);
    return (first + static_cast<std::uint64_t>(i * strides[0] + j * strides[1])) * kElementBytes;
  }
  /// Its elements, one after another.
  Bytes gather(const LocalStorage& storage) const {
    Bytes out(elements() * kElementBytes);
    for (std::uint64_t e = 0; e < elements(); ++e) {
      std::copy_n(storage[0].begin() + static_cast<std::ptrdiff_t>(byte_of(e)), kElementBytes,
                  out.begin() + static_cast<std::ptrdiff_t>(e * kElementBytes));
    }
    return out;
  }
  void scatter(const Bytes& elements_of_it, LocalStorage& storage) const {
    for (std::uint64_t e = 0; e < elements(); ++e) {
      std::copy_n(elements_of_it.begin() + static_cast<std::ptrdiff_t>(e * kElementBytes), kElementBytes,
                  storage[0].begin() + static_cast<std::ptrdiff_t>(byte_of(e)));
    }
  }
};

/// A local tensor on the device, and a part of it.
class Place {
 public:
  Place(Random& random, std::uint64_t rows, std::uint64_t columns, PartOfIt of_it)
      : part(std::move(of_it)),
        host(random_storage(random, rows * columns)),
        device(host),
        memory(make_shard_memory(*one_tensor(rows, columns), 0,
                                 refs_to(*one_tensor(rows, columns), 0, device.pointers(), 0), false, {})) {}

  std::vector<TensorRef> views() const {
    return {ref_to(part.table()[0], memory->local()[0].data + part.first * kElementBytes, 0, part.strides)};
  }

  PartOfIt part;
  LocalStorage host;
  DeviceStorage device;
  std::shared_ptr<ShardMemory> memory;
};

/// Beyond what is staged at a time: a column cut, and a few rows that lie as columns.
std::vector<std::unique_ptr<Place>> places(Random& random) {
  std::vector<std::unique_ptr<Place>> places;
  places.push_back(std::make_unique<Place>(random, 3001, 2000, PartOfIt{3001, 1500, 300, {2000, 1}}));
  places.push_back(std::make_unique<Place>(random, 400, 90, PartOfIt{70, 390, 2 * 90 + 11, {1, 90}}));
  places.push_back(std::make_unique<Place>(random, 50, 60, PartOfIt{40, 60, 5 * 60, {60, 1}}));
  return places;
}

class DeviceShardMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }
  const LateCopies late_;
  const std::string note_ = seed_note();
  Random random_{run_seed()};
};

TEST_F(DeviceShardMemory, ReadsPartsTileByTileAndInAnyOrder) {
  SCOPED_TRACE(note_);
  for (const auto& place : places(random_)) {
    const TensorTable table = place->part.table();
    const Bytes expected = place->part.gather(place->host);
    const auto reader = place->memory->memory().make_reader(table, place->views());
    const std::uint64_t tiles = (place->part.elements() + kTileElems - 1) / kTileElems;
    const auto check = [&](std::uint64_t tile) {
      const std::uint64_t first = tile * kTileElems;
      const auto count =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(kTileElems, place->part.elements() - first));
      const std::byte* read = reader->read(0, first, count, nullptr);
      ASSERT_EQ(std::memcmp(read, expected.data() + first * kElementBytes, count * kElementBytes), 0) << tile;
    };
    for (std::uint64_t tile = 0; tile < tiles; ++tile) check(tile);
    for (int i = 0; i < 5; ++i) check(random_.below(tiles));
  }
}

/// Records of a delta of the part's table, from the complement of `elements` so that each has changed; or only some.
std::vector<Bytes> frames_of(const TensorTable& table, const Bytes& elements, bool all, DeltaHeader& header) {
  Bytes before = elements;
  for (std::size_t i = 0; i < before.size(); i += all ? 1 : 64) before[i] = ~before[i];
  const auto detector = make_compare_detector(table, {ConstBytes(elements)}, {ConstBytes(before)});
  EncodeOptions options;
  options.values = ValueCodec::kRaw;
  header = make_header(table, options, {}, 1, 1, {});
  std::vector<Bytes> frames;
  encode_frames(table, *detector, header, options, false, false,
                [&](Bytes&& record) { frames.push_back(std::move(record)); });
  return frames;
}

TEST_F(DeviceShardMemory, WritesTheBlocksOfAnAnchorAndNothingBesideThem) {
  SCOPED_TRACE(note_);
  for (const auto& place : places(random_)) {
    const TensorTable table = place->part.table();
    const Bytes elements = random_storage(random_, place->part.elements())[0];
    DeltaHeader header;
    const std::vector<Bytes> frames = frames_of(table, elements, true, header);
    const auto writer = place->memory->memory().make_writer(table, place->views());
    for (const Bytes& record : frames) {
      const FrameReader frame(record, header, table);
      for (const BlockRef& block : frame.blocks()) writer->write(block);
    }
    writer->finish();
    LocalStorage expected = place->host;
    place->part.scatter(elements, expected);
    EXPECT_TRUE(place->device.read() == expected);
  }
}

TEST_F(DeviceShardMemory, RefusesABlockOfAnAnchorThatLeavesElementsOut) {
  SCOPED_TRACE(note_);
  const auto place = std::move(places(random_).back());
  const TensorTable table = place->part.table();
  const Bytes elements = random_storage(random_, place->part.elements())[0];
  DeltaHeader header;
  const std::vector<Bytes> frames = frames_of(table, elements, false, header);
  const FrameReader frame(frames.at(0), header, table);
  const auto writer = place->memory->memory().make_writer(table, place->views());
  expect_error(ErrorCode::kCorrupt, [&] { writer->write(frame.blocks().at(0)); }, {"of its 2400 elements"});
  EXPECT_TRUE(place->device.read() == place->host) << "nothing was written";
}

TEST_F(DeviceShardMemory, CopiesABoxToASnapshotAndNothingBesideIt) {
  SCOPED_TRACE(note_);
  for (const auto& place : places(random_)) {
    const PartOfIt& part = place->part;
    LocalStorage expected = random_storage(random_, place->host[0].size() / kElementBytes);
    const DeviceStorage copy(expected);
    auto* const d_copy = static_cast<std::byte*>(copy.pointers()[0]);
    place->memory->take(0, {part.first, {part.rows, part.columns}, part.strides, kElementBytes}, d_copy);
    // A read waits for the stream.
    const TensorTable table = part.table();
    const auto reader = place->memory->memory().make_reader(table, place->views());
    reader->read(0, 0, 1, nullptr);
    part.scatter(part.gather(place->host), expected);
    EXPECT_TRUE(copy.read() == expected);
  }
}

TEST_F(DeviceShardMemory, ASnapshotThatThereIsNoMemoryForIsUnsupported) {
#if defined(SPARSECAST_CUDA_EMULATION)
  const auto place = std::move(places(random_).back());
  emulation::fail_allocation_after(0);
  expect_error(ErrorCode::kUnsupported, [&] { place->memory->memory().allocate(1000); }, {"cudaMalloc"});
  emulation::fail_allocation_after(-1);
  EXPECT_NE(place->memory->memory().allocate(1000), nullptr);
#endif
}

}  // namespace
}  // namespace sparsecast::test
