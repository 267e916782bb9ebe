#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_store.hpp"
#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// A checkpoint cut into the files of an anchor: tensors in the order of the table, plain safetensors, the same bytes
/// for the same content and size of files, however the checkpoint itself was cut.
class AnchorFiles {
 public:
  /// Throws Error{kUsage} when that makes too many files.
  AnchorFiles(const CheckpointStore& checkpoint, std::uint64_t file_bytes);

  struct Proof {
    std::vector<LogAnchor::FileEntry> files;  ///< In the order of their names.
    StateDigest digest;
  };
  /// Reads everything once: names, sizes, hashes, and the digest of the state. On `threads` threads, a window each.
  Proof verify(int threads) const;

  using Take = std::function<void(ConstBytes window)>;
  /// The bytes of a file, in order, read anew.
  void read(const std::string& name, const Take& take) const;

 private:
  struct Part {
    std::string name;
    Bytes header;
    std::size_t first = 0;  ///< Tensor.
    std::size_t last = 0;   ///< One behind.
    std::uint64_t bytes = 0;
  };
  /// `digest` may be null.
  void read_part(const Part& part, const Take& take, StateDigest* digest) const;
  void cut(std::uint64_t file_bytes);
  void make_index();

  const CheckpointStore& checkpoint_;
  std::vector<Part> parts_;
  std::string index_;  ///< Text of the index file; empty when there is one part.
};

}  // namespace sparsecast
