// SPDX-License-Identifier: Apache-2.0
#include "support/round_trip.hpp"

#include <algorithm>
#include <bit>

#include "reference/reference_encoder.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/delta_bytes.hpp"
#include "support/detectors.hpp"

namespace sparsecast::test {
namespace {

void require_state(const TensorTable& table, const TensorState& found, const TensorState& expected,
                   const std::string& when) {
  if (found != expected) throw RoundTripFailure(when + ": " + first_difference(table, found, expected));
}

bool all_bf16(const TensorTable& table) {
  return std::ranges::all_of(table, [](const TensorSpec& spec) { return spec.dtype == DType::kBF16; });
}

/// A publisher over a trainer's memory, which outlives it.
struct Trainer {
  TensorState weights;
  std::vector<std::vector<float>> masters;
  std::unique_ptr<Publisher> publisher;
};

/// Floats whose cast gives `bits`; a NaN comes out quiet, so the expected state is corrected.
std::vector<float> masters_of(Bytes& bits) {
  std::vector<float> masters;
  for (std::uint64_t i = 0; i < bits.size() / 2; ++i) {
    const auto expected = static_cast<std::uint32_t>(read_element(bits.data(), 2, i));
    masters.push_back(std::bit_cast<float>(expected << 16));
    if ((expected & 0x7FFF) > 0x7F80) write_element(bits.data(), 2, i, expected | 0x40);
  }
  return masters;
}

Trainer make_trainer(RandomDelta& delta, Random& random) {
  const TensorTable& table = *delta.table;
  Trainer trainer;
  PublisherOptions options;
  options.encode = delta.options;
  std::unique_ptr<Detector> detector;
  const std::uint64_t kind = random.below(4);
  const StateDigest base = sum(digest_tensors(table, refs_to(table, views(delta.old_state))));
  const bool context = delta.options.positions == PositionMode::kContext;  // Needs old weights after an abort.
  if (kind == 0 && all_bf16(table) && !context) {
    trainer.weights = delta.old_state;
    for (Bytes& bits : delta.new_state) trainer.masters.push_back(masters_of(bits));
    std::vector<std::span<const float>> masters(trainer.masters.begin(), trainer.masters.end());
    detector = host_fused_cast(table, masters, live_views(trainer.weights));
  } else if (kind == 1) {
    trainer.weights = delta.old_state;
    detector = host_snapshot(table, views(trainer.weights));
    for (std::size_t t = 0; t < table.size(); ++t) std::ranges::copy(delta.new_state[t], trainer.weights[t].begin());
  } else if (kind == 2 && delta.options.values == ValueCodec::kRaw) {
    trainer.weights = delta.new_state;
    auto mask = host_mask(table, views(trainer.weights));
    for (std::size_t t = 0; t < table.size(); ++t) {
      const std::size_t size = element_size(table[t].dtype);
      std::vector<std::uint64_t> flags((table[t].elements() + 63) / 64);
      for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
        const bool changed =
            read_element(delta.old_state[t].data(), size, i) != read_element(trainer.weights[t].data(), size, i);
        flags[i / 64] |= std::uint64_t{changed} << (i % 64);
      }
      mask->mark(t, flags.data());
    }
    detector = std::move(mask);
  } else {
    trainer.weights = delta.new_state;
    detector = make_compare_detector(table, views(trainer.weights), views(delta.old_state));
  }
  trainer.publisher = std::make_unique<Publisher>(delta.table, std::move(detector), options, base);
  return trainer;
}

/// The header first, then everything else in any order, some of it twice.
void stage_shuffled(Subscriber& subscriber, const Delta& delta, Random& random) {
  subscriber.stage(delta.header);
  std::vector<const Bytes*> records{&delta.commit};
  for (const Bytes& frame : delta.frames) records.push_back(&frame);
  if (random.chance(0.1)) records.push_back(records[random.below(records.size())]);
  for (std::size_t i = records.size(); i > 1; --i) std::swap(records[i - 1], records[random.below(i)]);
  for (const Bytes* record : records) subscriber.stage(*record);
}

/// Never more than the dense bytes, a directory entry a block and a frame's own bytes; over all, dense plus 1 %.
void require_size(const RandomDelta& delta, const Delta& published) {
  const std::uint64_t dense = delta.table->bytes();
  std::uint64_t overhead = 0;
  for (const Bytes& frame : published.frames) {
    const FrameHeader header = parse_frame_header(frame);
    overhead += 72 + 8 * header.groups + 19 * std::uint64_t{header.blocks};
  }
  require(published.result.frame_bytes <= dense + overhead, "frames are not larger than the dense bytes");
  require(published.result.frame_bytes <= dense + dense / 100 + 128 + 32 * delta.table->size(),
          "at most dense plus 1 %");
}

void require_reference(const RandomDelta& delta, const Delta& published) {
  const std::vector<ConstBytes> old_views = views(delta.old_state);
  const std::vector<ConstBytes> new_views = views(delta.new_state);
  EncodeOptions options = delta.options;
  options.positions = published.info.positions;  // What the objective made of `auto`.
  std::vector<Bytes> records = reference_encode(*delta.table, old_views, new_views, published.info, options);
  require(records.front() == published.header, "the header is the reference encoder's");
  require(records.back() == published.commit, "the commit record is the reference encoder's");
  require(std::vector<Bytes>(records.begin() + 1, records.end() - 1) == published.frames,
          "the frames are the reference encoder's");
}

void require_rolled_back(const RandomDelta& delta, const Delta& published, Subscriber& subscriber,
                         const TensorState& live) {
  const StateDigest reached = subscriber.digest();
  subscriber.undo_last();
  require_state(*delta.table, live, delta.old_state, "after undo_last");
  require(subscriber.digest() == published.info.base_digest && subscriber.version() == published.info.base_version,
          "undo_last restores digest and version");
  subscriber.stage(published);
  require(subscriber.apply().digest == reached, "a second apply reaches the same digest");

  const Bytes file = file_of(*delta.table, published);
  std::vector<Bytes> inverse;
  const std::vector<ConstBytes> base = views(delta.old_state);
  invert(
      DeltaFile::over(file, "forward"), delta.options, [&](Bytes&& record) { inverse.push_back(std::move(record)); },
      std::span<const ConstBytes>(base));
  for (const Bytes& record : inverse) subscriber.stage(record);
  subscriber.apply();
  require_state(*delta.table, live, delta.old_state, "after the inverse delta");
  require(subscriber.digest() == published.info.base_digest, "the inverse restores the digest");
}

}  // namespace

void require(bool holds, const std::string& claim) {
  if (!holds) throw RoundTripFailure("does not hold: " + claim);
}

DeltaReport check_round_trip(RandomDelta delta, Random& random, const RoundTripDepth& depth) {
  const TensorTable& table = *delta.table;
  Trainer trainer = make_trainer(delta, random);
  const std::uint64_t changed = count_changes(table, delta.old_state, delta.new_state);
  const Delta& published = trainer.publisher->publish();
  require(published.result.changed == changed, "every change is counted once");
  require_size(delta, published);

  TensorState live = delta.old_state;
  SubscriberOptions options;
  options.allow_rollback = true;
  Subscriber subscriber(delta.table, refs_to(*delta.table, live_views(live)), options);
  stage_shuffled(subscriber, published, random);
  require(subscriber.ready(), "all records are here");
  require(live == delta.old_state, "staging writes nothing");
  const ApplyReport report = subscriber.apply();
  require_state(table, live, delta.new_state, "after the apply");
  require(report.changed == changed && report.version == published.info.version, "the report counts the changes");
  require(report.digest == sum(digest_tensors(table, refs_to(table, views(live)))),
          "the running digest is the full one");
  require(report.digest == published.result.result_digest, "the digest is the promised one");

  if (depth.against_reference) require_reference(delta, published);
  if (depth.through_file) {
    const Bytes file = file_of(table, published);
    const DeltaFile parsed = DeltaFile::over(file, "delta");
    require(parsed.report().changed == changed, "the file's directories count the changes");
    require(parsed.table().hash() == table.hash(), "the file holds the table");
  }
  DeltaReport contents = report_of(published, table);
  if (depth.rolled_back) require_rolled_back(delta, published, subscriber, live);
  trainer.publisher->commit(published.info.version);
  require(trainer.publisher->digest() == report.digest, "both ends hold the same digest");
  return contents;
}

}  // namespace sparsecast::test
