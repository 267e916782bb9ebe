// SPDX-License-Identifier: Apache-2.0
#include "common/record.hpp"

#include <fcntl.h>
#include <hwy/highway.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "common/build_info.hpp"
#include "common/clock.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/version.hpp"

namespace sparsecast::bench {
namespace {

using nlohmann::ordered_json;

constexpr int kSchema = 1;

std::vector<std::string> process_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

/// Returns what follows `separator` in the first line of a file that begins with `key`, without quotes; "unknown" if
/// there is no such line.
std::string value_in(const char* path, const std::string& key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t\"", at + 1);
    const std::size_t end = line.find_last_not_of(" \t\"");
    if (begin != std::string::npos && end >= begin) return line.substr(begin, end - begin + 1);
  }
  return "unknown";
}

std::string kernel() {
  utsname names{};
  if (::uname(&names) != 0) return "unknown";
  return std::string(names.sysname) + " " + names.release + " " + names.machine;
}

ordered_json describe_machine_of(const std::string& gpu) {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGE_SIZE);
  return {{"cpu", value_in("/proc/cpuinfo", "model name", ':')},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes)},
          {"os", value_in("/etc/os-release", "PRETTY_NAME=", '=')},
          {"kernel", kernel()},
          {"gpu", gpu.empty() ? ordered_json(nullptr) : ordered_json(gpu)}};
}

std::string three_parts(unsigned number, unsigned base) {
  return std::to_string(number / base / base) + "." + std::to_string(number / base % base) + "." +
         std::to_string(number % base);
}

std::map<std::string, std::string> library_versions() {
  return {{"sparsecast", std::string(version_string())},
#ifdef __clang__
          {"compiler", "Clang " __clang_version__},
#else
          {"compiler", "GCC " __VERSION__},
#endif
          {"build_type", std::string(build_type())},
          {"xxhash", three_parts(XXH_VERSION_NUMBER, 100)},
          {"zstd", ZSTD_versionString()},
          {"highway", std::to_string(HWY_MAJOR) + "." + std::to_string(HWY_MINOR) + "." + std::to_string(HWY_PATCH)}};
}

/// Returns the ratios of paired samples; nothing unless both rows have the same rounds.
std::vector<double> ratios(const Measurement& row, const Measurement& baseline) {
  std::vector<double> out;
  if (!row.paired || row.samples.size() != baseline.samples.size()) return out;
  for (std::size_t i = 0; i < row.samples.size(); ++i) {
    if (baseline.samples[i] == 0) return {};
    out.push_back(row.samples[i] / baseline.samples[i]);
  }
  return out;
}

ordered_json row_of(const Measurement& row, const std::string& name,
                    const std::map<std::string, const Measurement*>& by_name) {
  ordered_json json = {{"name", name},
                       {"unit", row.unit},
                       {"better", row.better == Better::kLower ? "lower" : "higher"},
                       {"value", row.value},
                       {"statistic", row.statistic}};
  if (row.exact) json["exact"] = true;
  if (!row.samples.empty()) json["samples"] = row.samples;
  const auto baseline = by_name.find(row.baseline);
  if (row.baseline.empty() || baseline == by_name.end() || baseline->second->value == 0) return json;
  json["baseline"] = row.baseline;
  json["ratio"] = row.value / baseline->second->value;
  if (const std::vector<double> paired = ratios(row, *baseline->second); !paired.empty()) {
    json["ratio_samples"] = paired;
  }
  return json;
}

}  // namespace

Measurement median_of(std::string name, std::string unit, std::vector<double> samples, std::string baseline) {
  const double value = median(samples);
  return {std::move(name), std::move(unit), value, std::move(samples), std::move(baseline)};
}

std::string base_name(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  const std::size_t slash = path.rfind('/', end);
  return path.substr(slash + 1, end - slash);
}

Record::Record(std::string benchmark_name)
    : benchmark(std::move(benchmark_name)),
      command(process_command()),
      time(utc_now()),
      commit(build_commit()),
      cuda_hash(build_cuda_hash()),
      versions(library_versions()) {}

ordered_json Record::to_json() const {
  ordered_json json = {{"schema", kSchema},
                       {"benchmark", benchmark},
                       {"command", command},
                       {"time", time},
                       {"commit", commit},
                       {"cuda_hash", cuda_hash},
                       {"machine", describe_machine_of(gpu)},
                       {"versions", versions}};
  json.update(more);
  std::map<std::string, const Measurement*> by_name;
  for (const Measurement& row : results) by_name.emplace(row.name, &row);
  std::map<std::string, int> seen;
  json["results"] = ordered_json::array();
  for (const Measurement& row : results) {
    // A case that the options name twice is measured twice.
    const int count = ++seen[row.name];
    json["results"].push_back(row_of(row, count == 1 ? row.name : row.name + " #" + std::to_string(count), by_name));
  }
  return json;
}

RecordFile::RecordFile(std::string path) : path_(std::move(path)) {
  if (path_ != "-") return;
  std::fflush(stdout);
  stdout_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  if (stdout_ < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    throw Error(ErrorCode::kIo, "standard output cannot be set aside for --json -");
  }
}

RecordFile::~RecordFile() {
  if (stdout_ >= 0) ::close(stdout_);
}

void RecordFile::write(const Record& record) const {
  if (!wanted()) return;
  const std::string text = record.to_json().dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (stdout_ < 0) {
    AtomicFile file(FileSystem::posix(), path_);
    file.append(std::as_bytes(std::span(text)));
    file.commit();
    return;
  }
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(stdout_, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw Error(ErrorCode::kIo, "the record cannot be written to standard output");
    at += static_cast<std::size_t>(written);
  }
}

}  // namespace sparsecast::bench
