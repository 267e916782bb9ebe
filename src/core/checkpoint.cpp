// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/utf8.hpp"
#include "core/weight_files.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 28;

Checkpoint::FilePart open_part(FileSystem& fs, const std::string& path) {
  try {
    Checkpoint::FilePart part{path, {}, fs.open(path, OpenMode::kRead)};
    part.header = SafetensorsHeader::read(*part.file);
    return part;
  } catch (const Error& error) {
    if (error.context().starts_with(path)) throw;
    throw error.within(path);
  }
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

/// Reads the index's weight_map: tensor name -> file name. nlohmann keeps the last of two equal keys, so a callback
/// rejects them.
std::map<std::string, std::string> parse_weight_map(const std::string& text) {
  std::vector<std::set<std::string>> open_objects;
  const auto refuse_repeats = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > 8) throw Error(ErrorCode::kCorrupt, "the index is nested too deeply");
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(parsed.get<std::string>()).second) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("'{}' occurs twice in the index", excerpt(parsed.get<std::string>())));
    }
    return true;
  };
  // The JSON parser takes a zero byte for the end of its input, so bytes after it would not be checked.
  if (text.find('\0') != std::string::npos) throw Error(ErrorCode::kCorrupt, "a zero byte in the index");
  const nlohmann::json index = nlohmann::json::parse(text, refuse_repeats, false);
  if (index.is_discarded() || !index.is_object()) throw Error(ErrorCode::kCorrupt, "the index is not a JSON object");
  const auto found = index.find("weight_map");
  if (found == index.end() || !found->is_object()) throw Error(ErrorCode::kCorrupt, "the index has no weight_map");
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, file] : found->items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      throw Error(ErrorCode::kCorrupt, "its file is not a plain name inside the directory",
                  fmt::format("tensor '{}'", excerpt(name)));
    }
    weight_map[name] = file.get<std::string>();
  }
  return weight_map;
}

std::string read_text(FileSystem& fs, const std::string& path) {
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  const std::uint64_t size = file->size();
  if (size > kMaxIndexBytes) throw Error(ErrorCode::kCorrupt, fmt::format("an index of {} bytes", size), path);
  std::string text(size, '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

struct Placed {
  TensorSpec spec;
  Checkpoint::Location location;
};

}  // namespace

std::set<std::string> weight_files(FileSystem& fs, const std::string& directory) {
  std::set<std::string> names;
  const std::string index_path = directory + "/" + kIndexName;
  if (fs.exists(index_path)) {
    try {
      for (const auto& [tensor, file] : parse_weight_map(read_text(fs, index_path))) names.insert(file);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      return {};
    }
    names.insert(kIndexName);
    return names;
  }
  for (const std::string& name : fs.list(directory)) {
    if (name.ends_with(".safetensors")) names.insert(name);
  }
  return names.size() == 1 ? names : std::set<std::string>{};
}

Checkpoint Checkpoint::open(FileSystem& fs, const std::string& path) {
  Checkpoint checkpoint;
  std::map<std::string, std::string> weight_map;
  if (!fs.is_directory(path)) {
    checkpoint.files_.push_back(open_part(fs, path));
  } else {
    checkpoint.sharded_ = true;
    const std::string index_path = path + "/" + kIndexName;
    std::set<std::string> names;
    if (fs.exists(index_path)) {
      try {
        checkpoint.index_json_ = read_text(fs, index_path);
        weight_map = parse_weight_map(checkpoint.index_json_);
      } catch (const Error& error) {
        if (error.context().starts_with(index_path)) throw;
        throw error.within(index_path);
      }
      for (const auto& [name, file] : weight_map) names.insert(file);
    } else {
      for (const std::string& name : fs.list(path)) {
        if (name.ends_with(".safetensors")) names.insert(name);
      }
      if (names.size() != 1) {
        throw Error(ErrorCode::kCorrupt, fmt::format("no {} and {} *.safetensors files", kIndexName, names.size()),
                    path);
      }
    }
    for (const std::string& name : names) checkpoint.files_.push_back(open_part(fs, path + "/" + name));
  }

  const bool indexed = !checkpoint.index_json_.empty();
  std::vector<Placed> placed;
  for (std::size_t f = 0; f < checkpoint.files_.size(); ++f) {
    const FilePart& part = checkpoint.files_[f];
    for (const SafetensorsEntry& entry : part.header.entries) {
      if (indexed) {
        const auto mapped = weight_map.find(entry.spec.name);
        if (mapped == weight_map.end() || part.path != path + "/" + mapped->second) {
          throw Error(ErrorCode::kCorrupt, "the index does not place the tensor in this file",
                      fmt::format("{}: tensor '{}'", part.path, excerpt(entry.spec.name)));
        }
        weight_map.erase(mapped);
      }
      placed.push_back({entry.spec, {f, entry.begin}});
    }
  }
  if (!weight_map.empty()) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the tensor is missing from '{}'", excerpt(weight_map.begin()->second)),
                fmt::format("{}: tensor '{}'", path, excerpt(weight_map.begin()->first)));
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.spec.name < b.spec.name; });
  std::vector<TensorSpec> specs;
  for (Placed& tensor : placed) {
    specs.push_back(std::move(tensor.spec));
    checkpoint.locations_.push_back(tensor.location);
  }
  try {
    checkpoint.table_ = TensorTable(std::move(specs));
  } catch (const Error& error) {
    throw Error(ErrorCode::kCorrupt, error.message(), error.within(path).context());
  }
  return checkpoint;
}

void Checkpoint::read(std::size_t i, std::uint64_t begin_byte, MutableBytes room) const {
  const Location& at = locations_.at(i);
  try {
    files_[at.file].file->read_at(at.begin + begin_byte, room);
  } catch (const Error& error) {
    throw error.within(fmt::format("tensor '{}' at byte {}", excerpt(table_[i].name), begin_byte));
  }
}

std::vector<std::byte> Checkpoint::tensor(std::size_t i) const {
  std::vector<std::byte> bytes(table_[i].bytes());
  read(i, 0, bytes);
  return bytes;
}

TensorReader Checkpoint::reader() const {
  return {table_, [this](std::size_t i, std::uint64_t begin_byte, MutableBytes room) { read(i, begin_byte, room); }};
}

SafetensorsWriter::SafetensorsWriter(FileSystem& fs, const std::string& path, std::vector<TensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : file_(fs, path) {
  const TensorTable table(specs);  // Checks names and sizes.
  const std::vector<std::byte> header = SafetensorsHeader::serialize(specs, metadata);
  expected_ = header.size() + table.bytes();
  file_.append(header);
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > expected_ - file_.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("more bytes than the announced {}", expected_));
  }
  file_.append(bytes);
}

void SafetensorsWriter::finish() {
  if (file_.size() != expected_) {
    throw Error(ErrorCode::kUsage, fmt::format("{} bytes of {} were appended", file_.size(), expected_));
  }
  file_.commit();
}

}  // namespace sparsecast
