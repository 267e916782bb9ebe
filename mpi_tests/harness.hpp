// SPDX-License-Identifier: Apache-2.0
#pragma once

// Test harness: a case is a function that every rank runs and that states its expectations; failures of all ranks are
// summed at the end.

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "sparsecast/error.hpp"

namespace sparsecast::mpi_test {

/// Result of a call on this rank: no error, or which one.
struct Outcome {
  std::optional<Error> error;

  std::string text() const {
    return error ? fmt::format("{}: {}", to_string(error->code()), error->what()) : "success";
  }
};

template <class Step>
Outcome outcome_of(const Step& step) {
  try {
    step();
  } catch (const Error& error) {
    return {error};
  }
  return {};
}

/// The running case as this rank sees it.
class Case {
 public:
  Case(std::string name, int rank, int size, std::uint64_t seed)
      : name_(std::move(name)), rank_(rank), size_(size), seed_(seed) {}

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::uint64_t seed() const noexcept { return seed_; }  ///< Seed that all ranks share.

  void expect(bool holds, const std::string& what);
  void expect_success(const Outcome& outcome, const std::string& what);
  /// Expects an error with this code whose text contains `words`.
  void expect_error(const Outcome& outcome, ErrorCode code, const std::string& words, const std::string& what);
  template <class Found, class Expected>
  void expect_equal(const Found& found, const Expected& expected, const std::string& what) {
    if (!(found == expected)) fail(fmt::format("{}: expected {}, found {}", what, expected, found));
  }
  void note(const std::string& text) const;

  /// Declares that the case leaves broken channels behind, after which MPI_Finalize must not be called.
  void ends_by_abort() noexcept { by_abort_ = true; }
  bool by_abort() const noexcept { return by_abort_; }
  int failures() const noexcept { return failures_; }

 private:
  void fail(const std::string& text);

  std::string name_;
  int rank_;
  int size_;
  std::uint64_t seed_;
  int failures_ = 0;
  bool by_abort_ = false;
};

/// Returns the sum of `value` over the ranks of a communicator.
std::uint64_t sum_over_ranks(std::uint64_t value, MPI_Comm communicator = MPI_COMM_WORLD);

using CaseFunction = void (*)(Case&);

/// Registers a case: `const Registration kRegistered{"name", function};`
struct Registration {
  Registration(const char* name, CaseFunction function);
};

/// Runs the named case on all ranks of MPI_COMM_WORLD. Returns the exit status of the process; may end the job by
/// MPI_Abort.
int run_case(const std::string& name);

}  // namespace sparsecast::mpi_test
