// SPDX-License-Identifier: Apache-2.0
#include "tools/log/log_publisher_state.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "core/file_tree.hpp"
#include "core/sodium.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::tools {
namespace {

constexpr std::uint64_t kMaxStateBytes = 4096;

/// Returns one absolute name for a directory, however it is spelt, and whether or not it is there yet.
std::string settled_location(FileSystem& fs, const std::string& log) {
  if (log.starts_with("s3://") || &fs != &FileSystem::posix()) return log;
  std::error_code ignored;
  const std::filesystem::path real =
      std::filesystem::weakly_canonical(std::filesystem::absolute(log, ignored), ignored);
  return without_trailing_slashes(real.empty() ? log : real.string());
}

}  // namespace

PublisherState PublisherState::random(const StreamId& stream) { return {stream, random_hash()}; }

StreamId random_stream() { return random_hash(); }

std::optional<PublisherState> PublisherState::load(FileSystem& fs, const std::string& path) {
  if (!fs.exists(path)) return std::nullopt;
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  std::string text(std::min(file->size(), kMaxStateBytes), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  try {
    if (object.is_object() && object.size() == 2) {
      return PublisherState{hash_from_hex(object.at("stream").get<std::string>()),
                            hash_from_hex(object.at("publisher").get<std::string>())};
    }
  } catch (const nlohmann::json::exception&) {
  } catch (const Error&) {
  }
  throw Error(ErrorCode::kCorrupt, "is no publisher's state; if it is not needed, remove it and pass --take-over once",
              path);
}

void PublisherState::save(FileSystem& fs, const std::string& path) const {
  const std::string text = nlohmann::json{{"publisher", to_hex(publisher)}, {"stream", to_hex(stream)}}.dump() + "\n";
  AtomicFile file(fs, path);
  file.append(std::as_bytes(std::span(text)));
  file.commit();
}

std::string publisher_state_path(FileSystem& fs, const std::string& log, const std::string& weights) {
  const std::string location = settled_location(fs, log);
  const Hash128 name = xxh3_128(std::as_bytes(std::span(location)));
  return fmt::format("{}/sparsecast-{}.publisher", parent_directory(without_trailing_slashes(weights)),
                     to_hex(name).substr(0, 16));
}

}  // namespace sparsecast::tools
