// SPDX-License-Identifier: Apache-2.0
#pragma once

// Common parts of soak programs: options --name VALUE, a deadline, and an occasional line of progress.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

namespace sparsecast::soak {

/// `--name value` and `--name`; numbers in any base that strtoull knows.
class Flags {
 public:
  Flags(int argc, char** argv, const char* usage) {
    for (int i = 1; i < argc; ++i) {
      const std::string name = argv[i];
      if (name == "--help" || name.rfind("--", 0) != 0) {
        std::printf("%s", usage);
        std::exit(name == "--help" ? 0 : 2);
      }
      const bool has_value = i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0;
      values_[name] = has_value ? argv[++i] : "1";
    }
  }
  std::uint64_t number(const std::string& name, std::uint64_t otherwise) {
    const auto found = values_.find(name);
    if (found == values_.end()) return otherwise;
    char* end = nullptr;
    const std::uint64_t value = std::strtoull(found->second.c_str(), &end, 0);
    if (*end != '\0' || found->second.empty()) throw std::runtime_error(name + ": not a number: " + found->second);
    values_.erase(found);
    return value;
  }
  bool given(const std::string& name) const { return values_.contains(name); }
  /// After all flags were asked for.
  void require_all_known() const {
    if (!values_.empty()) throw std::runtime_error("unknown flag " + values_.begin()->first + "; see --help");
  }

 private:
  std::map<std::string, std::string> values_;
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace sparsecast::soak
