// SPDX-License-Identifier: Apache-2.0
#include "harness.hpp"

#include <cstdio>
#include <map>

#include "support/random.hpp"

namespace sparsecast::mpi_test {
namespace {

std::map<std::string, CaseFunction>& cases() {
  static std::map<std::string, CaseFunction> registered;
  return registered;
}

}  // namespace

Registration::Registration(const char* name, CaseFunction function) { cases()[name] = function; }

void Case::fail(const std::string& text) {
  ++failures_;
  std::fputs(fmt::format("{}: rank {} of {}: {}\n", name_, rank_, size_, text).c_str(), stderr);
}

void Case::note(const std::string& text) const {
  std::fputs(fmt::format("{}: rank {} of {}: {}\n", name_, rank_, size_, text).c_str(), stdout);
}

void Case::expect(bool holds, const std::string& what) {
  if (!holds) fail(fmt::format("expected: {}", what));
}

void Case::expect_success(const Outcome& outcome, const std::string& what) {
  if (outcome.error) fail(fmt::format("{}: expected success, found {}", what, outcome.text()));
}

void Case::expect_error(const Outcome& outcome, ErrorCode code, const std::string& words, const std::string& what) {
  const bool right = outcome.error && outcome.error->code() == code &&
                     std::string(outcome.error->what()).find(words) != std::string::npos;
  if (!right) fail(fmt::format("{}: expected {} with '{}', found {}", what, to_string(code), words, outcome.text()));
}

std::uint64_t sum_over_ranks(std::uint64_t value, MPI_Comm communicator) {
  std::uint64_t sum = 0;
  MPI_Allreduce(&value, &sum, 1, MPI_UINT64_T, MPI_SUM, communicator);
  return sum;
}

int run_case(const std::string& name) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const auto found = cases().find(name);
  if (found == cases().end()) {
    if (rank == 0) {
      std::fprintf(stderr, "no case '%s'; there are:\n", name.c_str());
      for (const auto& [known, function] : cases()) std::fprintf(stderr, "  %s\n", known.c_str());
    }
    MPI_Finalize();
    return 2;
  }
  std::uint64_t seed = test::run_seed();
  MPI_Bcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  Case running(name, rank, size, seed);
  try {
    found->second(running);
  } catch (const std::exception& error) {
    // The other ranks may wait for this one forever, so the job ends here.
    std::fprintf(stderr, "%s: rank %d of %d: SPARSECAST_SEED=%llu: unexpected exception: %s\n", name.c_str(), rank,
                 size, static_cast<unsigned long long>(seed), error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  const std::uint64_t failures = sum_over_ranks(static_cast<std::uint64_t>(running.failures()));
  if (rank == 0) {
    std::printf("%s on %d ranks: %s, SPARSECAST_SEED=%llu\n", name.c_str(), size, failures == 0 ? "passed" : "FAILED",
                static_cast<unsigned long long>(seed));
  }
  std::fflush(nullptr);
  MPI_Barrier(MPI_COMM_WORLD);
  if (running.by_abort()) {
    if (rank == 0) MPI_Abort(MPI_COMM_WORLD, failures == 0 ? 0 : 1);
    MPI_Barrier(MPI_COMM_WORLD);  // Until rank 0 ends it.
  }
  MPI_Finalize();
  return failures == 0 ? 0 : 1;
}

}  // namespace sparsecast::mpi_test
