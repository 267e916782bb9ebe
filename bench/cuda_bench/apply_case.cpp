// SPDX-License-Identifier: Apache-2.0
#include "apply_case.hpp"

namespace sparsecast::bench {

namespace {

cuda::DeviceApplier make_applier(const ApplyCase& apply, const cuda::DeviceApplierOptions& options) {
  const std::vector<void*> d_live(apply.d_live.begin(), apply.d_live.end());
  return {apply.table, refs_to(apply.table, d_live, 0), options};
}

std::vector<DeviceRecord> records_of(const cuda::DeviceFrames& frames) {
  std::vector<DeviceRecord> records;
  for (const cuda::DeviceFrame& frame : frames.frames) records.push_back({frame.d_record, frame.record_bytes});
  return records;
}

/// Times the apply of a staged delta and adds its row.
void time_apply(Workbench& bench, const ApplyCase& apply, cuda::DeviceApplier& applier, const char* phase) {
  const Times written = bench.time(apply.reset, [&] { applier.apply(Direction::kForward, bench.stream()); });
  bench.require(sum(applier.digest_changes()) == apply.frames.digest_change, "the digest's change, " + apply.what);
  ResultLine row{phase, apply.what, apply.percent, apply.sectors * 64 + apply.frames.commit.frame_bytes, written};
  if (apply.sectors != 0) {
    const double floor_ms = static_cast<double>(apply.sectors) * 64 / bench.copy_bandwidth(apply.bytes) * 1e3;
    row.more["sectors"] = static_cast<double>(apply.sectors);
    row.more["floor_ms"] = floor_ms;
    row.more["times_floor"] = written.device_ms / floor_ms;
  }
  bench.add(row, apply.bytes);
}

}  // namespace

void run_apply(Workbench& bench, const ApplyCase& apply) {
  StepTimer steps(bench.stream());
  cuda::DeviceApplierOptions options;
  options.after_step = steps.hook();
  cuda::DeviceApplier applier = make_applier(apply, options);
  const std::vector<DeviceRecord> records = records_of(apply.frames);
  const std::uint64_t frame_bytes = apply.frames.commit.frame_bytes;

  apply.reset();
  const Times stage = bench.time(
      nullptr, [&] { applier.stage(apply.header, records, bench.stream()); }, &steps);
  const ResultLine staged{"stage", apply.what, apply.percent, 2 * frame_bytes, stage};
  bench.add(staged, apply.bytes);
  add_steps(bench, steps, staged, apply.bytes);

  time_apply(bench, apply, applier, "apply");

  const Times digest =
      bench.time(nullptr, [&] { static_cast<void>(applier.digests(0, apply.table.size(), bench.stream())); });
  bench.add({"digest", apply.what, apply.percent, apply.bytes, digest}, apply.bytes);
}

void run_apply_variants(Workbench& bench, const ApplyCase& apply) {
  const std::vector<DeviceRecord> records = records_of(apply.frames);
  for (const bool kept : {true, false}) {
    cuda::DeviceApplierOptions options;
    options.entry_bytes = kept ? ~std::uint64_t{0} : 0;
    cuda::DeviceApplier applier = make_applier(apply, options);
    apply.reset();
    const Times staged = bench.time(nullptr, [&] { applier.stage(apply.header, records, bench.stream()); });
    bench.add({kept ? "stage, entries" : "stage, no entries", apply.what, apply.percent,
               2 * apply.frames.commit.frame_bytes, staged},
              apply.bytes);
    time_apply(bench, apply, applier, kept ? "apply, entries" : "apply, no entries");
  }
}

}  // namespace sparsecast::bench
