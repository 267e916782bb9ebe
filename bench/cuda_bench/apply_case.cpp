// SPDX-License-Identifier: Apache-2.0
#include "apply_case.hpp"

namespace sparsecast::bench {

void run_apply(Workbench& bench, const ApplyCase& apply) {
  StepTimer steps(bench.stream());
  cuda::DeviceApplierOptions options;
  options.after_step = steps.hook();
  const std::vector<void*> d_live(apply.d_live.begin(), apply.d_live.end());
  cuda::DeviceApplier applier(apply.table, refs_to(apply.table, d_live, 0), options);
  std::vector<DeviceRecord> records;
  for (const cuda::DeviceFrame& frame : apply.frames.frames) records.push_back({frame.d_record, frame.record_bytes});
  const std::uint64_t frame_bytes = apply.frames.commit.frame_bytes;

  apply.reset();
  const Times stage = bench.time(
      nullptr, [&] { applier.stage(apply.header, records, bench.stream()); }, &steps);
  const ResultLine staged{"stage", apply.what, apply.percent, 2 * frame_bytes, stage};
  bench.add(staged, apply.bytes);
  add_steps(bench, steps, staged, apply.bytes);

  const Times written = bench.time(apply.reset, [&] { applier.apply(Direction::kForward, bench.stream()); });
  bench.require(sum(applier.digest_changes()) == apply.frames.digest_change, "the digest's change, " + apply.what);
  ResultLine row{"apply", apply.what, apply.percent, apply.sectors * 64 + frame_bytes, written};
  if (apply.sectors != 0) {
    const double floor_ms = static_cast<double>(apply.sectors) * 64 / bench.copy_bandwidth(apply.bytes) * 1e3;
    row.more["sectors"] = static_cast<double>(apply.sectors);
    row.more["floor_ms"] = floor_ms;
    row.more["times_floor"] = written.device_ms / floor_ms;
  }
  bench.add(row, apply.bytes);

  const Times digest =
      bench.time(nullptr, [&] { static_cast<void>(applier.digests(0, apply.table.size(), bench.stream())); });
  bench.add({"digest", apply.what, apply.percent, apply.bytes, digest}, apply.bytes);
}

}  // namespace sparsecast::bench
