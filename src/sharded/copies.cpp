// SPDX-License-Identifier: Apache-2.0

// Each rank digests its copies, and sends one sum of hashes for all of them. Copy i of n adds hash(digest, i) and
// subtracts hash(digest, i + 1 modulo n), so that the sum over all ranks is zero when the copies are equal. When it is
// not, the ranks repeat this for half of the boxes until a single box is left. A message has 16 bytes.

#include "sharded/copies.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.hpp"
#include "fanout/copies.hpp"
#include "fanout/regions.hpp"
#include "transport/control/blobs.hpp"

namespace sparsecast {
namespace {

using fanout::CopiedBox;
using fanout::Copy;

/// Digest of a copy in this rank's memory.
struct CopyDigest {
  std::uint64_t box = 0;
  std::uint64_t copy = 0;  ///< Index into CopiedBox::copies.
  StateDigest digest;
};

/// Copies that are digested together.
class CopyBatch {
 public:
  CopyBatch(const TensorTable& table, const ShardMemory& memory, int threads)
      : table_(table), memory_(memory), threads_(threads) {}

  void add(const CopiedBox& box, const Copy& copy) {
    const Shard& shard = *copy.shard;
    const Region region{box.tensor, box.box, fanout::wire_order(shard, box.box)};
    const RegionView view = fanout::view_of(shard, region);
    tables_.push_back(std::make_shared<const TensorTable>(fanout::table_of(table_, {region})));
    const TensorSpec& spec = (*tables_.back())[0];
    TensorRef ref = memory_.local()[view.local];
    ref.data += view.first * element_size(ref.dtype);
    ref.shape = spec.shape;
    ref.strides = view.strides;
    if (memory_.is_master(view.local)) cast(ref, spec.dtype);
    refs_.push_back(std::move(ref));
  }

  bool full() const { return cast_bytes_ >= kMostCastBytes || refs_.size() >= kMostCopies; }

  /// Returns the digest of each copy in order, and removes all copies from the batch.
  std::vector<StateDigest> digest() {
    if (refs_.empty()) return {};
    const std::size_t count = refs_.size();
    const JoinedTables tables(std::move(tables_));
    std::vector<StateDigest> digests =
        memory_.memory().make_subscriber(tables, std::move(refs_), threads_)->digests(0, count);
    tables_.clear();
    refs_.clear();
    casts_.clear();
    cast_bytes_ = 0;
    return digests;
  }

 private:
  static constexpr std::uint64_t kMostCastBytes = std::uint64_t{256} << 20;
  static constexpr std::size_t kMostCopies = std::size_t{1} << 16;

  /// Replaces a reference to a master by a reference to its cast.
  void cast(TensorRef& ref, DType dtype) {
    const std::size_t size = element_size(dtype);
    std::uint64_t elements = 1;
    for (std::size_t d = 0; d < ref.shape.size(); ++d) {
      elements += (ref.shape[d] - 1) * static_cast<std::uint64_t>(ref.strides[d]);
    }
    casts_.push_back(memory_.memory().allocate(elements * size));
    cast_bytes_ += elements * size;
    memory_.memory().cast({0, ref.shape, ref.strides, size}, ref.data, casts_.back().get());
    ref.data = casts_.back().get();
    ref.dtype = dtype;
  }

  const TensorTable& table_;
  const ShardMemory& memory_;
  const int threads_;
  std::vector<std::shared_ptr<const TensorTable>> tables_;  ///< Parallel to the references: one tensor each.
  std::vector<TensorRef> refs_;
  std::vector<Allocation> casts_;
  std::uint64_t cast_bytes_ = 0;
};

/// Returns the digests of this rank's copies, ordered by box, then copy.
std::vector<CopyDigest> digest_copies(const FanoutPlan& plan, const std::vector<CopiedBox>& boxes, int rank,
                                      const ShardMemory& memory, int threads) {
  std::vector<CopyDigest> own;
  CopyBatch batch(plan.table(), memory, threads);
  std::size_t known = 0;
  const auto finish = [&] {
    for (const StateDigest& digest : batch.digest()) own[known++].digest = digest;
  };
  for (std::size_t b = 0; b < boxes.size(); ++b) {
    for (std::size_t c = 0; c < boxes[b].copies.size(); ++c) {
      if (boxes[b].copies[c].world_rank != rank) continue;
      own.push_back({b, c, {}});
      batch.add(boxes[b], boxes[b].copies[c]);
      if (batch.full()) finish();
    }
  }
  finish();
  return own;
}

class Comparison {
 public:
  Comparison(SyncWorld& world, const std::vector<CopiedBox>& boxes, std::vector<CopyDigest> own, Deadline deadline)
      : world_(world), boxes_(boxes), own_(std::move(own)), deadline_(deadline) {}

  /// Returns true on all ranks when copies of any of the boxes [begin, end) differ; collective.
  bool differ(std::size_t begin, std::size_t end) {
    StateDigest own;
    for (const CopyDigest& copy : own_) {
      if (copy.box < begin || copy.box >= end) continue;
      CopyDigest next = copy;
      next.copy = (copy.copy + 1) % boxes_[copy.box].copies.size();
      own += {xxh3_128(bytes_of(copy))};
      own -= {xxh3_128(bytes_of(next))};
    }
    const auto add_up = [&](const std::vector<Bytes>& parts) {
      StateDigest total;
      for (std::size_t r = 0; r < parts.size(); ++r) {
        total += value_of<StateDigest>(parts[r], world_.meeting().name_of(static_cast<int>(r)));
      }
      return Bytes(bytes_of(total).begin(), bytes_of(total).end());
    };
    const Bytes total = world_.control().reduce(bytes_of(own), add_up, deadline_);
    return value_of<StateDigest>(total, kWhat) != StateDigest{};
  }

  /// Collective; throws for a box whose copies differ.
  [[noreturn]] void refuse(std::size_t box) {
    const std::vector<Copy>& copies = boxes_[box].copies;
    Bytes own;
    for (const CopyDigest& copy : own_) {
      if (copy.box == box) own.insert(own.end(), bytes_of(copy.digest).begin(), bytes_of(copy.digest).end());
    }
    const auto find_other = [&](const std::vector<Bytes>& parts) {
      const auto digests = values_of<StateDigest>(concatenate(parts), copies.size());
      const auto other = std::ranges::find_if(digests, [&](const auto& digest) { return digest != digests.front(); });
      const auto index = static_cast<std::uint64_t>(other - digests.begin());
      return Bytes(bytes_of(index).begin(), bytes_of(index).end());
    };
    const Bytes found = world_.control().reduce(own, find_other, deadline_);
    const auto other = value_of<std::uint64_t>(found, kWhat);
    if (other >= copies.size()) throw Error(ErrorCode::kCorrupt, "they differ, and are all the same", kWhat);
    const auto [first, last] = std::minmax(copies.front().rank, copies[other].rank);
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("trainer {} different values of what is described as copies: name them apart, make them "
                            "equal, or leave it out",
                            first == last ? fmt::format("rank {} holds", first)
                                          : fmt::format("ranks {} and {} hold", first, last)),
                fmt::format("tensor '{}'{}", excerpt(world_.plan().table()[boxes_[box].tensor].name),
                            to_string(boxes_[box].box)));
  }

 private:
  static constexpr const char* kWhat = "the trainer's copies";

  SyncWorld& world_;
  const std::vector<CopiedBox>& boxes_;
  const std::vector<CopyDigest> own_;
  const Deadline deadline_;
};

}  // namespace

void compare_copies(SyncWorld& world, const ShardMemory* trainer, int threads, Deadline deadline) {
  const std::vector<CopiedBox> boxes = fanout::find_copies(world.plan());
  if (boxes.empty()) return;
  std::vector<CopyDigest> own;
  const Outcome outcome = Outcome::of([&] {
    if (trainer != nullptr) own = digest_copies(world.plan(), boxes, world.rank(), *trainer, threads);
  });
  require_all(world.voters(), outcome, deadline);
  Comparison comparison(world, boxes, std::move(own), deadline);
  std::size_t begin = 0;
  std::size_t end = boxes.size();
  if (!comparison.differ(begin, end)) return;
  while (end - begin > 1) {
    const std::size_t middle = begin + (end - begin) / 2;
    (comparison.differ(begin, middle) ? end : begin) = middle;
  }
  comparison.refuse(begin);
}

}  // namespace sparsecast
