// SPDX-License-Identifier: Apache-2.0

// A publisher's backend for weights in host memory.

#include "core/tensor_view.hpp"
#include "memory/encoder.hpp"
#include "memory/publisher_backend.hpp"

namespace sparsecast {
namespace {

class HostPublisherBackend final : public PublisherBackend {
 public:
  HostPublisherBackend(const JoinedTables& tables, TileDetector& detector, const EncodeOptions& options)
      : tables_(tables), detector_(detector), options_(options) {
    check_encode_options(options, detector.knows_old());
    if (options.positions == PositionMode::kContext && detector.consumes_changes()) {
      throw Error(
          ErrorCode::kUnsupported,
          "a fused cast keeps no old weights, so its aborted deltas could not be joined: no 'context' positions");
    }
  }

  Abilities abilities() const noexcept override {
    const bool keeps_snapshot = !detector_.snapshot().empty();
    return {detector_.knows_old(), keeps_snapshot, detector_.consumes_changes(),
            // Only a delta that holds everything needed can roll the snapshot back: a `raw` delta lacks the old values,
            // a `context` delta the positions. With these, the snapshot is refreshed at the commit.
            keeps_snapshot && options_.values != ValueCodec::kRaw && options_.positions != PositionMode::kContext};
  }

  std::vector<StateDigest> digests() override {
    // The live weights may differ from the receivers' weights; a snapshot holds the latter.
    std::vector<TensorRef> tensors(detector_.snapshot().begin(), detector_.snapshot().end());
    for (std::size_t t = tensors.size(); t < tables_.all().size(); ++t) tensors.push_back(detector_.current(t));
    return tables_.sums(digest_tensors(tables_.all(), tensors, options_.threads));
  }

  void encode(std::span<const DeltaHeader> headers, CUevent_st* weights_ready, const EncodedStreamSink& sink) override {
    if (weights_ready != nullptr) throw Error(ErrorCode::kUsage, "an event to wait for needs a device detector");
    encode_streams(tables_, detector_, headers, options_, abilities().refreshes_in_pass, sink);
  }

  void apply_to_snapshot(const std::vector<Delta>& deltas, Direction direction) override {
    const std::span<const TensorRef> tensors = detector_.snapshot();
    const auto snapshot =
        place_tensors(tables_.all(), std::vector<TensorRef>(tensors.begin(), tensors.end()), "snapshot");
    ApplyScratch scratch;
    for (std::size_t s = 0; s < deltas.size(); ++s) {
      const TensorTable& table = *tables_.table(s);
      for (const Bytes& record : deltas[s].frames) {
        const FrameReader frame(record, deltas[s].info, table);
        for (const BlockRef& block : frame.blocks()) {
          const auto& place = snapshot[tables_.first(s) + block.tensor];
          const ApplyTarget target = target_in(place.data, place.view.get(), table[block.tensor].dtype, block);
          apply_block(block, target, direction, scratch);
        }
      }
    }
  }
  void committed() override { detector_.committed(); }
  void aborted() override { detector_.aborted(); }

 private:
  const JoinedTables& tables_;
  TileDetector& detector_;
  EncodeOptions options_;
};

}  // namespace

std::unique_ptr<PublisherBackend> TileDetector::make_backend(const JoinedTables& tables, const EncodeOptions& options) {
  return std::make_unique<HostPublisherBackend>(tables, *this, options);
}

}  // namespace sparsecast
