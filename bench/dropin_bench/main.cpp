// SPDX-License-Identifier: Apache-2.0

// dropin_bench: what the drop-in for NCCL adds to calls that it passes on, and where the time of broadcasts goes that
// it makes sparse.

#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "common/record.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::bench {
namespace {

namespace fs = std::filesystem;

struct Nccl {
  explicit Nccl(const std::string& path) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw Error(ErrorCode::kUsage, dlerror(), path);
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
      if (function == nullptr) throw Error(ErrorCode::kUsage, dlerror(), path);
    };
    find("ncclGetUniqueId", get_unique_id);
    find("ncclCommInitRank", comm_init_rank);
    find("ncclCommCount", comm_count);
    find("ncclCommDestroy", comm_destroy);
    find("ncclBroadcast", broadcast);
  }
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRank) comm_init_rank = nullptr;
  decltype(&::ncclCommCount) comm_count = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
};

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) throw Error(ErrorCode::kIo, fmt::format("returned {}", static_cast<int>(result)), what);
}

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

/// Measures calls that the drop-in passes on, in turns with direct ones. The real library does nothing.
void measure_small_calls(const std::string& drop_in, const std::string& idle, int rounds, Record& record) {
  constexpr int kCalls = 1 << 20;
  constexpr std::size_t kSmall = 1024;
  constexpr std::size_t kLarge = 4 << 20;
  setenv("SPARSECAST_NCCL_REAL", idle.c_str(), 1);
  const Nccl libraries[] = {Nccl(idle), Nccl(drop_in)};
  ncclComm_t comms[2] = {};
  for (int i = 0; i < 2; ++i) {
    ncclUniqueId id{};
    check(libraries[i].comm_init_rank(&comms[i], 1, id, 0), "ncclCommInitRank");
  }
  const auto broadcast = [](std::size_t bytes) {
    return [bytes](const Nccl& nccl, ncclComm_t comm) {
      return nccl.broadcast(nullptr, nullptr, bytes, ncclInt8, 0, comm, nullptr);
    };
  };
  const auto measure = [&](const std::string& name, const auto& call) {
    std::vector<double> samples[2];
    for (int round = -1; round < rounds; ++round) {
      for (int i = 0; i < 2; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        for (int n = 0; n < kCalls; ++n) check(call(libraries[i], comms[i]), name.c_str());
        if (round >= 0) samples[i].push_back(milliseconds_since(begin) * 1e6 / kCalls);
      }
    }
    Measurement direct = median_of(name + "/direct", "ns", samples[0]);
    Measurement through = median_of(name + "/drop-in", "ns", samples[1], direct.name);
    through.paired = true;
    fmt::print("{:<44} {:>7.2f} ns direct, {:>7.2f} ns through it: {:>+7.2f} ns, {:>5.2f} times\n", name, direct.value,
               through.value, through.value - direct.value, through.value / direct.value);
    record.results.push_back(std::move(direct));
    record.results.push_back(std::move(through));
  };
  measure("ncclCommCount", [](const Nccl& nccl, ncclComm_t comm) {
    int count = 0;
    return nccl.comm_count(comm, &count);
  });
  measure("ncclBroadcast/small", broadcast(kSmall));
  measure("ncclBroadcast/large, left to NCCL", broadcast(kLarge));
}

/// One of two ranks: broadcasts a buffer so often, 1 % of whose weights change each time. Writes the median of the
/// times of all broadcasts but the first.
void be_rank(int rank, const std::string& library, const fs::path& folder, std::uint64_t bytes, int broadcasts) {
  const Nccl nccl(library);
  const fs::path id_file = folder / "id";
  ncclUniqueId id{};
  if (rank == 0) {
    check(nccl.get_unique_id(&id), "ncclGetUniqueId");
    std::ofstream(folder / "id.draft", std::ios::binary).write(id.internal, sizeof id.internal);
    fs::rename(folder / "id.draft", id_file);
  } else {
    while (!fs::exists(id_file)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::ifstream(id_file, std::ios::binary).read(id.internal, sizeof id.internal);
  }
  ncclComm_t comm = nullptr;
  check(nccl.comm_init_rank(&comm, 2, id, rank), "ncclCommInitRank");
  std::mt19937_64 random(1);
  std::vector<std::uint16_t> weights(bytes / 2);
  for (auto& weight : weights) weight = static_cast<std::uint16_t>(random());
  std::vector<double> times;
  for (int i = 0; i < broadcasts; ++i) {
    for (std::size_t n = 0; n < weights.size() / 100; ++n) weights[random() % weights.size()] ^= 1;
    std::vector<std::uint16_t> buffer = rank == 0 ? weights : std::vector<std::uint16_t>(weights.size());
    const auto begin = std::chrono::steady_clock::now();
    check(nccl.broadcast(buffer.data(), buffer.data(), bytes, ncclInt8, 0, comm, nullptr), "ncclBroadcast");
    if (i > 0) times.push_back(milliseconds_since(begin));
    if (buffer != weights) throw Error(ErrorCode::kCorrupt, "other bytes have arrived", "ncclBroadcast");
  }
  check(nccl.comm_destroy(comm), "ncclCommDestroy");
  std::ofstream(folder / fmt::format("time.{}", rank)) << median_of("", "", times).value;
}

/// Starts two ranks as processes, and returns the receiver's time of a broadcast in milliseconds.
double run_ranks(const std::string& library, const fs::path& folder, std::uint64_t bytes, int broadcasts) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  std::fflush(stdout);  // Or the children would print it, too.
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    setenv("FAKE_NCCL_DIRECTORY", folder.c_str(), 1);
    setenv("SPARSECAST_NCCL_INTERFACE", "lo", 1);
    setenv("SPARSECAST_NCCL_REPORT", (folder / fmt::format("report.{}", rank)).c_str(), 1);
    setenv("SPARSECAST_NCCL_TIMEOUT", "60", 1);
    try {
      be_rank(rank, library, folder, bytes, broadcasts);
      std::exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "dropin_bench: rank {}: {}\n", rank, error.what());
      std::exit(1);
    }
  }
  bool well = true;
  for (const pid_t child : children) {
    int status = 0;
    well = waitpid(child, &status, 0) == child && status == 0 && well;
  }
  if (!well) throw Error(ErrorCode::kPeerFailed, "a rank has failed", library);
  double time = 0;
  std::ifstream(folder / "time.1") >> time;
  return time;
}

/// Measures large broadcasts between two processes over the fake NCCL, sparse and direct.
void measure_large(const std::string& drop_in, const std::string& fake, const fs::path& scratch, int broadcasts,
                   Record& record) {
  const fs::path folder = scratch / fmt::format("dropin_bench.{}", getpid());
  setenv("SPARSECAST_NCCL_REAL", fake.c_str(), 1);
  fmt::print(
      "\nms a broadcast, 1 % of its weights changed\n   MiB  dense  sparse |  sample  encode  exchange | exchange   "
      "apply  |  ratio\n");
  for (const std::uint64_t mib : {1, 4, 16, 64}) {
    const std::uint64_t bytes = mib << 20;
    const double dense = run_ranks(fake, folder, bytes, broadcasts);
    const double sparse = run_ranks(drop_in, folder, bytes, broadcasts);
    nlohmann::json reports[2];
    for (int rank = 0; rank < 2; ++rank) std::ifstream(folder / fmt::format("report.{}", rank)) >> reports[rank];
    const std::string name = fmt::format("broadcast/{} MiB/", mib);
    record.results.push_back({name + "dense", "ms", dense});
    record.results.push_back({name + "sparse", "ms", sparse, {}, name + "dense"});
    const auto part = [&](int rank, const char* what) {
      const double ms = reports[rank]["seconds"][what].get<double>() * 1e3 / (broadcasts - 1);
      Measurement row{fmt::format("{}{}/{}", name, rank == 0 ? "root" : "receiver", what), "ms", ms};
      row.statistic = "total";
      record.results.push_back(std::move(row));
      return ms;
    };
    const double sample = part(0, "sample"), encode = part(0, "encode"), exchange = part(0, "exchange");
    const double waiting = part(1, "exchange"), apply = part(1, "apply");
    const std::uint64_t sent = reports[1]["sent_bytes"].get<std::uint64_t>() - bytes;
    fmt::print("{:>6} {:>6.2f} {:>7.2f} | {:>7.3f} {:>7.3f} {:>9.3f} | {:>8.3f} {:>7.3f}  | {:>6.4f}\n", mib, dense,
               sparse, sample, encode, exchange, waiting, apply,
               static_cast<double>(sent) / static_cast<double>(bytes) / (broadcasts - 1));
  }
  fs::remove_all(folder);
}

int run(int argc, char** argv) {
  CLI::App app("What the drop-in for NCCL (docs/drop-in.md) costs", "dropin_bench");
  std::string drop_in = SPARSECAST_DROP_IN;
  std::string fake;
  std::string scratch = "/dev/shm";
  std::string json;
  int rounds = 21;
  int broadcasts = 11;
  app.add_option("--library", drop_in, "The drop-in")->capture_default_str();
  app.add_option("--fake", fake, "libfake_libnccl.so of the tests; without it, large broadcasts are left out");
  app.add_option("--rounds", rounds, "Rounds of small calls")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--broadcasts", broadcasts, "Large broadcasts of each size, of which the first is dense")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  app.add_option("--scratch", scratch, "Where the fake's files go; best a file system in memory")
      ->capture_default_str();
  app.add_option("--json", json,
                 "Also write the results to this file (-: to standard output, and the table to standard error)");
  CLI11_PARSE(app, argc, argv);
  try {
    const RecordFile file(json);
    Record record("dropin_bench");
    // First: these start processes, which no library may be loaded in.
    if (!fake.empty()) measure_large(drop_in, fs::absolute(fake), scratch, broadcasts, record);
    fmt::print("\n");
    measure_small_calls(drop_in, SPARSECAST_IDLE_NCCL, rounds, record);
    file.write(record);
  } catch (const std::exception& error) {
    fmt::print(stderr, "dropin_bench: {}\n", error.what());
    return 3;
  }
  return 0;
}

}  // namespace
}  // namespace sparsecast::bench

int main(int argc, char** argv) { return sparsecast::bench::run(argc, argv); }
