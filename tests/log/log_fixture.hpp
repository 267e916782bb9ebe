// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "log/format/records.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"
#include "support/log_scene.hpp"

namespace sparsecast::test {

inline Bytes owned_bytes_of_text(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// A log in "log" of a file system in memory, with "scratch" beside it.
class LogFixture : public ::testing::Test {
 protected:
  LogFixture() { fs_.make_directory("scratch"); }

  std::shared_ptr<ObjectStore> open() { return open_directory_store(fs_, "log"); }

  /// The step from the scene's state `step - 1` to `step`.
  LogCommit publish(LogWriter& writer, std::uint64_t step, std::uint64_t version, const EncodeOptions& options = {}) {
    const Bytes bytes = scene_.delta(step - 1, step, version, options);
    return writer.publish(DeltaFile::over(bytes, "delta"), "step");
  }
  /// Versions `first` to `last`, each the step of its number.
  void publish_all(LogWriter& writer, std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t version = first; version <= last; ++version) publish(writer, version, version);
  }
  AnchorRef anchor(LogWriter& writer, std::uint64_t step, std::uint64_t version) {
    fs_.put_file("checkpoint.safetensors", scene_.checkpoint(step));
    return writer.write_anchor(fs_, "checkpoint.safetensors", version);
  }
  /// Writes the lease of a reader with this name, whose clock is so far ahead.
  void lease(const std::string& name, std::uint64_t version, std::chrono::milliseconds time,
             std::chrono::milliseconds ahead = {}) {
    LogLease lease;
    lease.stream = scene_.stream();
    lease.name = name;
    lease.version = version;
    lease.renewed = std::chrono::duration_cast<std::chrono::milliseconds>(fs_.wall_now().time_since_epoch()) + ahead;
    lease.expires = lease.renewed + time;
    open()->put(lease_key(name), pack(lease));
  }
  LogVerifyReport verify(const LogTrust& trust = {}) { return verify_log(open(), trust, fs_, "scratch"); }
  /// Nothing is wrong with it, and nothing lies about in the scratch directory.
  void expect_whole(const LogTrust& trust = {}) {
    const LogVerifyReport report = verify(trust);
    for (const LogProblem& problem : report.problems) ADD_FAILURE() << problem.key << ": " << problem.message;
    EXPECT_TRUE(fs_.list("scratch").empty());
  }
  std::size_t count(const std::string& prefix) { return open()->list(prefix).size(); }

  FaultFileSystem fs_;
  LogScene scene_;
};

}  // namespace sparsecast::test
