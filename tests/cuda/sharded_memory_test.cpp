// SPDX-License-Identifier: Apache-2.0

// Bytes of device and pinned memory that a rank holds for sharded syncs, counted by the emulated device: by the formula
// of docs/gpu.md, whatever the number of routes.

#if defined(SPARSECAST_CUDA_EMULATION) && defined(SPARSECAST_HAVE_NCCL)

#include <gtest/gtest.h>

#include "codec/block.hpp"
#include "support/detectors.hpp"
#include "support/fake_groups.hpp"
#include "support/many_routes.hpp"
#include "tests/cuda/sharded_scene.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

/// Many ranks and routes take their time on a machine that is busy.
constexpr std::chrono::milliseconds kPatience = 300s;
using emulation::HeldMemory;

/// What a rank holds beyond its weights.
struct Held {
  HeldMemory built;            ///< After regroup().
  HeldMemory sync;             ///< The most during syncs, and after them.
  std::uint64_t channels = 0;  ///< Bytes of both kinds that the channels hold besides.
  std::uint64_t delta = 0;     ///< Bytes of the largest delta.
  std::uint64_t replaced = 0;  ///< Bytes of bf16 that it has changed.
};

HeldMemory since(HeldMemory now, const HeldMemory& before) {
  now.device -= before.device;
  now.pinned -= before.pinned;
  now.most_device -= before.device;
  now.most_pinned -= before.pinned;
  return now;
}

struct HeldByEnds {
  Held trainer;
  Held engine;
};

HeldByEnds held_by_ends(const ManyRoutes& routes, const DeviceOptions& device, const ShardedOptions& options = {}) {
  FakeGroups fake;
  HeldByEnds held;
  Meeting meeting(meeting_options(routes.ranks(), kPatience));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    const std::shared_ptr<const Layout>& layout = routes.layouts[static_cast<std::size_t>(r)];
    LocalStorage host = routes.weights.make(*layout, 0, 0);
    DeviceStorage weights(host);
    const HeldMemory before = emulation::held_memory();
    Held own;
    const auto run = [&](auto& end) {
      const emulation::RuntimeCounts unbuilt = emulation::thread_counts();
      end.regroup(channel, fake.open(r), kPatience);
      EXPECT_EQ(emulation::thread_counts().since(unbuilt).pageable_copies, 0U);
      own.built = since(emulation::held_memory(), before);
      emulation::forget_most_memory();
      for (std::uint64_t step = 1; step <= 3; ++step) {
        routes.weights.train(*layout, 0, step, host);
        if (r == 0) weights.write(host);
        const ShardedReport report = end.sync(kPatience);
        own.delta = std::max({own.delta, report.sent_bytes, report.received_bytes});
        own.replaced = std::max(own.replaced, 2 * report.applied);
      }
      own.sync = since(emulation::held_memory(), before);
      own.channels = fake.held_bytes(r);
    };
    ShardedOptions of_engine = options;
    of_engine.pinned_snapshot = false;
    if (r == 0) {
      ShardedPublisher publisher(layout, 0, refs_to(*layout, 0, weights.pointers(), 0), options, device);
      run(publisher);
      held.trainer = own;
    } else {
      ShardedSubscriber subscriber("engine " + std::to_string(r), layout, 0, refs_to(*layout, 0, weights.pointers(), 0),
                                   of_engine, device);
      run(subscriber);
      if (r == 1) held.engine = own;
    }
    EXPECT_EQ(routes.weights.count_wrong(*layout, 0, 3, weights.read()), 0U);
  });
  EXPECT_EQ(fake.misuses(), "");
  return held;
}

void print(const std::string& which, const Held& held) {
  std::cout << which << ": built " << held.built.device << " + " << held.built.pinned << ", in syncs "
            << held.sync.most_device << " + " << held.sync.most_pinned << ", after " << held.sync.device << " + "
            << held.sync.pinned << " bytes of device + pinned memory, channels " << held.channels << ", delta "
            << held.delta << '\n';
}

constexpr std::uint64_t kTileBytes = 2 * std::uint64_t{kTileElems};  ///< Of bf16.
/// Tables, as docs/gpu.md has them: of an end, a tile, and a route.
constexpr std::uint64_t kOfEnd = 2048;
constexpr std::uint64_t kOfTile = 120;
constexpr std::uint64_t kOfRoute = 512;

/// Returns what an encoder of bf16 holds on the device, without tables: arena, frames, entries and scratch.
std::uint64_t encoder_bytes(std::uint64_t bytes, std::uint64_t chunk_bytes, std::uint64_t delta = 0) {
  const std::uint64_t tiles = (bytes + kTileBytes - 1) / kTileBytes;
  const std::uint64_t chunk_tiles = std::min(tiles, chunk_bytes / kTileBytes);
  const std::uint64_t sets = chunk_tiles < tiles ? 2 : 1;
  constexpr std::uint64_t kCtas = 2 * 3;  // Multiprocessors of the emulated device, and CTAs on each.
  return std::min(sets * chunk_tiles * kTileBytes + bytes / 16, bytes) + std::max(bytes / 16, delta) +
         sets * chunk_tiles * 2048 + std::min(chunk_tiles, kCtas) * 8 * kTileElems;
}

void expect_bytes(std::uint64_t held, std::uint64_t formula, std::uint64_t tables, const std::string& what) {
  EXPECT_GE(held, formula) << what;
  EXPECT_LE(held, formula + tables) << what;
}

TEST(ShardedMemory, IsThatOfTheFormulaWhateverTheNumberOfRoutes) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  constexpr std::uint64_t kTiles = 64;
  constexpr std::uint64_t kBytes = kTiles * kTileBytes;
  for (const std::uint32_t count : {1U, 4U, 16U, 64U}) {
    const std::string which = std::to_string(count) + " routes";
    const HeldByEnds held = held_by_ends(ManyRoutes(count, kTiles * kTileElems), {});
    print(which + " sent", held.trainer);
    print(which + " received", held.engine);
    const std::uint64_t tables = kOfEnd + kTiles * kOfTile + count * kOfRoute;
    const std::uint64_t formula = kBytes + encoder_bytes(kBytes, std::uint64_t{1} << 30, held.trainer.delta);
    expect_bytes(held.trainer.built.device, formula, tables, which);
    expect_bytes(held.trainer.sync.most_device, formula, tables, which);
    EXPECT_EQ(held.trainer.sync.device, held.trainer.sync.most_device);
    EXPECT_LE(held.trainer.sync.most_pinned, kOfEnd + count * kOfRoute) << which;

    // Staging and count tables, and the heads of as many transfers as routes.
    constexpr std::uint64_t kChannels = 4 * FakeGroups::kStagingBytes + 2 * 8192;
    expect_bytes(held.trainer.channels, kChannels, 2 * 640 * count, which);
    expect_bytes(held.engine.channels, kChannels, 2 * 640 * count, which);

    EXPECT_LE(held.engine.built.device, kOfEnd + count * kOfRoute) << which;
    expect_bytes(held.engine.sync.most_device, held.engine.delta + 3 * held.engine.replaced,
                 held.engine.delta / 2 + 3 * held.engine.replaced / 2 + tables, which);
    EXPECT_EQ(held.engine.sync.device, held.engine.sync.most_device);
    EXPECT_LE(held.engine.sync.most_pinned, kOfEnd + count * kOfRoute) << which;
  }
}

TEST(ShardedMemory, OfAPinnedSnapshotIsOnTheHost) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  constexpr std::uint64_t kTiles = 16;
  constexpr std::uint64_t kBytes = kTiles * kTileBytes;
  ShardedOptions options;
  options.pinned_snapshot = true;
  const HeldByEnds ends = held_by_ends(ManyRoutes(4, kTiles * kTileElems), {}, options);
  print("4 routes sent from a pinned snapshot", ends.trainer);
  const std::uint64_t formula = encoder_bytes(kBytes, std::uint64_t{1} << 30, ends.trainer.delta);
  expect_bytes(ends.trainer.sync.most_device, formula, kOfEnd + kTiles * kOfTile + 4 * kOfRoute, "device");
  expect_bytes(ends.trainer.sync.most_pinned, kBytes, kOfEnd + 4 * kOfRoute, "pinned");
}

TEST(ShardedMemory, OfRawDeltasHasTheBitsThatTheyReplaced) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  ShardedOptions options;
  options.encode.values = ValueCodec::kRaw;
  const HeldByEnds held = held_by_ends(ManyRoutes(4, 16 * std::uint64_t{kTileElems}), {}, options);
  print("4 routes sent by raw", held.trainer);
  print("4 routes received by raw", held.engine);
  const std::uint64_t formula = held.engine.delta + 4 * held.engine.replaced;
  expect_bytes(held.engine.sync.most_device, formula, formula / 2 + kOfEnd + 16 * kOfTile + 4 * kOfRoute, "raw");
}

TEST(ShardedMemory, OfASmallTableIsSmall) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  const HeldByEnds held = held_by_ends(ManyRoutes(1, 2000), {});
  print("2000 elements sent", held.trainer);
  print("2000 elements received", held.engine);
  // Scratch is that of a whole tile, and 512 changes are kept for encode.
  EXPECT_LE(held.trainer.sync.most_device, 2048 + 8 * kTileElems + 5 * 4000U + kOfEnd + kOfRoute);
  EXPECT_LE(held.engine.sync.most_device, 2 * 4000U + kOfEnd + kOfRoute);
}

TEST(ShardedMemory, OfAnEncoderIsBoundedByItsChunk) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  constexpr std::uint64_t kTiles = 64;
  constexpr std::uint64_t kBytes = kTiles * kTileBytes;
  DeviceOptions device;
  device.chunk_bytes = 5 * kTileBytes;
  const HeldByEnds held = held_by_ends(ManyRoutes(16, kTiles * kTileElems), device);
  print("16 routes sent by chunks of 5 tiles", held.trainer);
  const std::uint64_t formula = kBytes + encoder_bytes(kBytes, 4 * kTileBytes);  // Four tiles of a route.
  expect_bytes(held.trainer.sync.most_device, formula, kOfEnd + kTiles * kOfTile + 16 * kOfRoute, "chunks");
}

/// Bytes that one publisher over whole tensors holds.
struct OfPublisher {
  HeldMemory built;
  HeldMemory used;  ///< After a publish and its commit.
};

template <class MakeDetector>
OfPublisher of_publisher(const std::shared_ptr<const TensorTable>& table, const MakeDetector& make_detector) {
  const emulation::RuntimeCounts unbuilt = emulation::thread_counts();
  const HeldMemory before = emulation::held_memory();
  Publisher publisher(table, make_detector(), PublisherOptions{});
  OfPublisher held{since(emulation::held_memory(), before), {}};
  emulation::forget_most_memory();
  publisher.publish_on_device();
  publisher.commit(1);
  held.used = since(emulation::held_memory(), before);
  EXPECT_EQ(emulation::thread_counts().since(unbuilt).pageable_copies, 0U);
  return held;
}

TEST(DetectorMemory, FusedCastAndTheCallersSnapshotNeedNoCopyOfTheWeights) {
  constexpr std::uint64_t kTensors = 16;
  constexpr std::uint64_t kTensorBytes = 2 * kTileBytes;
  constexpr std::uint64_t kBytes = kTensors * kTensorBytes;
  constexpr std::uint64_t kTables = kOfEnd + 2 * kTensors * kOfTile + kTensors * kOfRoute;
  std::vector<TensorSpec> specs;
  for (std::uint64_t t = 0; t < kTensors; ++t) specs.push_back({std::to_string(t), DType::kBF16, {kTensorBytes / 2}});
  const auto table = std::make_shared<const TensorTable>(specs);
  const DeviceStorage live(LocalStorage(kTensors, Bytes(kTensorBytes)));
  const DeviceStorage snapshot(LocalStorage(kTensors, Bytes(kTensorBytes)));
  const DeviceStorage masters(LocalStorage(kTensors, Bytes(2 * kTensorBytes)));
  std::vector<const void*> tensors;
  std::vector<const float*> floats;
  for (std::uint64_t t = 0; t < kTensors; ++t) {
    tensors.push_back(live.pointers()[t]);
    floats.push_back(static_cast<const float*>(masters.pointers()[t]));
  }
  const std::vector<TensorRef> live_views = refs_to(*table, live.pointers(), 0);
  const std::vector<TensorRef> held_views = refs_to(*table, snapshot.pointers(), 0);
  const std::vector<TensorRef> cast_views = master_refs(*table, floats, 0);
  DeviceOptions device;
  device.chunk_bytes = 3 * kTileBytes;
  const std::uint64_t encoder = encoder_bytes(kBytes, kTensorBytes);  // A tensor at a time.
  EXPECT_LT(encoder + kTables, kBytes) << "the test could not tell a copy of the weights";
  const auto expect = [&](const OfPublisher& held, std::uint64_t d_copy, std::uint64_t h_copy,
                          const std::string& which) {
    expect_bytes(held.built.device, encoder + d_copy, kTables, which);
    expect_bytes(held.used.most_device, encoder + d_copy, kTables, which);
    expect_bytes(held.used.most_pinned, h_copy, kTables, which);
    std::cout << which << ": " << held.used.most_device << " + " << held.used.most_pinned
              << " bytes of device + pinned memory for " << kBytes << " of weights\n";
  };
  expect(of_publisher(table, [&] { return device_snapshot(table, tensors, device); }), kBytes, 0, "snapshot");
  expect(of_publisher(table, [&] { return pinned_snapshot(table, tensors, device); }), 2 * kTensorBytes, kBytes,
         "pinned snapshot");
  expect(of_publisher(table, [&] { return device_snapshot_over(table, live_views, held_views, device); }), 0, 0,
         "the caller's snapshot");
  expect(of_publisher(table, [&] { return device_snapshot_over(table, cast_views, held_views, device); }), 0, 0,
         "cast snapshot");
  expect(of_publisher(table, [&] { return device_fused_cast(table, floats, live.pointers(), device); }), 0, 0,
         "fused cast");
}

/// Each small tensor has a tile of its own.
TEST(DetectorMemory, OfManySmallTensorsIsBoundedByTheChunk) {
  constexpr std::uint32_t kTensors = 600;
  std::vector<TensorSpec> specs;
  for (std::uint32_t t = 0; t < kTensors; ++t) specs.push_back({std::to_string(t), DType::kBF16, {8}});
  const auto table = std::make_shared<const TensorTable>(specs);
  const DeviceStorage live(LocalStorage(1, Bytes(16 * kTensors)));
  std::vector<const void*> tensors;
  for (std::uint32_t t = 0; t < kTensors; ++t) tensors.push_back(static_cast<std::byte*>(live.pointers()[0]) + 16 * t);
  DeviceOptions device;
  device.chunk_bytes = 10 * std::uint64_t{kTileElems};
  const OfPublisher held = of_publisher(table, [&] { return device_snapshot(table, tensors, device); });
  const std::uint64_t tables = kOfEnd + kTensors * (kOfTile + kOfRoute);
  EXPECT_LE(held.used.most_device, kTensors * 256 + 10 * 8 * 4 + 6 * 8 * kTileElems + tables);
  std::cout << kTensors << " tensors of 8 elements: " << held.used.most_device << " bytes of device memory\n";
}

}  // namespace
}  // namespace sparsecast::test

#endif
