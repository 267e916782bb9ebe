// SPDX-License-Identifier: Apache-2.0
#include "tools/log/log_open.hpp"

#include <fmt/format.h>
#include "tools/common/parser.hpp"

#include <charconv>
#include <cmath>

#include "core/file_tree.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::tools {

void LogFlags::add_to(Parser& parser) {
  parser.add_option("log", location, "Where the log is: a directory, or s3://bucket/prefix")
      ->required()
      ->type_name("LOG");
  parser
      .add_option("--trust", trust,
                  "Believe only what this public key, or a key of this file, has signed, or a key that they hand over "
                  "to; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY|FILE");
}

LogTrust LogFlags::pinned(FileSystem& fs) const {
  LogTrust result;
  for (const std::string& text : trust) {
    if (text.starts_with("ed25519:")) {
      result.pinned.push_back(public_key_from_string(text));
      continue;
    }
    const std::vector<PublicKey> keys = read_public_keys(fs, text);
    if (keys.empty()) throw Error(ErrorCode::kUsage, "there is no key in it", text);
    result.pinned.insert(result.pinned.end(), keys.begin(), keys.end());
  }
  return result;
}

OpenLog::OpenLog(FileSystem& fs, const std::string& location, const LogTrust& trust)
    : store(open_object_store(fs, location)), reader(std::make_unique<LogReader>(store, trust)) {}

LogCommit OpenLog::head() {
  std::optional<LogCommit> found = reader->head();
  if (!found)
    throw Error(ErrorCode::kUsage, "there is no log here; `sparsecast log init` makes one", store->location());
  return std::move(*found);
}

void add_key(Parser& parser, std::string& file) {
  parser.add_option("--key", file, "Sign with the secret key in this file (`sparsecast log keygen`)")
      ->type_name("FILE");
}

void add_label(Parser& parser, std::string& label) {
  parser.add_option("--label", label, "A note for people, kept with the version")->type_name("TEXT");
}

std::shared_ptr<const SigningKey> load_key(FileSystem& fs, const std::string& file) {
  return file.empty() ? nullptr : SigningKey::load(fs, file);
}

std::chrono::milliseconds parse_duration(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value);
  const std::string_view name(unit, static_cast<std::size_t>(end - unit));
  double seconds = -1;
  if (name.empty() || name == "s") seconds = 1;
  if (name == "ms") seconds = 0.001;
  if (name == "m" || name == "min") seconds = 60;
  if (name == "h") seconds = 3600;
  if (name == "d") seconds = 86400;
  constexpr double kMost = 86400.0 * 365 * 100;
  if (error != std::errc() || seconds < 0 || !(value >= 0 && value * seconds <= kMost)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}' is no time span: a number of seconds, or such as 90s, 15m, 2h, 7d", text));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::llround(value * seconds * 1000)));
}

void add_duration(Parser& parser, const std::string& name, std::string& value, const std::string& help) {
  parser.add_option(name, value, help)
      ->check([](const std::string& text) {
        try {
          parse_duration(text);
          return std::string();
        } catch (const Error& error) {
          return error.message();
        }
      })
      ->type_name("TIME");
}

std::string human_duration(std::chrono::milliseconds duration) {
  const double seconds = std::abs(static_cast<double>(duration.count())) / 1000;
  const char* sign = duration.count() < 0 ? "-" : "";
  if (seconds < 99.5) return fmt::format("{}{:.0f} s", sign, seconds);
  if (seconds < 99.5 * 60) return fmt::format("{}{:.0f} min", sign, seconds / 60);
  if (seconds < 47.5 * 3600) return fmt::format("{}{:.1f} h", sign, seconds / 3600);
  return fmt::format("{}{:.1f} d", sign, seconds / 86400);
}

const char* to_string(CommitKind kind) {
  switch (kind) {
    case CommitKind::kGenesis:
      return "genesis";
    case CommitKind::kTakeover:
      return "takeover";
    case CommitKind::kKeys:
      return "keys";
    case CommitKind::kDelta:
      break;
  }
  return "delta";
}

TemporaryDirectory::TemporaryDirectory(FileSystem& fs, std::string path) : fs_(fs), path_(std::move(path)) {
  if (fs_.exists(path_)) clear();
  fs_.make_directory(path_);
}

TemporaryDirectory::~TemporaryDirectory() {
  try {
    clear();
    fs_.remove(path_);
  } catch (const Error&) {
    // The next TemporaryDirectory of this path removes it.
  }
}

void TemporaryDirectory::clear() {
  for (const std::string& name : fs_.list(path_)) remove_tree(fs_, path_ + "/" + name);
}

}  // namespace sparsecast::tools
