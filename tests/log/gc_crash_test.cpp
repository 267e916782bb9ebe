// SPDX-License-Identifier: Apache-2.0

// A collector that crashed between its floor and its second look at the leases (docs/model: the mistake
// LEASES_BELOW_FLOOR_IGNORED).

#include <gtest/gtest.h>

#include "log/format/log_keys.hpp"
#include "log/format/records.hpp"
#include "log/reader/retention.hpp"
#include "support/fault_fs.hpp"
#include "support/log_scene.hpp"
#include "support/memory_store.hpp"

namespace sparsecast::test {
namespace {

TEST(CollectorThatCrashed, LeavesAFloorThatCostsNoLiveReaderItsDeltas) {
  const auto store = std::make_shared<MemoryStore>();
  FaultFileSystem fs;
  LogScene scene;
  LogReader reader(store);
  LogWriter writer(reader, {});
  writer.create(scene.creation());
  std::vector<LogCommit> commits;
  for (std::uint64_t v = 1; v <= 4; ++v) {
    const Bytes delta = scene.delta(v - 1, v, v);
    commits.push_back(writer.publish(DeltaFile::over(delta, "delta")));
  }
  const Bytes checkpoint = scene.checkpoint(4);
  fs.put_file("model.safetensors", checkpoint);
  writer.write_anchor(fs, "model.safetensors", 4);

  // The reader has written its lease and read the floor before the collector raised it.
  LogLease lease;
  lease.stream = scene.stream();
  lease.name = "reader";
  lease.version = 1;
  lease.renewed = unix_milliseconds(store->now);
  lease.expires = lease.renewed + std::chrono::hours(1);
  store->put(lease_key(lease.name), pack(lease));
  LogFloor floor;
  floor.stream = scene.stream();
  floor.version = 4;
  store->put(kFloorKey, pack(floor, nullptr));

  RetentionPolicy policy;
  policy.keep_versions = 1;
  policy.grace = std::chrono::milliseconds(0);
  EXPECT_EQ(writer.gc(policy).floor, 4U);
  for (std::uint64_t v = 2; v <= 4; ++v) {
    const LogCommit& commit = commits[v - 1];
    EXPECT_TRUE(store->size(delta_key({v - 1, v, commit.delta, commit.delta_bytes}))) << v;
  }
  // Once it is gone, so are they.
  store->remove(lease_key(lease.name));
  writer.gc(policy);
  for (std::uint64_t v = 1; v <= 4; ++v) {
    const LogCommit& commit = commits[v - 1];
    EXPECT_FALSE(store->size(delta_key({v - 1, v, commit.delta, commit.delta_bytes}))) << v;
  }
}

}  // namespace
}  // namespace sparsecast::test
