#include "log/anchor_files.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/parallel.hpp"
#include "log/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kWindowBytes = std::uint64_t{4} << 20;
constexpr const char* kIndexFile = "model.safetensors.index.json";

ConstBytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

AnchorFiles::AnchorFiles(const CheckpointStore& checkpoint, std::uint64_t file_bytes) : checkpoint_(checkpoint) {
  cut(file_bytes);
  if (parts_.size() > 1) make_index();
}

/// A file takes tensors until the next one would make it too large, and at least one.
void AnchorFiles::cut(std::uint64_t file_bytes) {
  const TensorTable& table = checkpoint_.table();
  std::uint64_t data_bytes = 0;
  parts_.emplace_back();
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (parts_.back().last > parts_.back().first && table[t].bytes() > file_bytes - std::min(file_bytes, data_bytes)) {
      parts_.push_back({{}, {}, t, t, 0});
      data_bytes = 0;
    }
    data_bytes += table[t].bytes();
    parts_.back().last = t + 1;
  }
  if (parts_.size() >= kMaxAnchorFiles) {
    throw Error(ErrorCode::kUsage, fmt::format("an anchor of {} files: they have to be larger", parts_.size()));
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    part.name = parts_.size() == 1 ? std::string("model.safetensors")
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts_.size());
    const std::vector<TensorSpec> specs(table.begin() + static_cast<std::ptrdiff_t>(part.first),
                                        table.begin() + static_cast<std::ptrdiff_t>(part.last));
    // Loaders of the Hugging Face family refuse files that do not say this.
    part.header = SafetensorsHeader::serialize(specs, {{"format", "pt"}});
    part.bytes = part.header.size();
    for (const TensorSpec& spec : specs) part.bytes += spec.bytes();
  }
}

void AnchorFiles::make_index() {
  nlohmann::json weight_map = nlohmann::json::object();
  for (const Part& part : parts_) {
    for (std::size_t t = part.first; t < part.last; ++t) weight_map[checkpoint_.table()[t].name] = part.name;
  }
  const nlohmann::json index = {{"metadata", {{"total_size", checkpoint_.table().bytes()}}},
                                {"weight_map", std::move(weight_map)}};
  index_ = index.dump(2) + "\n";
}

void AnchorFiles::read_part(const Part& part, const Take& take, StateDigest* digest) const {
  take(part.header);
  const TensorTable& table = checkpoint_.table();
  Bytes window;
  for (std::size_t t = part.first; t < part.last; ++t) {
    const std::uint64_t size = element_size(table[t].dtype);
    for (std::uint64_t begin = 0; begin < table[t].bytes(); begin += window.size()) {
      window.resize(std::min(kWindowBytes, table[t].bytes() - begin));
      checkpoint_.read(t, begin, window);
      take(window);
      if (digest != nullptr) *digest += digest_span(table.digest_key(t), table[t].dtype, begin / size, window);
    }
  }
}

AnchorFiles::Proof AnchorFiles::verify(int threads) const {
  Proof proof;
  proof.files.resize(parts_.size());
  std::vector<StateDigest> digests(parts_.size());
  parallel_for(threads, parts_.size(), [&](std::size_t, std::size_t i) {
    ContentHasher hasher;
    read_part(
        parts_[i], [&](ConstBytes window) { hasher.append(window); }, &digests[i]);
    proof.files[i] = {parts_[i].name, parts_[i].bytes, hasher.finish()};
  });
  proof.digest = sum(digests);
  if (!index_.empty()) proof.files.push_back({kIndexFile, index_.size(), content_hash(bytes_of(index_))});
  return proof;
}

void AnchorFiles::read(const std::string& name, const Take& take) const {
  if (name == kIndexFile) return take(bytes_of(index_));
  for (const Part& part : parts_) {
    if (part.name == name) return read_part(part, take, nullptr);
  }
  throw Error(ErrorCode::kUsage, "the anchor has no such file", name);
}

}  // namespace sparsecast
