// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/utf8.hpp"
#include "core/word.hpp"
#include "interop/formats/slime.hpp"
#include "interop/formats/tensor_checksum.hpp"
#include "interop/formats/zstd_stream.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::slime {
namespace {

constexpr std::uint64_t kMaxIndexBytes = 256'000'000;
constexpr std::size_t kWindowBytes = std::size_t{1} << 20;

[[noreturn]] void corrupt(const std::string& sentence) { throw Error(ErrorCode::kCorrupt, sentence); }

std::string text_of(const nlohmann::json& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end() || !found->is_string())
    corrupt(fmt::format("the index's metadata has no text '{}'", key));
  return found->get<std::string>();
}

/// Collects the changed elements, in ascending order, as one patch.
class Collected {
 public:
  explicit Collected(std::size_t size) : size_(size) {}

  void add(std::uint64_t element, const std::byte* value) {
    const auto index = static_cast<std::uint32_t>(element);  // check_limit() ensures that it fits.
    const auto* bytes = reinterpret_cast<const std::byte*>(&index);
    indices_.insert(indices_.end(), bytes, bytes + sizeof(index));
    values_.insert(values_.end(), value, value + size_);
    ++count_;
  }
  /// Returns the bytes of the last element, which the caller may change.
  std::byte* last_value() { return values_.data() + values_.size() - size_; }
  std::uint64_t last_element() const { return load_word<std::uint32_t>(indices_.data(), count_ - 1); }
  std::uint64_t count() const { return count_; }
  TensorPatch patch(std::size_t tensor) const { return {tensor, indices_, values_, count_}; }

 private:
  std::size_t size_;
  Bytes indices_;
  Bytes values_;
  std::uint64_t count_ = 0;
};

/// A tensor of the base whose elements are read in ascending order.
class OldTensor {
 public:
  OldTensor(const Checkpoint& base, std::size_t tensor) : base_(base), tensor_(tensor) {}

  std::uint64_t size() const { return base_.table()[tensor_].bytes(); }
  /// Returns the bytes of an element, valid until the next call.
  const std::byte* at(std::uint64_t element, std::size_t element_bytes) {
    const std::uint64_t begin = element * element_bytes;
    if (begin < begin_ || begin >= begin_ + window_.size()) {
      begin_ = begin / kWindowBytes * kWindowBytes;  // A multiple of every element size.
      window_.resize(std::min<std::uint64_t>(kWindowBytes, size() - begin_));
      base_.read(tensor_, begin_, window_);
    }
    return window_.data() + (begin - begin_);
  }

 private:
  const Checkpoint& base_;
  std::size_t tensor_;
  std::uint64_t begin_ = 0;
  Bytes window_;
};

void check_limit(const TensorSpec& spec) {
  if (spec.elements() > (std::uint64_t{1} << 31)) {
    throw Error(ErrorCode::kUnsupported, "tensors of more than 2^31 elements cannot be converted");
  }
}

void decode_xor(ZstdReader& reader, OldTensor& old, std::size_t size, Collected& out) {
  Bytes window(std::min<std::uint64_t>(kWindowBytes, old.size()));
  for (std::uint64_t begin = 0; begin < old.size(); begin += window.size()) {
    window.resize(std::min<std::uint64_t>(window.size(), old.size() - begin));
    reader.read_exact(window);
    with_word(size, [&]<class T>() {
      constexpr std::size_t kWordElems = sizeof(std::uint64_t) / sizeof(T);
      const std::byte* bits = window.data();
      const std::size_t count = window.size() / sizeof(T);
      for (std::size_t i = 0; i < count; ++i) {
        while (count - i >= kWordElems && load_word<std::uint64_t>(bits + i * sizeof(T)) == 0) {
          i += kWordElems;
          if (i == count) return;
        }
        const T difference = load_word<T>(bits, i);
        if (difference == 0) continue;
        const std::uint64_t element = begin / sizeof(T) + i;
        const T value = load_word<T>(old.at(begin / sizeof(T) + i, sizeof(T)), 0) ^ difference;
        out.add(element, reinterpret_cast<const std::byte*>(&value));
      }
    });
  }
}

/// Reads the positions, which precede the values in the frame, into memory. Accepts at most as many as the tensor has
/// bytes, and allocates memory only as they are decoded.
Bytes read_positions(ZstdReader& reader, std::uint64_t tensor_bytes) {
  Bytes header(sizeof(std::uint32_t));
  reader.read_exact(header);
  const std::uint64_t count = load_word<std::uint32_t>(header.data());
  if (count > tensor_bytes) corrupt(fmt::format("{} positions in a tensor of {} bytes", count, tensor_bytes));
  Bytes positions;
  Bytes window;
  while (positions.size() < count * sizeof(std::uint32_t)) {
    window.resize(std::min<std::uint64_t>(kWindowBytes, count * sizeof(std::uint32_t) - positions.size()));
    reader.read_exact(window);
    positions.insert(positions.end(), window.begin(), window.end());
  }
  return positions;
}

void decode_overwrite(ZstdReader& reader, OldTensor& old, std::size_t size, Collected& out) {
  const Bytes positions = read_positions(reader, old.size());
  const std::uint64_t count = positions.size() / sizeof(std::uint32_t);
  Bytes window;
  std::int64_t previous = -1;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % kWindowBytes == 0) {
      window.resize(std::min<std::uint64_t>(kWindowBytes, count - i));
      reader.read_exact(window);
    }
    const auto position = std::int64_t{load_word<std::uint32_t>(positions.data(), i)};
    if (position <= previous || static_cast<std::uint64_t>(position) >= old.size()) {
      corrupt(fmt::format("position {} does not follow {} or is not below {}", position, previous, old.size()));
    }
    previous = position;
    const std::uint64_t element = static_cast<std::uint64_t>(position) / size;
    if (out.count() == 0 || out.last_element() != element) out.add(element, old.at(element, size));
    out.last_value()[static_cast<std::uint64_t>(position) % size] = window[i % kWindowBytes];
  }
}

void verify_checksum(const Checkpoint& base, const TensorPatch& patch, const std::string& algorithm,
                     const std::string& expected) {
  TensorChecksum checksum(algorithm);
  for_each_window(base, patch, [&](ConstBytes, ConstBytes after) { checksum.update(after); });
  if (checksum.hex() != expected) {
    throw Error(ErrorCode::kDigestMismatch,
                fmt::format("its {} is {} after the change, but {} is promised: another base, or altered files",
                            algorithm, checksum.hex(), excerpt(expected)));
  }
}

void read_file(FileSystem& fs, const std::string& path, const Index& index, const Checkpoint& base,
               std::set<std::string>& seen, PatchStore& out) {
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  const SafetensorsHeader header = SafetensorsHeader::read(*file);
  Bytes frame;
  for (const SafetensorsEntry& entry : header.entries) {
    const std::string where = fmt::format("tensor '{}': frame at offset {}", excerpt(entry.spec.name), entry.begin);
    try {
      const std::optional<std::size_t> tensor = base.table().find(entry.spec.name);
      if (!tensor) throw Error(ErrorCode::kTableMismatch, "the base has no such tensor");
      if (entry.spec.dtype != DType::kU8) corrupt("a compressed difference must be of U8");
      if (!seen.insert(entry.spec.name).second) corrupt("the tensor is in two files of the version");
      const auto expected = header.metadata.find(entry.spec.name);
      if (expected == header.metadata.end()) corrupt("the file's metadata has no checksum for it");
      frame.resize(entry.spec.bytes());
      file->read_at(entry.begin, frame);
      decode_tensor(frame, index.encoding, *tensor, base, [&](const TensorPatch& patch) {
        verify_checksum(base, patch, index.checksum, expected->second);
        out.add(patch);
      });
    } catch (const Error& error) {
      throw error.within(where);
    }
  }
}

}  // namespace

std::string version_name(std::uint64_t version) { return fmt::format("weight_v{:06d}", version); }

std::optional<std::uint64_t> version_of_name(const std::string& name) {
  constexpr std::string_view kPrefix = "weight_v";
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + 6) return std::nullopt;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size();
  std::uint64_t version = 0;
  const auto [stop, error] = std::from_chars(begin, end, version);
  return error == std::errc{} && stop == end ? std::optional(version) : std::nullopt;
}

Index parse_index(const std::string& text) {
  Index index;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) corrupt("the index is no JSON object");
  const auto metadata = json.find("metadata");
  if (metadata == json.end() || !metadata->is_object() || !metadata->contains("delta_encoding")) return index;
  index.delta = true;
  index.version = text_of(*metadata, "version");
  index.base_version = text_of(*metadata, "base_version");
  index.encoding = text_of(*metadata, "delta_encoding");
  index.checksum = text_of(*metadata, "checksum_format");
  const std::string compression = text_of(*metadata, "compression_format");
  if (compression != "zstd" || (index.encoding != "xor" && index.encoding != "overwrite")) {
    throw Error(ErrorCode::kUnsupported, fmt::format("a delta of encoding '{}' compressed by '{}' is not known",
                                                     excerpt(index.encoding), excerpt(compression)));
  }
  TensorChecksum checksum(index.checksum);  // Throws if the checksum cannot be verified later.
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) corrupt("the index has no weight_map");
  for (const auto& [name, file] : map->items()) index.tensors.push_back(name);
  return index;
}

Index read_index(FileSystem& fs, const std::string& directory) {
  const std::string path = directory + "/" + kIndexName;
  if (!fs.exists(path)) return {};
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  try {
    const std::uint64_t size = file->size();
    if (size > kMaxIndexBytes) corrupt(fmt::format("an index of {} bytes", size));
    std::string text(size, '\0');
    file->read_at(0, std::as_writable_bytes(std::span(text)));
    return parse_index(text);
  } catch (const Error& error) {
    throw error.within(path);
  }
}

void decode_tensor(ConstBytes frame, const std::string& encoding, std::size_t tensor, const Checkpoint& base,
                   const PatchSink& sink) {
  const TensorSpec& spec = base.table()[tensor];
  check_limit(spec);
  const std::size_t size = element_size(spec.dtype);
  ZstdReader reader(frame);
  Collected collected(size);
  OldTensor old(base, tensor);
  if (encoding == "xor") {
    decode_xor(reader, old, size, collected);
  } else {
    decode_overwrite(reader, old, size, collected);
  }
  reader.require_end();
  sink(collected.patch(tensor));
}

void read_delta(FileSystem& fs, const std::string& directory, const Checkpoint& base, PatchStore& out) {
  const Index index = read_index(fs, directory);
  std::set<std::string> seen;
  for (const std::string& name : fs.list(directory)) {
    if (!name.ends_with(".safetensors")) continue;
    try {
      read_file(fs, directory + "/" + name, index, base, seen, out);
    } catch (const Error& error) {
      throw error.within(directory + "/" + name);
    }
  }
  if (!std::equal(seen.begin(), seen.end(), index.tensors.begin(), index.tensors.end())) {
    throw Error(ErrorCode::kIncomplete,
                fmt::format("the index names {} tensors, the files hold {}, and not the same", index.tensors.size(),
                            seen.size()),
                directory);
  }
}

}  // namespace sparsecast::slime
