// SPDX-License-Identifier: Apache-2.0
#include "nccl_dropin/settings.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

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

struct Part {
  const char* name;
  std::uint64_t microseconds;
};

/// Returns where the time of all broadcasts went; what is in the first and in no other is NCCL's, and new slots.
std::array<Part, 5> parts_of(const Statistics& s) {
  return {{{"total", s.total_us},
           {"sample", s.sample_us},
           {"encode", s.encode_us},
           {"exchange", s.exchange_us},
           {"apply", s.apply_us}}};
}

/// Returns the bytes sent as a share of the dense bytes.
double ratio_of(const Statistics& s) {
  const std::uint64_t dense = s.dense_bytes;
  return dense == 0 ? 0 : static_cast<double>(s.sent_bytes) / static_cast<double>(dense);
}

/// Prints the line of the statistics. Usable in a signal handler: integers are formatted without allocation.
void print_line() {
  char line[500];
  char* end = line;
  const auto append = [&]<class... Values>(fmt::format_string<Values...> format, Values&&... values) {
    const auto room = static_cast<std::size_t>(std::end(line) - end);
    end += std::min(fmt::format_to_n(end, room, format, std::forward<Values>(values)...).size, room);
  };
  const Statistics& s = statistics();
  const auto ratio = static_cast<std::uint64_t>(ratio_of(s) * 1e6);
  append("sparsecast: {} broadcasts, {} of them sparse: {} bytes sent for {} dense ones, ratio {}.{:06}; seconds:",
         s.broadcasts.load(), s.sparse.load(), s.sent_bytes.load(), s.dense_bytes.load(), ratio / 1000000,
         ratio % 1000000);
  const char* separator = "";
  for (const Part& part : parts_of(s)) {
    append("{} {} {}.{:03}", std::exchange(separator, ","), part.name, part.microseconds / 1000000,
           part.microseconds / 1000 % 1000);
  }
  append("\n");
  if (write(STDERR_FILENO, line, static_cast<std::size_t>(end - line)) < 0) return;
}

std::string json_of(const Statistics& s) {
  std::string seconds;
  for (const Part& part : parts_of(s)) {
    seconds += fmt::format("{}\"{}\": {:.6f}", seconds.empty() ? "" : ", ", part.name,
                           static_cast<double>(part.microseconds) / 1e6);
  }
  return fmt::format(
      "{{\"broadcasts\": {}, \"sparse\": {}, \"dense_bytes\": {}, \"sent_bytes\": {}, \"ratio\": {:.6f}, "
      "\"seconds\": {{{}}}}}\n",
      s.broadcasts.load(), s.sparse.load(), s.dense_bytes.load(), s.sent_bytes.load(), ratio_of(s), seconds);
}

/// Prints and writes the statistics when the process ends.
class Reporter {
 public:
  Reporter() {
    struct sigaction now {};
    if (sigaction(SIGUSR1, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
    now.sa_handler = [](int) {
      const int kept = errno;
      print_line();
      errno = kept;
    };
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
    std::fputs(json_of(s).c_str(), file);
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
