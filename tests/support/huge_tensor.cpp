// SPDX-License-Identifier: Apache-2.0
#include "support/huge_tensor.hpp"

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <memory>

#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/round_trip.hpp"

namespace sparsecast::test {
namespace {

constexpr std::uint64_t kElements = (std::uint64_t{1} << 32) + 70'001;
constexpr std::array<std::uint64_t, 10> kChanged = {0,
                                                    (std::uint64_t{1} << 31) - 1,
                                                    std::uint64_t{1} << 31,
                                                    (std::uint64_t{1} << 32) - 1,
                                                    std::uint64_t{1} << 32,
                                                    (std::uint64_t{1} << 32) + 1,
                                                    (std::uint64_t{1} << 32) + 16'383,
                                                    (std::uint64_t{1} << 32) + 16'384,
                                                    kElements - 2,
                                                    kElements - 1};

/// Zeros that take no memory until they are written.
class SparseMapping {
 public:
  explicit SparseMapping(std::size_t bytes) : bytes_(bytes) {
    base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) throw RoundTripFailure("cannot reserve address space");
  }
  ~SparseMapping() { munmap(base_, bytes_); }
  SparseMapping(const SparseMapping&) = delete;
  SparseMapping& operator=(const SparseMapping&) = delete;

  MutableBytes bytes() const { return {static_cast<std::byte*>(base_), bytes_}; }

 private:
  void* base_;
  std::size_t bytes_;
};

}  // namespace

void check_huge_tensor(PositionMode positions, ValueCodec values, int threads) {
  const auto table = std::make_shared<const TensorTable>(
      std::vector<TensorSpec>{{"huge", DType::kU8, {kElements}}, {"after", DType::kBF16, {5}}});
  const SparseMapping current(kElements);
  const SparseMapping base(kElements);
  const SparseMapping live(kElements);
  Bytes small_new(10, std::byte{3});
  Bytes small_old(10);
  Bytes small_live(10);
  for (const std::uint64_t at : kChanged) {
    base.bytes()[at] = live.bytes()[at] = static_cast<std::byte>(at % 7);
    current.bytes()[at] = static_cast<std::byte>(at % 7 + 1 + at % 3);
  }

  PublisherOptions publish;
  publish.encode.positions = positions;
  publish.encode.values = values;
  publish.encode.threads = threads;
  const std::vector<ConstBytes> old_views{base.bytes(), small_old};
  const StateDigest base_digest = sum(digest_tensors(*table, refs_to(*table, old_views), threads));
  Publisher publisher(table, make_compare_detector(*table, {current.bytes(), small_new}, old_views), publish,
                      base_digest);
  const Delta& delta = publisher.publish();
  if (delta.result.changed != kChanged.size() + 5) throw RoundTripFailure("changes beyond 2^32 are not all found");

  SubscriberOptions subscribe;
  subscribe.threads = threads;
  Subscriber subscriber(table, refs_to(*table, std::vector<MutableBytes>{live.bytes(), small_live}), subscribe);
  subscriber.stage(delta);
  subscriber.apply();
  for (const std::uint64_t at : kChanged) {
    if (live.bytes()[at] != current.bytes()[at]) throw RoundTripFailure("element " + std::to_string(at) + " is wrong");
  }
  if (std::memcmp(live.bytes().data(), current.bytes().data(), kElements) != 0) {
    throw RoundTripFailure("an element that did not change was written");
  }
  if (small_live != small_new) throw RoundTripFailure("the tensor after the huge one is wrong");
  subscriber.undo_last();
  if (std::memcmp(live.bytes().data(), base.bytes().data(), kElements) != 0) {
    throw RoundTripFailure("undo_last does not restore the huge tensor");
  }
}

}  // namespace sparsecast::test
