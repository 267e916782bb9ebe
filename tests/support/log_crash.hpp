// SPDX-License-Identifier: Apache-2.0
#pragma once

// The log's operations on a file system that crashes or fails at any of their calls.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/fault_fs.hpp"
#include "support/log_scene.hpp"

namespace sparsecast::test {

/// A publisher's process: a signed log in "data/log" of the file system, and what it needs beside it.
class LogWorld {
 public:
  LogWorld(FaultFileSystem& fs, LogScene& scene);

  FaultFileSystem& fs() noexcept { return fs_; }
  LogScene& scene() noexcept { return scene_; }
  LogReader& reader() noexcept { return reader_; }
  LogWriter& writer() noexcept { return writer_; }

  void create();
  void take_over();
  /// The next step of the model as the next version; nothing when version `last` is there.
  void publish_until(std::uint64_t last);
  void write_anchor(std::uint64_t version);
  /// The newest commit that a call has returned: it has to survive everything.
  const std::optional<LogCommit>& promised() const noexcept { return promised_; }
  std::uint64_t step_of(const StateDigest& digest);

 private:
  FaultFileSystem& fs_;
  LogScene& scene_;
  LogReader reader_;
  LogWriter writer_;
  std::optional<LogCommit> promised_;
};

struct LogScenario {
  std::string name;
  std::function<void(LogWorld&)> prepare;  ///< Once, with nothing going wrong.
  std::function<void(LogWorld&)> lead;     ///< In the process under test, before its operation; may be empty.
  std::function<void(LogWorld&)> act;      ///< The operation; may be repeated after an error.
  std::uint64_t versions = 0;              ///< Number of versions that the operation makes.
};

const std::vector<LogScenario>& log_scenarios();

struct CrashCount {
  std::uint64_t operations = 0;
  std::uint64_t states = 0;
  std::uint64_t second_crashes = 0;
  std::uint64_t advanced = 0;  ///< States in which the operation had taken effect.
};

struct CrashSettings {
  std::uint64_t first_seed = 0;  ///< Seed 0 is the harshest state, every other a random one.
  std::uint64_t seeds = 2;
  std::uint64_t second = 7;  ///< So many recoveries apart, one crashes, too; 0: none.
};

/// Crashes at every call and recovers the states that it may leave: what was promised is there, everything that the log
/// names is whole, and publishing goes on at the first restart. Throws std::runtime_error that names scenario, call and
/// seed.
CrashCount enumerate_crashes(const LogScenario& scenario, const CrashSettings& settings);

/// Fails every `stride`-th call once (EIO, ENOSPC, short write) and for ever (EIO); returns how many failures were
/// tried. The error has to name a path, nothing promised may be lost, and the same call has to succeed afterwards.
std::uint64_t enumerate_failures(const LogScenario& scenario, std::uint64_t stride = 1);

}  // namespace sparsecast::test
