// SPDX-License-Identifier: Apache-2.0

// One publisher of several delta streams, on the host and on a device, against a publisher for each stream: the same
// bytes, version after version, and on a device a cost that does not depend on the number of streams.

#include "endpoint/publisher_state.hpp"
#include "support/detectors.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "cuda/differential.hpp"

namespace sparsecast::test {
namespace {

/// Tables of streams and their weights, which a trainer changes.
class Streams {
 public:
  Streams(Random& random, std::size_t streams) {
    for (std::size_t s = 0; s < streams; ++s) {
      tables.push_back(std::make_shared<const TensorTable>(
          random_table(random, {.max_tensors = 3, .max_elements = 20'000, .large_chance = 0.3})));
      states.push_back(random_state(random, *tables.back()));
    }
  }

  void train(Random& random) {
    for (std::size_t s = 0; s < tables.size(); ++s) change_randomly(random, *tables[s], states[s]);
  }
  /// Returns all weights, in the order of the joined table.
  TensorState all() const {
    TensorState out;
    for (const TensorState& state : states) out.insert(out.end(), state.begin(), state.end());
    return out;
  }

  std::vector<std::shared_ptr<const TensorTable>> tables;
  std::vector<TensorState> states;
};

/// Copies weights to memory of the same sizes, which publishers read.
void write(const TensorState& from, const std::vector<void*>& to) {
  for (std::size_t t = 0; t < from.size(); ++t) {
    if (!from[t].empty()) std::memcpy(to[t], from[t].data(), from[t].size());
  }
}

void expect_same(const Delta& found, const Delta& expected) {
  EXPECT_EQ(found.header, expected.header);
  EXPECT_EQ(found.frames, expected.frames);
  EXPECT_EQ(found.commit, expected.commit);
}

class JoinedPublishers : public DeviceCases {
 public:
  JoinedPublishers() : DeviceCases(0.2) {}
};
INSTANTIATE_TEST_SUITE_P(Random, JoinedPublishers, testing::Range(0, 4));

TEST_P(JoinedPublishers, EncodeEveryStreamAsAPublisherOfItsOwnDoes) {
  for_cases(12, [](Random& random) {
    Streams streams(random, random.between(1, 9));
    PublisherOptions options;
    options.encode = random_options(random);
    options.encode.zstd_level = 0;
    options.encode.threads = static_cast<int>(random.between(1, 3));

    std::vector<Publisher> separate;
    for (std::size_t s = 0; s < streams.tables.size(); ++s) {
      separate.emplace_back(streams.tables[s], host_snapshot(*streams.tables[s], views(streams.states[s])), options);
    }
    const JoinedTables tables(streams.tables);
    TensorState host = streams.all();
    DeviceState device(element_sizes(tables.all()), host, random.below(3));
    std::vector<void*> on_host;
    std::vector<void*> on_device;
    for (std::size_t t = 0; t < host.size(); ++t) {
      on_host.push_back(host[t].data());
      on_device.push_back(device[t]);
    }
    PublisherState joined(tables, host_snapshot(tables.all(), views(host)), options);
    const DeviceOptions chunks{.chunk_bytes = random.chance(0.5) ? random.between(1, 100'000) : 1'000'000};
    const std::vector<const void*> d_live(on_device.begin(), on_device.end());
    PublisherState joined_on_device(tables,
                                    random.chance(0.7) ? device_snapshot(tables.shared(), d_live, chunks)
                                                       : pinned_snapshot(tables.shared(), d_live, chunks),
                                    options);
    EXPECT_EQ(joined.digests(), joined_on_device.digests());

    for (std::uint64_t version = 1; version <= 4; ++version) {
      if (random.chance(0.9)) streams.train(random);
      write(streams.all(), on_host);
      write(streams.all(), on_device);
      std::vector<std::size_t> told;
      const std::vector<Delta>& found =
          joined.publish(nullptr, [&](std::size_t stream, const Delta&) { told.push_back(stream); });
      const std::vector<Delta>& found_on_device = joined_on_device.publish();
      const bool commits = random.chance(0.6);
      for (std::size_t s = 0; s < separate.size(); ++s) {
        SCOPED_TRACE(testing::Message() << "stream " << s << ", version " << version);
        EXPECT_EQ(told[s], s);
        // Its own copy of the weights is what it reads.
        const Delta& expected = separate[s].publish();
        expect_same(found[s], expected);
        expect_same(found_on_device[s], expected);
        commits ? separate[s].commit(version) : separate[s].abort(version);
        if (commits) {
          EXPECT_EQ(found[s].result.result_digest, separate[s].digest());
        }
      }
      EXPECT_EQ(told.size(), separate.size());
      commits ? joined.commit(version) : joined.abort(version);
      commits ? joined_on_device.commit(version) : joined_on_device.abort(version);
      EXPECT_EQ(joined.digests(), joined_on_device.digests());
      if (testing::Test::HasFailure()) return;
    }
  });
}

#if defined(SPARSECAST_CUDA_EMULATION)

/// Cuts 64 tensors into so many streams, and counts what a publish on the device costs once memory has grown.
emulation::RuntimeCounts cost_of(std::size_t streams) {
  constexpr std::size_t kTensors = 64;
  constexpr std::uint64_t kElements = 5'000;
  std::vector<std::shared_ptr<const TensorTable>> tables;
  for (std::size_t s = 0; s < streams; ++s) {
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < kTensors / streams; ++t) {
      specs.push_back({"t" + std::to_string(s * kTensors / streams + t), DType::kBF16, {kElements}});
    }
    tables.push_back(std::make_shared<const TensorTable>(std::move(specs)));
  }
  const JoinedTables joined(std::move(tables));
  const TensorState zeros(kTensors, Bytes(2 * kElements));
  DeviceState live(element_sizes(joined.all()), zeros, 0);
  std::vector<const void*> d_live;
  for (std::size_t t = 0; t < kTensors; ++t) d_live.push_back(live[t]);
  PublisherState publisher(joined, device_snapshot(joined.shared(), d_live), {});
  emulation::RuntimeCounts cost;
  for (std::uint64_t version = 1; version <= 3; ++version) {
    for (std::size_t t = 0; t < kTensors; ++t) {
      for (std::uint64_t i = t; i < kElements; i += 100) live[t][2 * i] ^= std::byte{1};
    }
    const emulation::RuntimeCounts before = emulation::runtime_counts();
    publisher.publish_on_device();
    publisher.commit(version);
    cost = emulation::runtime_counts().since(before);
  }
  return cost;
}

TEST(PublisherState, CostsADeviceTheSameWhateverTheNumberOfStreams) {
  const emulation::RuntimeCounts one = cost_of(1);
  EXPECT_EQ(one.queries, 1U);
  EXPECT_EQ(one.late_loads, 0U);
  for (const std::size_t streams : {4U, 16U, 64U}) {
    const emulation::RuntimeCounts many = cost_of(streams);
    EXPECT_EQ(many.launches, one.launches) << streams << " streams";
    EXPECT_EQ(many.queries, one.queries) << streams << " streams";
    EXPECT_EQ(many.copies, one.copies) << streams << " streams";
    EXPECT_EQ(many.allocations, 0U) << streams << " streams";
    EXPECT_LE(many.bus_bytes, one.bus_bytes + 200 * streams) << streams << " streams";
  }
}

#endif

}  // namespace
}  // namespace sparsecast::test
