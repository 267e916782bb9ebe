#include "sync/publisher_backend.hpp"

namespace sparsecast {
namespace {

class HostPublisherBackend final : public PublisherBackend {
 public:
  HostPublisherBackend(const TensorTable& table, Detector& detector, const EncodeOptions& options)
      : table_(table), detector_(detector), options_(options) {
    check_encode_options(options, detector.knows_old());
  }

  Abilities abilities() const noexcept override {
    const bool keeps_snapshot = !detector_.snapshot().empty();
    return {detector_.knows_old(), keeps_snapshot, detector_.consumes_changes(),
            keeps_snapshot && options_.values != ValueCodec::kRaw};
  }

  StateDigest digest() override {
    // The live weights may have moved on from what receivers hold, which a snapshot knows.
    std::vector<ConstHostTensor> tensors;
    for (const HostTensor& tensor : detector_.snapshot()) tensors.push_back({tensor.data, tensor.strides});
    for (std::size_t t = tensors.size(); t < table_.size(); ++t) tensors.push_back(detector_.current(t));
    return sum(digest_tensors(table_, tensors, options_.threads));
  }

  EncodedFrames encode(const DeltaHeader& header, CUevent_st* weights_ready) override {
    if (weights_ready != nullptr) throw Error(ErrorCode::kUsage, "an event to wait for needs a device detector");
    frames_.clear();
    return encode_frames(table_, detector_, header, options_, abilities().refreshes_in_pass, true,
                         [this](Bytes&& record) { frames_.push_back(std::move(record)); });
  }
  std::vector<Bytes> take_frames() override { return std::move(frames_); }

  void apply_to_snapshot(const Delta& delta, Direction direction) override {
    const std::span<const HostTensor> tensors = detector_.snapshot();
    const auto snapshot = place_tensors(table_, std::vector<HostTensor>(tensors.begin(), tensors.end()), "snapshot");
    ApplyScratch scratch;
    for (const Bytes& record : delta.frames) {
      const FrameReader frame(record, delta.info, table_);
      for (const BlockRef& block : frame.blocks()) {
        const auto& place = snapshot[block.tensor];
        const ApplyTarget target = target_in(place.data, place.view.get(), table_[block.tensor].dtype, block);
        apply_block(block, target, direction, scratch);
      }
    }
  }
  void committed() override { detector_.committed(); }
  void aborted() override { detector_.aborted(); }

 private:
  const TensorTable& table_;
  Detector& detector_;
  EncodeOptions options_;
  std::vector<Bytes> frames_;
};

}  // namespace

std::unique_ptr<PublisherBackend> make_host_publisher_backend(const TensorTable& table, Detector& detector,
                                                              const EncodeOptions& options) {
  return std::make_unique<HostPublisherBackend>(table, detector, options);
}

}  // namespace sparsecast
