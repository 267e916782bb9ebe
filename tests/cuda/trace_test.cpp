// SPDX-License-Identifier: Apache-2.0

// Ranges as a profiler sees them. The recorder (tests/trace) is loaded as any profiler would be, when the first range
// begins.

#if defined(SPARSECAST_HAVE_NVTX) && defined(SPARSECAST_TEST_RECORDER)

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "cuda/apply/device_applier.hpp"
#include "cuda/differential.hpp"
#include "support/forge.hpp"
#include "trace/recorder.hpp"

namespace sparsecast::test {
namespace {

using Kind = RecordedEvent::Kind;

// Before the first range of any test; a profiler that the caller runs these tests under stays.
[[maybe_unused]] const int kInjected = setenv("NVTX_INJECTION64_PATH", SPARSECAST_TEST_RECORDER, 0);

class Trace : public testing::Test {
 protected:
  void SetUp() override {
    { const TraceRange<"test"> first; }
    void* const library = dlopen(SPARSECAST_TEST_RECORDER, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) GTEST_SKIP() << "another profiler is here";
    using Events = const std::vector<RecordedEvent>* (*)();
    events_ = reinterpret_cast<Events>(dlsym(library, "recorded_events"))();
    begin_ = events_->size();
  }

  std::vector<RecordedEvent> events() const {
    return {events_->begin() + static_cast<std::ptrdiff_t>(begin_), events_->end()};
  }
  /// Pushes and pops of the name.
  std::size_t count(Kind kind, const std::string& name) const {
    const std::vector<RecordedEvent> all = events();
    return static_cast<std::size_t>(
        std::ranges::count_if(all, [&](const RecordedEvent& e) { return e.kind == kind && e.name == name; }));
  }
  TracePayload payload(Kind kind, const std::string& name) const {
    for (const RecordedEvent& event : events()) {
      if (event.kind == kind && event.name == name && event.has_payload) return event.payload;
    }
    ADD_FAILURE() << name << " has no payload";
    return {};
  }
  void expect_ranges(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      EXPECT_GE(count(Kind::kPush, name), 1U) << name;
      EXPECT_EQ(count(Kind::kPush, name), count(Kind::kPop, name)) << name;
    }
  }

  const std::vector<RecordedEvent>* events_ = nullptr;
  std::size_t begin_ = 0;
};

struct Step {
  Step() : table({{"t", DType::kBF16, {30'000}}}), before({Bytes(60'000, std::byte{0x3C})}), after(before) {
    for (std::uint64_t i = 0; i < 300; ++i) after[0][200 * i] ^= std::byte{1};
    records = encode_records(table, before, after, {}, {6, 7});
  }
  TensorTable table;
  TensorState before;
  TensorState after;
  std::vector<Bytes> records;
};

TEST_F(Trace, EncodingOnTheCpuIsARangeWithItsVersionAndThenItsSize) {
  const Step step;
  expect_ranges({"encode", "encode.sections", "encode.frames"});
  EXPECT_EQ(payload(Kind::kPush, "encode").version, 7U);
  EXPECT_EQ(payload(Kind::kPush, "encode").bytes, 60'000U);
  const TracePayload result = payload(Kind::kMark, "encode");
  EXPECT_EQ(result.version, 7U);
  EXPECT_EQ(result.changed, 300U);
  EXPECT_EQ(result.bytes, step.records[2].size());
  EXPECT_DOUBLE_EQ(result.density, 0.01);
}

TEST_F(Trace, NestedRangesLieInsideTheirPhase) {
  const Step step;
  std::size_t depth = 0;
  for (const RecordedEvent& event : events()) {
    if (event.kind == Kind::kPop) --depth;
    EXPECT_EQ(event.depth, depth);
    if (event.name == "encode") {
      EXPECT_EQ(event.depth, event.kind == Kind::kMark ? 1U : 0U);
    }
    if (event.kind == Kind::kPush) ++depth;
  }
  EXPECT_EQ(depth, 0U);
}

TEST_F(Trace, ThePhasesOnADeviceAreRanges) {
  if (!device_present()) GTEST_SKIP() << "no device";
  const Step step;
  DeviceState live({2}, step.before, 0);
  cuda::DeviceApplier applier(step.table, {ref_to(step.table[0], live[0], 0)});
  const Bytes& frame = step.records[2];
  const SharedBytes record(allocate_shared(frame.size()));
  std::memcpy(record.get(), frame.data(), frame.size());
  const std::vector<DeviceRecord> frames = {{record.get(), static_cast<std::uint32_t>(frame.size())}};
  applier.stage(parse_header(step.records.front()), frames, nullptr);
  applier.prepare_expansion(Direction::kForward, nullptr);
  const SharedBytes full(allocate_shared(60'000));
  applier.expand(0, full.get(), nullptr);
  applier.apply(Direction::kForward, nullptr);
  applier.digest_changes();
  applier.digests(0, 1, nullptr);
  expect_ranges({"device_stage", "device_stage.inspect", "device_stage.validate", "device_expand.check",
                 "device_expand", "device_apply", "device_apply.wait", "device_digest"});
  EXPECT_EQ(payload(Kind::kPush, "device_stage").version, 7U);
  EXPECT_EQ(payload(Kind::kPush, "device_stage").bytes, frame.size());
  EXPECT_EQ(payload(Kind::kPush, "device_apply").changed, 300U);
  EXPECT_DOUBLE_EQ(payload(Kind::kPush, "device_apply").density, 0.01);

  Random random(4);
  RandomDelta delta;
  delta.table = std::make_shared<const TensorTable>(step.table);
  delta.old_state = step.before;
  delta.new_state = step.after;
  expect_compare_agrees(delta, random);
  expect_ranges({"device_encode.enqueue", "device_encode.finish", "device_encode.wait", "device_encode.seal"});
  EXPECT_EQ(payload(Kind::kMark, "device_encode.finish").changed, 300U);
}

}  // namespace
}  // namespace sparsecast::test

#endif
