// SPDX-License-Identifier: Apache-2.0

// Runs a fuzz target without libFuzzer, so that every build compiles the targets and every test run tries them:
//
//     frame_fuzz DIRECTORY...
//
// takes each file below the directories as it is, then with random damage, and strings of random bytes. The seed is
// SPARSECAST_SEED, or a new one; it is printed. A target that finds something aborts.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/random.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using sparsecast::test::case_seed;
using sparsecast::test::Random;
using sparsecast::test::run_seed;
using sparsecast::test::seed_note;
using Input = std::vector<std::uint8_t>;

constexpr int kDamaged = 32;  // A file.
constexpr int kStrings = 10'000;
constexpr std::size_t kMostBytes = 64 << 10;

/// The contents of the files, in the order of their names; those that are larger than a fuzzer would make are left out.
std::vector<Input> files_below(const std::string& directory) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file() && entry.file_size() <= kMostBytes) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Input> inputs;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

/// Changes a few bytes, cuts the end off, or puts a byte in front, which many targets choose a parser by.
void damage(Input& input, Random& random) {
  if (random.chance(0.3)) input.insert(input.begin(), static_cast<std::uint8_t>(random.below(8)));
  if (input.empty()) return;
  if (random.chance(0.2)) input.resize(random.below(input.size()));
  for (std::uint64_t left = input.empty() ? 0 : random.below(4); left > 0; --left) {
    input[random.below(input.size())] ^= static_cast<std::uint8_t>(1 + random.below(255));
  }
}

void run(const Input& input) { LLVMFuzzerTestOneInput(input.data(), input.size()); }

}  // namespace

int main(int argc, char** argv) {
  std::printf("%s\n", seed_note().c_str());
  std::fflush(stdout);
  std::uint64_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const Input& file : files_below(argv[i])) {
      run(file);
      Random random(case_seed(run_seed(), ++inputs));
      for (int copy = 0; copy < kDamaged; ++copy) {
        Input damaged = file;
        damage(damaged, random);
        run(damaged);
      }
    }
  }
  if (argc > 1 && inputs == 0) {
    std::fprintf(stderr, "there is no file to begin with\n");
    return 1;
  }
  Random random(run_seed());
  for (int i = 0; i < kStrings; ++i) {
    Input string(static_cast<std::size_t>(random.log_uniform(1, 512)));
    for (std::uint8_t& byte : string) byte = static_cast<std::uint8_t>(random.next());
    run(string);
  }
  std::printf("%llu files, %d strings\n", static_cast<unsigned long long>(inputs), kStrings);
  return 0;
}
