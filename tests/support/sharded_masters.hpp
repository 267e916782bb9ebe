// SPDX-License-Identifier: Apache-2.0
#pragma once

// Syncs of a sharded trainer that holds fp32 masters of most of its bf16 tensors, in host memory or on a device:
// `Memory` is HostShards or its counterpart for a device. Masters move by fractions of a bf16 ULP; the engines' weights
// are compared with a cast that shares no code with the library.

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "sparsecast/layout.hpp"
#include "sparsecast/sharded.hpp"
#include "support/hashed_weights.hpp"
#include "support/masters.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {

constexpr std::chrono::milliseconds kMastersTimeout = std::chrono::seconds(60);

/// Two trainer ranks that cut rows; engine "a" of two ranks that cut columns, pad rows and transpose experts; engine
/// "b" of two that cut rows: world ranks 0, 1; 2, 3; 4, 5.
class MasterScene {
 public:
  static constexpr int kVersions = 20;

  MasterScene() : trainer(rows("dp")), engine_a(columns()), engine_b(rows("tp")) {
    Random random(case_seed(run_seed(), 71));
    const TensorTable& table = trainer->table();
    std::vector<TensorSpec> specs(table.begin(), table.end());
    for (TensorSpec& spec : specs) {
      if (spec.dtype == DType::kBF16 && spec.name != "plain.weight") spec.dtype = DType::kF32;
    }
    const TensorTable held(std::move(specs));
    held_.push_back(random_state(random, held));
    for (int v = 0; v <= kVersions; ++v) {
      wire_.push_back(cast_slowly(table, held, held_.back()));
      held_.push_back(held_.back());
      train_masters(random, table, held, held_.back());
    }
    for (std::size_t t = 0; t < table.size(); ++t) masters_.push_back(held[t].dtype != table[t].dtype);
  }

  /// Returns the dtypes of the trainer's local tensors.
  std::vector<DType> dtypes(std::size_t place) const {
    std::vector<DType> dtypes;
    for (const LocalTensor& tensor : trainer->ranks()[place].tensors) dtypes.push_back(tensor.dtype);
    for (const Shard& shard : trainer->ranks()[place].shards) {
      if (masters_[shard.tensor]) dtypes[shard.local] = DType::kF32;
    }
    return dtypes;
  }
  /// Local tensors of a trainer's rank, masters among them, and of any rank as receivers hold them.
  LocalStorage held(std::size_t place, int version) const { return cut(*trainer, place, held_, version, true); }
  LocalStorage wire(const Layout& layout, std::size_t place, int version) const {
    return cut(layout, place, wire_, version, false);
  }
  const std::shared_ptr<const Layout>& layout_of(int rank) const {
    return rank < 2 ? trainer : (rank < 4 ? engine_a : engine_b);
  }

  std::shared_ptr<const Layout> trainer;
  std::shared_ptr<const Layout> engine_a;
  std::shared_ptr<const Layout> engine_b;

 private:
  static LayoutBuilder tensors_over(const std::string& axis) {
    LayoutBuilder builder({Mesh{{axis, 2}}});
    builder.tensor({"a.weight", DType::kBF16, {1201, 60}});  // More than a tile a part.
    builder.tensor({"norm.weight", DType::kF32, {48, 20}});
    builder.tensor({"plain.weight", DType::kBF16, {48, 24}});
    builder.tensor({"head.weight", DType::kBF16, {95, 16}});
    for (const char* name : {"expert.0.weight", "expert.1.weight"}) builder.tensor({name, DType::kBF16, {14, 30}});
    return builder;
  }
  static std::shared_ptr<const Layout> rows(const std::string& axis) {
    LayoutBuilder builder = tensors_over(axis);
    for (const char* name :
         {"a.weight", "norm.weight", "plain.weight", "head.weight", "expert.0.weight", "expert.1.weight"}) {
      builder.add(name, {name}, Cut::fsdp2({axis}));
    }
    return std::make_shared<const Layout>(builder.build());
  }
  static std::shared_ptr<const Layout> columns() {
    LayoutBuilder builder = tensors_over("tp");
    for (const char* name : {"a.weight", "norm.weight", "plain.weight"}) {
      builder.add(name, {name}, Cut::row_parallel({"tp"}));
    }
    builder.add("head.weight", {"head.weight"}, Cut::vocab_parallel({"tp"}, 64));
    Experts experts = Experts::in_order({"tp"}, 2);
    experts.transposed = true;
    builder.add_experts("experts", {"expert.{expert}.weight"}, Cut::replicate(), experts);
    return std::make_shared<const Layout>(builder.build());
  }

  LocalStorage cut(const Layout& layout, std::size_t place, const std::vector<TensorState>& states, int version,
                   bool masters) const {
    const RankLayout& rank = layout.ranks()[place];
    std::vector<DType> local_dtypes;
    for (const LocalTensor& tensor : rank.tensors) local_dtypes.push_back(tensor.dtype);
    if (masters) local_dtypes = dtypes(place);
    LocalStorage storage;
    for (std::size_t l = 0; l < rank.tensors.size(); ++l) {
      storage.emplace_back(rank.tensors[l].elements * element_size(local_dtypes[l]), std::byte{0xA5});
    }
    const TensorState& state = states[static_cast<std::size_t>(version)];
    for (const Shard& shard : rank.shards) {
      const std::vector<std::uint64_t>& shape = layout.table()[shard.tensor].shape;
      const std::size_t size = element_size(local_dtypes[shard.local]);
      for (std::uint64_t i = 0; i < shard.box.elements(); ++i) {
        std::uint64_t index = 0;
        std::uint64_t element = shard.first;
        std::uint64_t left = i;
        std::uint64_t stride = 1;
        for (std::size_t d = shape.size(); d > 0; --d) {
          const std::uint64_t at = left % shard.box.extent[d - 1];
          left /= shard.box.extent[d - 1];
          index += (shard.box.offset[d - 1] + at) * stride;
          stride *= shape[d - 1];
          element += at * static_cast<std::uint64_t>(shard.strides[d - 1]);
        }
        write_element(storage[shard.local].data(), size, element,
                      read_element(state[shard.tensor].data(), size, index));
      }
    }
    return storage;
  }

  std::vector<TensorState> held_;  ///< States by version, as the trainer has them.
  std::vector<TensorState> wire_;  ///< And as receivers do.
  std::vector<bool> masters_;
};

/// Makes masters of the references to what has their size.
inline std::vector<TensorRef> with_masters(std::vector<TensorRef> refs, const LocalStorage& tensors) {
  for (std::size_t t = 0; t < refs.size(); ++t) {
    if (refs[t].dtype == DType::kBF16 && tensors[t].size() == 2 * refs[t].bytes()) refs[t].dtype = DType::kF32;
  }
  return refs;
}

/// A rank's local tensors in host memory.
class HostShards {
 public:
  explicit HostShards(LocalStorage tensors) : tensors_(std::move(tensors)) {}
  void write(const LocalStorage& tensors) {
    for (std::size_t t = 0; t < tensors.size(); ++t) std::ranges::copy(tensors[t], tensors_[t].begin());
  }
  LocalStorage read() const { return tensors_; }
  ShardedPublisher publisher(const std::shared_ptr<const Layout>& layout, std::size_t place, ShardedOptions options) {
    return {layout, place, refs(*layout, place), std::move(options)};
  }
  ShardedSubscriber subscriber(const char* engine, const std::shared_ptr<const Layout>& layout, std::size_t place,
                               ShardedOptions options) {
    return {engine, layout, place, refs(*layout, place), std::move(options)};
  }

 private:
  std::vector<TensorRef> refs(const Layout& layout, std::size_t place) {
    std::vector<void*> data;
    for (std::vector<std::byte>& tensor : tensors_) data.push_back(tensor.data());
    return with_masters(refs_to(layout, place, data, kHostMemory), tensors_);
  }

  LocalStorage tensors_;
};

/// One rank of the scene, which begins at version 0.
template <class Memory>
class MasterRank {
 public:
  MasterRank(const MasterScene& scene, int rank, ValueCodec values = ValueCodec::kUlp)
      : scene_(scene),
        rank_(rank),
        place_(static_cast<std::size_t>(rank) % 2),
        memory_(rank < 2 ? scene.held(place_, 0) : scene.wire(*scene.layout_of(rank), place_, 0)) {
    ShardedOptions options;
    if (rank >= 2) {
      subscribe(options);
      return;
    }
    options.encode.values = values;
    options.encode.threads = 2;
    publisher_.emplace(memory_.publisher(scene.trainer, place_, options));
  }

  void regroup(std::shared_ptr<ControlChannel> control) {
    if (publisher_) return publisher_->regroup(std::move(control), open_control_groups(), kMastersTimeout);
    subscriber_->regroup(std::move(control), open_control_groups(), kMastersTimeout);
  }
  ShardedReport sync() { return publisher_ ? publisher_->sync(kMastersTimeout) : subscriber_->sync(kMastersTimeout); }
  /// A trainer's rank: to the masters of that version.
  void train(int version) {
    if (publisher_) memory_.write(scene_.held(place_, version));
  }
  /// An engine's rank holds no version from now on.
  void forget() {
    LocalStorage nothing = memory_.read();
    for (auto& tensor : nothing) std::ranges::fill(tensor, std::byte{0xA5});
    memory_.write(nothing);
    ShardedOptions options;
    options.needs_anchor = true;
    subscribe(options);
  }
  void spoil() {
    LocalStorage bits = memory_.read();
    for (auto& tensor : bits) {
      for (std::byte& byte : tensor) byte ^= std::byte{0x10};
    }
    memory_.write(bits);
  }
  void expect_holds(int version) const {
    const bool same = memory_.read() == (publisher_ ? scene_.held(place_, version)
                                                    : scene_.wire(*scene_.layout_of(rank_), place_, version));
    EXPECT_TRUE(same) << "rank " << rank_ << ", version " << version;
  }
  std::uint64_t version() const { return publisher_ ? publisher_->version() : subscriber_->version(); }
  std::optional<ShardedPublisher>& publisher() { return publisher_; }
  std::optional<ShardedSubscriber>& subscriber() { return subscriber_; }

 private:
  void subscribe(const ShardedOptions& options) {
    subscriber_.emplace(memory_.subscriber(rank_ < 4 ? "a" : "b", scene_.layout_of(rank_), place_, options));
  }

  const MasterScene& scene_;
  int rank_;
  std::size_t place_;
  Memory memory_;
  std::optional<ShardedPublisher> publisher_;
  std::optional<ShardedSubscriber> subscriber_;
};

/// Runs body(channel) as each of so many ranks.
template <class Body>
void run_ranks(int ranks, const Body& body) {
  Meeting meeting(meeting_options(ranks, kMastersTimeout));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) { body(channel); });
}

template <class Memory>
void expect_every_version_is_the_cast(ValueCodec values) {
  SCOPED_TRACE(seed_note());
  const MasterScene scene;
  run_ranks(6, [&](const std::shared_ptr<Rendezvous>& channel) {
    MasterRank<Memory> rank(scene, channel->rank(), values);
    rank.regroup(channel);
    for (int v = 1; v <= MasterScene::kVersions; ++v) {
      rank.train(v);
      EXPECT_EQ(rank.sync().version, static_cast<std::uint64_t>(v));
      rank.expect_holds(v);
    }
    if (rank.subscriber()) return rank.subscriber()->audit();
    // Two bytes for each master of four.
    std::uint64_t bytes = 0;
    const auto place = static_cast<std::size_t>(channel->rank());
    for (const auto& tensor : scene.wire(*scene.trainer, place, 0)) bytes += tensor.size();
    EXPECT_EQ(rank.publisher()->snapshot_bytes(), bytes);
  });
}

template <class Memory>
void expect_a_failed_sync_is_rolled_back_and_an_anchor_is_what_was_committed(ValueCodec values) {
  SCOPED_TRACE(seed_note());
  const MasterScene scene;
  Meeting again(meeting_options(6, kMastersTimeout));
  run_ranks(6, [&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    MasterRank<Memory> rank(scene, r, values);
    rank.regroup(channel);
    rank.train(1);
    rank.sync();
    if (r == 3) rank.spoil();
    rank.train(2);
    EXPECT_NE(words_of([&] { rank.sync(); }), "");
    EXPECT_EQ(rank.version(), 1U);
    if (r >= 2 && r != 3) rank.expect_holds(1);
    if (r == 3) rank.forget();
    // Seeded with what was committed, whatever the masters are by now.
    rank.train(3);
    rank.regroup(again.meet(r));
    if (r >= 2) rank.expect_holds(1);
    EXPECT_EQ(rank.sync().version, 3U) << "the attempt that failed had number 2";
    rank.expect_holds(3);
    for (int v = 4; v <= 6; ++v) {
      rank.train(v);
      rank.sync();
      rank.expect_holds(v);
    }
  });
}

template <class Memory>
void expect_a_sync_in_doubt_is_settled(ValueCodec values) {
  SCOPED_TRACE(seed_note());
  const MasterScene scene;
  Meeting again(meeting_options(6, kMastersTimeout));
  run_ranks(6, [&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    MasterRank<Memory> rank(scene, r, values);
    rank.regroup(channel);
    rank.train(1);
    if (r == 4) {
      rank.subscriber()->receive(kMastersTimeout);
      channel->abort("the engine was killed in its pause");
    } else {
      EXPECT_NE(words_of([&] { rank.sync(); }), "");
    }
    rank.train(2);
    rank.regroup(again.meet(r));
    rank.sync();
    rank.expect_holds(2);
  });
}

template <class Memory>
void expect_a_doubt_can_be_ended_without_the_trainer(ValueCodec values) {
  SCOPED_TRACE(seed_note());
  const MasterScene scene;
  Meeting again(meeting_options(6, kMastersTimeout));
  run_ranks(6, [&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    MasterRank<Memory> rank(scene, r, values);
    rank.regroup(channel);
    rank.train(1);
    if (r == 4) {
      rank.subscriber()->receive(kMastersTimeout);
      channel->abort("the trainer was killed in the pause");
    } else {
      EXPECT_NE(words_of([&] { rank.sync(); }), "");
    }
    if (rank.subscriber()) {
      // Whether a rank had voted by then is chance; if it had, it holds the bytes of the attempt.
      if (const std::uint64_t attempt = rank.subscriber()->in_doubt(); attempt != 0) {
        EXPECT_EQ(attempt, 1U);
        EXPECT_EQ(rank.subscriber()->version(), 0U);
        rank.expect_holds(1);
      }
      rank.subscriber()->settle(false);
      EXPECT_EQ(rank.subscriber()->in_doubt(), 0U);
      EXPECT_EQ(rank.subscriber()->version(), 0U);
      rank.expect_holds(0);
      rank.subscriber()->settle(true);  // There is no doubt any more.
      rank.expect_holds(0);
    }
    rank.train(2);
    rank.regroup(again.meet(r));
    rank.sync();
    rank.expect_holds(2);
  });
}

template <class Memory>
void expect_an_engine_of_another_cut_may_join(ValueCodec values) {
  SCOPED_TRACE(seed_note());
  const MasterScene scene;
  Meeting second(meeting_options(6, kMastersTimeout));
  Meeting first(meeting_options(4, kMastersTimeout));
  std::vector<std::jthread> threads;
  for (int r = 0; r < 6; ++r) {
    threads.emplace_back([&, r] {
      try {
        MasterRank<Memory> rank(scene, r, values);
        if (r < 4) {
          rank.regroup(first.meet(r));
          for (int v = 1; v <= 3; ++v) {
            rank.train(v);
            rank.sync();
            rank.expect_holds(v);
          }
        } else {
          rank.forget();
        }
        rank.train(4);
        rank.regroup(second.meet(r));
        EXPECT_EQ(rank.version(), 3U);
        if (r >= 2) rank.expect_holds(3);
        for (int v = 4; v <= 6; ++v) {
          rank.train(v);
          rank.sync();
          rank.expect_holds(v);
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
}

}  // namespace sparsecast::test
