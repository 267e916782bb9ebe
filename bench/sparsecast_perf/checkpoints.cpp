#include <fmt/format.h>

#include <cstring>

#include "sparsecast/error.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast_perf/weight_source.hpp"

namespace sparsecast::perf {
namespace {

class CheckpointDirectory : public WeightSource {
 public:
  explicit CheckpointDirectory(const std::string& directory) : directory_(directory) {
    FileSystem& fs = FileSystem::posix();
    for (const std::string& name : fs.list(directory)) {
      const std::string path = directory + "/" + name;
      if (name.ends_with(".safetensors") || fs.is_directory(path)) paths_.push_back(path);
    }
    if (paths_.empty()) throw Error(ErrorCode::kUsage, "no *.safetensors files and no directories", directory);
    const Checkpoint first = Checkpoint::open(fs, paths_[0]);
    table_ = first.table();
    for (std::size_t i = 0; i < table_.size(); ++i) {
      const ConstTensorBytes bytes = first.tensor(i);
      storage_.emplace_back(bytes.begin(), bytes.end());
    }
  }

  const TensorTable& table() const override { return table_; }
  std::vector<TensorBytes> weights() override { return {storage_.begin(), storage_.end()}; }

  std::string next(bool) override {
    if (next_ == paths_.size()) return {};
    const std::string& path = paths_[next_++];
    FileSystem& fs = FileSystem::posix();
    if (!fs.is_directory(path)) {
      const auto mapping = fs.map(path);
      if (SparseStep::recognises(SafetensorsHeader::parse(mapping->bytes(), mapping->bytes().size()))) {
        const std::vector<TensorBytes> live = weights();
        SparseStep::open(fs, path, table_).apply(live);
        return label(path);
      }
    }
    const Checkpoint checkpoint = Checkpoint::open(fs, path);
    if (checkpoint.table().hash() != table_.hash()) {
      throw Error(ErrorCode::kTableMismatch, "its tensors are not those of the first checkpoint", path);
    }
    for (std::size_t i = 0; i < table_.size(); ++i) {
      std::memcpy(storage_[i].data(), checkpoint.tensor(i).data(), storage_[i].size());
    }
    return label(path);
  }

  std::string describe() const override { return fmt::format("{} ({} files)", directory_, paths_.size()); }

 private:
  static std::string label(const std::string& path) {
    std::string name = path.substr(path.find_last_of('/') + 1);
    const std::size_t dot = name.rfind(".safetensors");
    return dot == std::string::npos ? name : name.substr(0, dot);
  }

  std::string directory_;
  std::vector<std::string> paths_;
  std::size_t next_ = 1;
  TensorTable table_;
  std::vector<std::vector<std::byte>> storage_;
};

}  // namespace

std::unique_ptr<WeightSource> open_checkpoints(const std::string& directory) {
  return std::make_unique<CheckpointDirectory>(directory);
}

}  // namespace sparsecast::perf
