// SPDX-License-Identifier: Apache-2.0

// Checks that need the other ranks: whether they meet, agree, and can broadcast.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "sparsecast/version.hpp"
#include "tools/common/report.hpp"
#include "tools/doctor/doctor.hpp"
#include "transport/nccl/formation.hpp"
#include "transport/tcp/connection.hpp"

namespace sparsecast::tools {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

constexpr std::uint64_t kSmokeBytes = std::uint64_t{64} << 20;
constexpr int kSmokeRounds = 5;
/// Fields of a rank that must be equal on every rank, each with its name for people.
constexpr const char* kCompared[][2] = {
    {"sparsecast", "sparsecast"}, {"nccl", "NCCL"}, {"runtime", "CUDA runtime"}, {"settings", "NCCL's environment"}};

std::string read_secret(const DoctorFlags& flags) {
  if (!flags.secret_file.empty()) {
    std::ifstream file(flags.secret_file);
    if (!file) throw Error(ErrorCode::kIo, "the secret cannot be read", flags.secret_file);
    std::string secret{std::istreambuf_iterator<char>(file), {}};
    while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
    return secret;
  }
  const char* const secret = std::getenv("SPARSECAST_SECRET");
  if (secret == nullptr) {
    throw Error(ErrorCode::kUsage, "--rendezvous needs a secret: --secret-file FILE, or SPARSECAST_SECRET");
  }
  return secret;
}

RendezvousOptions options_of(const DoctorFlags& flags) {
  RendezvousOptions options;
  parse_endpoint(flags.rendezvous, options.host, options.port);
  options.rank = flags.rank;
  options.size = flags.size;
  options.interface = flags.interface;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(flags.timeout_seconds * 1000));
  options.secret = read_secret(flags);
  return options;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

json facts_of(const MachineFacts& facts) {
  const auto& devices = facts.survey.devices;
  const auto device = static_cast<std::size_t>(facts.device);
  const char* const host_id = std::getenv("NCCL_HOSTID");
  return {{"sparsecast", version_string()},
          {"nccl", nccl_version_text(facts.nccl_version)},
          {"runtime", std::to_string(facts.survey.runtime_version)},
          {"settings", one_line(nccl_settings())},
          {"uuid", device < devices.size() ? devices[device].uuid : ""},
          {"host_id", host_id == nullptr ? "" : host_id}};
}

/// Returns the text field `name` of the facts of a peer; "(not said)" if it is missing or has another type.
std::string field(const json& facts, const char* name) {
  const auto found = facts.is_object() ? facts.find(name) : facts.end();
  if (found == facts.end() || !found->is_string()) return "(not said)";
  const std::string text = found->get<std::string>();
  return printable(std::as_bytes(std::span<const char>(text)));
}

void compare(const std::vector<json>& ranks, std::vector<Check>& checks) {
  bool same = true;
  for (const auto& [name, words] : kCompared) {
    for (std::size_t r = 1; r < ranks.size(); ++r) {
      if (field(ranks[r], name) == field(ranks[0], name)) continue;
      same = false;
      checks.push_back(
          {"agreement", CheckResult::kFailed,
           fmt::format("{}: rank {} has '{}', rank 0 has '{}'", words, r, field(ranks[r], name), field(ranks[0], name)),
           "make it the same on every rank"});
      break;
    }
  }
  if (same) {
    checks.push_back({"agreement", CheckResult::kGood,
                      fmt::format("{} ranks have the same versions and NCCL environment", ranks.size()), ""});
  }
}

void check_devices(const std::vector<json>& ranks, std::vector<Check>& checks) {
  std::size_t with_device = 0;
  std::string shared;
  for (std::size_t b = 0; b < ranks.size(); ++b) {
    const std::string uuid = field(ranks[b], "uuid");
    if (uuid.rfind("GPU-", 0) != 0) continue;
    ++with_device;
    for (std::size_t a = 0; a < b; ++a) {
      if (field(ranks[a], "uuid") != uuid) continue;
      if (field(ranks[a], "host_id") != field(ranks[b], "host_id")) {
        shared = fmt::format(
            "ranks {} and {} share a GPU ({}), which NCCL takes for two because their NCCL_HOSTID differ", a, b, uuid);
        continue;
      }
      checks.push_back({"duplicate_devices", CheckResult::kFailed,
                        fmt::format("ranks {} and {} would use the same GPU ({})", a, b, uuid),
                        "give each rank its own: --device, CUDA_VISIBLE_DEVICES or LOCAL_RANK"});
      return;
    }
  }
  if (with_device == ranks.size()) {
    checks.push_back(
        {"duplicate_devices", CheckResult::kGood, shared.empty() ? "every rank has a GPU of its own" : shared, ""});
    return;
  }
  checks.push_back({"duplicate_devices", CheckResult::kNote,
                    fmt::format("{} of {} ranks have a GPU", with_device, ranks.size()), ""});
}

void smoke_test(const std::shared_ptr<Rendezvous>& group, const DoctorFlags& flags, const MachineFacts& facts,
                std::vector<Check>& checks) {
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(flags.timeout_seconds * 1000));
  const Deadline deadline = steady_clock::now() + timeout;
  try {
    NcclOptions options;
    options.device = facts.device;
    const auto channel = NcclTransport::open(group, options, timeout);
    std::vector<Bytes> records;
    double best = 0;
    for (int round = 0; round < kSmokeRounds; ++round) {
      if (group->rank() == 0) records = {Bytes(kSmokeBytes, static_cast<std::byte>(round + 1))};
      const auto start = steady_clock::now();
      channel->broadcast(records, 0, deadline);
      const double seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
      best = std::max(best, static_cast<double>(kSmokeBytes) / seconds);
      const bool right = records.size() == 1 && records[0] == Bytes(kSmokeBytes, static_cast<std::byte>(round + 1));
      if (channel->control().agree(right ? 0 : 1, 0, deadline) != 0)
        throw Error(ErrorCode::kCorrupt, "bytes arrived altered");
    }
    checks.push_back(
        {"smoke_broadcast", CheckResult::kGood,
         fmt::format("{} from host memory over NCCL to {} ranks: {}/s at best ({}{})", human_bytes(kSmokeBytes),
                     group->size(), human_bytes(static_cast<std::uint64_t>(best)), channel->report().formed_by,
                     channel->report().registered ? ", registered" : ""),
         ""});
  } catch (const Error& error) {
    checks.push_back(
        {"smoke_broadcast", CheckResult::kFailed, error.what(), "docs/nccl.md; NCCL_DEBUG=INFO says more"});
  }
}

}  // namespace

std::vector<Check> compare_ranks(const std::vector<std::string>& facts) {
  std::vector<json> ranks;
  for (const std::string& text : facts) ranks.push_back(json::parse(text, nullptr, false));
  std::vector<Check> checks;
  compare(ranks, checks);
  check_devices(ranks, checks);
  return checks;
}

void check_group(const DoctorFlags& flags, const MachineFacts& facts, std::vector<Check>& checks) {
  if (flags.rendezvous.empty()) return;
  const RendezvousOptions options = options_of(flags);
  std::shared_ptr<Rendezvous> group;
  try {
    const auto start = steady_clock::now();
    group = Rendezvous::meet(options);
    const double seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
    checks.push_back({"rendezvous", CheckResult::kGood,
                      fmt::format("{}, met in {}", group->describe(), human_seconds(seconds)), ""});
    for (const std::string& line : group->turned_away()) {
      checks.push_back({"rendezvous", CheckResult::kNote, "turned away: " + line, ""});
    }
    const std::string own = facts_of(facts).dump(-1, ' ', false, json::error_handler_t::replace);
    const auto all =
        group->all_gather(std::as_bytes(std::span<const char>(own)), steady_clock::now() + options.timeout);
    std::vector<std::string> facts_of_ranks;
    for (const Bytes& part : all) facts_of_ranks.emplace_back(reinterpret_cast<const char*>(part.data()), part.size());
    const std::vector<Check> compared = compare_ranks(facts_of_ranks);
    checks.insert(checks.end(), compared.begin(), compared.end());
    const bool comparable = std::all_of(compared.begin(), compared.end(),
                                        [](const Check& check) { return check.result == CheckResult::kGood; });
    if (group->size() < 2 || !comparable || facts.nccl_version == 0) {
      checks.push_back({"smoke_broadcast", CheckResult::kNote,
                        "not done: it needs two ranks, each with NCCL and a GPU of its own", ""});
      return;
    }
  } catch (const Error& error) {
    checks.push_back({"rendezvous", CheckResult::kFailed, fmt::format("{} [{}]", error.what(), to_string(error.code())),
                      "docs/errors.md has the cure for this code"});
    return;
  }
  smoke_test(group, flags, facts, checks);
}

}  // namespace sparsecast::tools
