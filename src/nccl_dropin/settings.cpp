// SPDX-License-Identifier: Apache-2.0
#include "nccl_dropin/settings.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>

#include "sparsecast/error.hpp"

namespace sparsecast::dropin {
namespace {

std::uint64_t number_of(const char* variable, std::uint64_t otherwise,
                        std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view digits(text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), value);
  if (error != std::errc{} || end != digits.end() || value > most) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is not a number from 0 to {}", text, most), variable);
  }
  return value;
}

Settings read_settings() {
  constexpr std::uint64_t kMostSeconds = std::uint64_t{7} * 24 * 3600;
  Settings read;
  read.min_bytes = number_of("SPARSECAST_NCCL_MIN_BYTES", read.min_bytes);
  read.cache_bytes = number_of("SPARSECAST_NCCL_CACHE_BYTES", read.cache_bytes);
  read.strict = number_of("SPARSECAST_NCCL_STRICT", 0, 1) == 1;
  read.timeout = std::chrono::seconds(number_of("SPARSECAST_NCCL_TIMEOUT", 600, kMostSeconds));
  read.meet_timeout = std::chrono::seconds(number_of("SPARSECAST_NCCL_MEET_TIMEOUT", 10, kMostSeconds));
  if (const char* const name = std::getenv("SPARSECAST_NCCL_INTERFACE")) read.interface = name;
  return read;
}

/// Writes the line of the statistics into `line`; usable in a signal handler as snprintf of integers is.
int describe(char* line, std::size_t room) {
  const Statistics& s = statistics();
  const std::uint64_t sent = s.sent_bytes;
  const std::uint64_t tenths = sent == 0 ? 0 : s.dense_bytes * 10 / sent;
  return std::snprintf(
      line, room,
      "sparsecast: %llu broadcasts, %llu of them sparse: %llu bytes sent for %llu dense ones (%llu.%llu "
      "to 1); %llu ms waiting for ranks, %llu ms encoding, %llu ms receiving and applying\n",
      static_cast<unsigned long long>(s.broadcasts), static_cast<unsigned long long>(s.sparse),
      static_cast<unsigned long long>(sent), static_cast<unsigned long long>(s.dense_bytes),
      static_cast<unsigned long long>(tenths / 10), static_cast<unsigned long long>(tenths % 10),
      static_cast<unsigned long long>(s.exchange_us / 1000), static_cast<unsigned long long>(s.encode_us / 1000),
      static_cast<unsigned long long>(s.apply_us / 1000));
}

void print_line() {
  char line[400];
  const int length = describe(line, sizeof line);
  if (length > 0 && write(STDERR_FILENO, line, static_cast<std::size_t>(length)) < 0) return;
}

/// Prints and writes the statistics when the process ends.
class Reporter {
 public:
  Reporter() {
    struct sigaction now {};
    if (sigaction(SIGUSR1, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
    now.sa_handler = [](int) { print_line(); };
    now.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &now, nullptr);
  }
  ~Reporter() {
    const Statistics& s = statistics();
    if (s.broadcasts == 0) return;
    print_line();
    const char* const path = std::getenv("SPARSECAST_NCCL_REPORT");
    if (path == nullptr) return;
    std::FILE* const file = std::fopen(path, "w");
    if (file == nullptr) {
      std::fprintf(stderr, "sparsecast: SPARSECAST_NCCL_REPORT: %s: %s\n", path, std::strerror(errno));
      return;
    }
    const std::string json = fmt::format(
        "{{\"broadcasts\": {}, \"sparse\": {}, \"dense_bytes\": {}, \"sent_bytes\": {}, \"exchange_us\": {}, "
        "\"encode_us\": {}, \"apply_us\": {}}}\n",
        s.broadcasts.load(), s.sparse.load(), s.dense_bytes.load(), s.sent_bytes.load(), s.exchange_us.load(),
        s.encode_us.load(), s.apply_us.load());
    std::fputs(json.c_str(), file);
    std::fclose(file);
  }
};

}  // namespace

const Settings& settings() {
  static const Settings read = read_settings();
  return read;
}

Statistics& statistics() {
  static Statistics counted;
  static const Reporter reporter;
  return counted;
}

}  // namespace sparsecast::dropin
