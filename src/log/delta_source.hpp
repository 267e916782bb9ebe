#pragma once

#include <functional>
#include <vector>

#include "sparsecast/content_hash.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

/// The bytes of a delta file, wherever its records lie; refers to the delta that it was made from.
class DeltaSource {
 public:
  explicit DeltaSource(const DeltaFile& file);
  DeltaSource(const Delta& delta, const TensorTable& table);
  /// The delta without changes from `base_version` to the next one.
  static DeltaSource unchanged(const StreamId& stream, const TensorTable& table, std::uint64_t base_version,
                               const StateDigest& digest);

  const DeltaHeader& header() const noexcept { return header_; }
  const CommitRecord& result() const noexcept { return result_; }
  std::uint64_t bytes() const noexcept;
  ContentHash hash() const;
  /// In order.
  void for_each(const std::function<void(ConstBytes piece)>& take) const;

 private:
  DeltaSource() = default;

  DeltaHeader header_;
  CommitRecord result_;
  std::vector<Bytes> owned_;  ///< What some pieces refer to.
  std::vector<ConstBytes> pieces_;
  const DeltaFile* file_ = nullptr;  ///< Pages of its frames, pieces 1 to frames(), are let go after use.
};

}  // namespace sparsecast
