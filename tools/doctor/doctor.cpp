// SPDX-License-Identifier: Apache-2.0

// sparsecast doctor: checks why a group of ranks would not form, or would be slow. One line for each check.

#include "tools/doctor/doctor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tools/common/commands.hpp"
#include "tools/common/options.hpp"
#include "tools/common/report.hpp"

namespace sparsecast::tools {
namespace {

const char* to_string(CheckResult result) {
  switch (result) {
    case CheckResult::kGood:
      return "ok";
    case CheckResult::kNote:
      return "note";
    case CheckResult::kFailed:
      return "FAILED";
  }
  return "";
}

void check_flags(const DoctorFlags& flags) {
  const bool group = !flags.rendezvous.empty();
  if (group != (flags.rank >= 0) || group != (flags.size > 0)) {
    throw Error(ErrorCode::kUsage, "--rendezvous, --rank and --size belong together");
  }
  if (group && flags.rank >= flags.size) {
    throw Error(ErrorCode::kUsage, fmt::format("rank {} of {}", flags.rank, flags.size));
  }
}

int run_doctor(Console& console, const DoctorFlags& flags) {
  check_flags(flags);
  MachineFacts facts;
  std::vector<Check> checks = check_machine(flags, facts);
  check_group(flags, facts, checks);
  const auto failed = static_cast<std::uint64_t>(
      std::count_if(checks.begin(), checks.end(), [](const Check& c) { return c.result == CheckResult::kFailed; }));
  if (flags.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Check& check : checks) {
      nlohmann::ordered_json row = {{"check", check.name}, {"verdict", to_string(check.result)}, {"text", check.text}};
      if (!check.cure.empty()) row["do"] = check.cure;
      rows.push_back(std::move(row));
    }
    Report report;
    report.add("checks", std::move(rows), "", "");
    report.add("failed", failed, "failed");
    report.print(console, true);
  } else {
    std::size_t width = 0;
    for (const Check& check : checks) width = std::max(width, check.name.size());
    for (const Check& check : checks) {
      console.out << fmt::format("{:<6}  {:<{}}  {}\n", to_string(check.result), check.name, width, check.text);
      if (!check.cure.empty()) console.out << fmt::format("{:<6}  {:<{}}    -> {}\n", "", "", width, check.cure);
    }
    console.out << (failed == 0 ? "all checks good\n" : fmt::format("{} checks failed\n", failed));
  }
  return failed == 0 ? kExitGood : kExitDiffers;
}

}  // namespace

AddedCommand add_doctor(Parser& app, Console& console) {
  auto flags = std::make_shared<DoctorFlags>();
  Parser* parser = app.add_subcommand("doctor", "Check libraries, devices, network and, with other ranks, the group");
  parser->add_option("--rendezvous", flags->rendezvous, "Meet the other ranks here: rank 0 listens")
      ->type_name("HOST:PORT");
  parser->add_option("--rank", flags->rank, "This rank")->type_name("R")->check(Condition::range(0, 65535));
  parser->add_option("--size", flags->size, "How many ranks there are")
      ->type_name("N")
      ->check(Condition::range(1, 65536));
  parser->add_option("--secret-file", flags->secret_file, "Holds the secret of the group; else SPARSECAST_SECRET")
      ->type_name("FILE");
  parser->add_option("--interface", flags->interface, "Name or address of the network interface to use")
      ->type_name("NAME");
  parser->add_option("--device", flags->device, "The GPU of this rank; else LOCAL_RANK or 0")->type_name("D");
  parser->add_option("--timeout", flags->timeout_seconds, "Seconds to wait for the other ranks")
      ->capture_default_str()
      ->check(Condition::range(0.1, 86400.0))
      ->type_name("S");
  parser->add_flag("--require-fabric", flags->require_fabric, "Fail when NCCL would fall back to TCP sockets");
  add_json(*parser, flags->json);
  parser->footer(
      "Exit code 1 when a check failed. The line below a check says what to do.\n\n"
      "Example, one line on each of two machines:\n"
      "  SPARSECAST_SECRET=... sparsecast doctor --rendezvous node0:29400 --rank 0 --size 2\n"
      "  SPARSECAST_SECRET=... sparsecast doctor --rendezvous node0:29400 --rank 1 --size 2");
  return {parser, [flags, &console] { return run_doctor(console, *flags); }};
}

}  // namespace sparsecast::tools
