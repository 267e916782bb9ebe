// SPDX-License-Identifier: Apache-2.0

// Files that another process cuts short while a command reads them: an error that says where, and nothing is written.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fault_fs.hpp"
#include "tools/tool_fixture.hpp"

namespace sparsecast::tools {
namespace {

using test::FaultFileSystem;
using testing::HasSubstr;

class Shrinking : public testing::Test {
 protected:
  Shrinking() {
    std::mt19937_64 random(20261126);
    Model model = random_model(random);
    model.specs.push_back({"z.large", DType::kBF16, {5, 200'000}});  // More than a window.
    model.tensors.emplace_back(model.specs.back().bytes());
    const Model changed = changed_model(model, random, 50);
    put_model("a.safetensors", model);
    put_model("b.safetensors", changed);
    const Outcome made = run({"diff", "a.safetensors", "b.safetensors", "-o", "d.scd", "--frame-mb", "1"});
    EXPECT_EQ(made.code, kExitGood) << made.err;
    const Outcome step = run({"convert", "d.scd", "--base", "a.safetensors", "--to", "trl", "-o", "steps"});
    EXPECT_EQ(step.code, kExitGood) << step.err;
  }

  void put_model(const std::string& path, const Model& model) {
    SafetensorsWriter writer(*disk_, path, model.specs);
    for (const Bytes& tensor : model.tensors) writer.append(tensor);
    writer.finish();
  }
  Outcome run(const std::vector<std::string>& arguments) { return tools::run(*disk_, arguments); }

  /// Runs the command once for each of its reads of a file, which ends where the read begins, or in the middle of what
  /// is read, from then on. `kept`: files that the command may have written before it.
  void expect_errors(
      const std::vector<std::string>& command, const std::string& file, bool of_tensors,
      const std::function<bool(const std::string&)>& kept = [](const std::string&) { return false; }) {
    SCOPED_TRACE(command.front() + " " + file);
    const std::unique_ptr<FaultFileSystem> before = disk_->durable_state();
    const std::unique_ptr<FaultFileSystem> undisturbed = disk_->durable_state();
    const Outcome good = tools::run(*undisturbed, command);
    ASSERT_TRUE(good.code == kExitGood || good.code == kExitDiffers) << good.err;
    const std::vector<FaultFileSystem::Operation> log = undisturbed->log();
    std::uint64_t data_begin = 0;
    if (of_tensors) data_begin = SafetensorsHeader::read(*before->open(file, OpenMode::kRead)).data_begin;
    int reads = 0;
    for (std::uint64_t n = 0; n < log.size(); ++n) {
      if (log[n].name != "read" || log[n].path != file || log[n].bytes == 0) continue;
      const std::unique_ptr<FaultFileSystem> disk = before->durable_state();
      disk->shrink_at(n, file, log[n].offset + (reads % 2 == 0 ? 0 : log[n].bytes / 2));
      const Outcome outcome = tools::run(*disk, command);
      EXPECT_EQ(outcome.code, kExitIo) << "read " << n << " at " << log[n].offset << ": " << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr(file));
      EXPECT_THAT(outcome.err, HasSubstr("ends at offset"));
      const bool in_tensor = of_tensors && log[n].offset >= data_begin;
      EXPECT_THAT(outcome.err, HasSubstr(in_tensor ? "tensor '" : file));
      for (const std::string& name : disk->files()) {
        EXPECT_TRUE(before->content(name).has_value() || kept(name)) << name << " is left";
      }
      ++reads;
    }
    EXPECT_GT(reads, 2);
  }

  std::unique_ptr<FaultFileSystem> disk_ = std::make_unique<FaultFileSystem>();
};

TEST_F(Shrinking, CheckpointsThatAreCompared) {
  const std::vector<std::string> diff = {"diff", "a.safetensors", "b.safetensors", "-o", "new.scd", "--threads", "1"};
  const std::vector<std::string> compare = {"compare", "a.safetensors", "b.safetensors", "--threads", "1"};
  for (const char* file : {"a.safetensors", "b.safetensors"}) {
    expect_errors(diff, file, true);
    expect_errors(compare, file, true);
  }
}

TEST_F(Shrinking, CheckpointsThatAreReadAlone) {
  expect_errors({"digest", "a.safetensors", "--threads", "1"}, "a.safetensors", true);
  expect_errors({"apply", "a.safetensors", "d.scd", "-o", "out.safetensors", "--threads", "1"}, "a.safetensors", false);
  expect_errors(
      {"invert", "d.scd", "--base", "a.safetensors", "-o", "back.scd", "--positions", "context", "--threads", "1"},
      "a.safetensors", true);
}

TEST_F(Shrinking, SparseStepsAndTheirBases) {
  const std::string step = "steps/deltas/step_000001.safetensors";
  const std::vector<std::string> diff = {"diff", "a.safetensors", step, "-o", "new.scd", "--threads", "1"};
  expect_errors(diff, "a.safetensors", true);
  expect_errors(diff, step, true);
}

TEST_F(Shrinking, Deltas) {
  expect_errors({"inspect", "d.scd"}, "d.scd", false);
  expect_errors({"apply", "a.safetensors", "d.scd", "-o", "out.safetensors", "--threads", "1"}, "d.scd", false);
  expect_errors({"convert", "d.scd", "--base", "a.safetensors", "--to", "trl", "-o", "more"}, "d.scd", false);
}

TEST_F(Shrinking, WhatIsPublishedToALog) {
  const Outcome init = run({"log", "init", "log", "a.safetensors", "--state", "publisher", "--no-anchor"});
  ASSERT_EQ(init.code, kExitGood) << init.err;
  const std::vector<std::string> publish = {"log",    "publish",       "log",     "b.safetensors",
                                            "--base", "a.safetensors", "--state", "publisher"};
  for (const char* file : {"a.safetensors", "b.safetensors"}) {
    expect_errors(publish, file, true, [](const std::string& name) { return name.starts_with("publisher"); });
  }
}

}  // namespace
}  // namespace sparsecast::tools
