// SPDX-License-Identifier: Apache-2.0

// Bytes that a rank receives, and memory that it takes.

#include "allocations.hpp"
#include "sharded_scenes.hpp"

namespace sparsecast::mpi_test {
namespace {

/// Each engine rank gets the deltas of its own experts and of the shared tensors, and nothing else.
void expert_bytes_on(Case& running, int first_of_engine) {
  ShardedMember member(running,
                       {{"trainer", experts_megatron(2), range_of_ranks(0, 4)},
                        {{"engine", experts_engine(4, experts_in_order()), range_of_ranks(first_of_engine, 4)}}});
  const SubWorld world(true);
  running.expect_success(member.regroup(world), "regroup");
  for (std::uint64_t i = 0; i < kShardedVersions; ++i) {
    member.run(1);
    const ShardedReport& report = member.report();
    if (member.serves()) running.expect_equal(report.applied, member.count_changed(), "elements applied");
    running.expect_equal(member.serves() ? report.foreign_bytes : 0U, 0U, "bytes for others");
  }
  const ShardedReport& report = member.report();
  running.note(member.serves()
                   ? fmt::format("got {} bytes for {} changed elements of its own, {} for others",
                                 report.received_bytes, report.applied, report.foreign_bytes)
                   : fmt::format("sent {} bytes for {} changed elements", report.sent_bytes, report.changed));
}
void expert_bytes(Case& running) { expert_bytes_on(running, 4); }
const Registration kBytes{"sharded_expert_bytes", expert_bytes};

/// Bytes that a rank sends to others must not come to itself.
void expert_bytes_colocated(Case& running) { expert_bytes_on(running, 0); }
const Registration kBytesColocated{"sharded_expert_bytes_colocated", expert_bytes_colocated};

/// No rank takes memory for a whole canonical tensor, in a regroup, an anchor or a sync.
void memory(Case& running) {
  constexpr std::uint64_t kRows = 8192;
  constexpr std::uint64_t kColumns = 512;
  constexpr std::size_t kTensorBytes = kRows * kColumns * 2;
  LayoutBuilder trainer({Mesh{{"dp", 4}}});
  LayoutBuilder engine({Mesh{{"tp", 4}}});
  for (LayoutBuilder* const builder : {&trainer, &engine}) {
    builder->tensor({"down_proj", DType::kBF16, {kRows, kColumns}});
  }
  trainer.add("down_proj", {"down_proj"}, Cut::fsdp2({"dp"}));
  engine.add("down_proj", {"down_proj"}, Cut::row_parallel({"tp"}));
  ShardedScene scene{{"trainer", share(std::move(trainer)), range_of_ranks(0, 4)},
                     {{"engine", share(std::move(engine)), range_of_ranks(4, 4)}}};
  ShardedMember member(running, scene);
  member.forget();
  const SubWorld world(true);
  reset_allocations();
  running.expect_success(member.regroup(world), "regroup");
  member.expect_version(0);
  const Allocations seeding = allocations();
  member.train();
  reset_allocations();
  running.expect_success(member.sync(), "sync");
  const Allocations syncing = allocations();
  member.expect_version(1);
  running.note(
      fmt::format("of a tensor of {} bytes: a regroup with an anchor took {} at most, {} at once; a sync {}, {}",
                  kTensorBytes, seeding.peak, seeding.largest, syncing.peak, syncing.largest));
  running.expect(seeding.largest <= kTensorBytes / 2, "no allocation of a regroup comes near the whole tensor");
  running.expect(syncing.largest <= kTensorBytes / 2, "no allocation of a sync comes near the whole tensor");
  running.expect(seeding.peak < kTensorBytes, "a regroup's memory");
  running.expect(syncing.peak < kTensorBytes, "a sync's memory");
}
const Registration kMemory{"sharded_memory", memory};

}  // namespace
}  // namespace sparsecast::mpi_test
