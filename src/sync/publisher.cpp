// SPDX-License-Identifier: Apache-2.0

// The publisher of one stream, and the backend for weights in host memory.

#include "sparsecast/publisher.hpp"
#include "sync/joined_publisher.hpp"

namespace sparsecast {

struct Publisher::State {
  JoinedPublisher all;  ///< One stream.
};

namespace {

std::vector<StateDigest> list_of(const std::optional<StateDigest>& digest) {
  return digest ? std::vector{*digest} : std::vector<StateDigest>{};
}

}  // namespace

Publisher::Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<Detector> detector,
                     PublisherOptions options, std::optional<StateDigest> base_digest)
    : state_(new State{JoinedPublisher(std::move(table), std::move(detector), options, list_of(base_digest))}) {}

Publisher::Publisher(std::shared_ptr<const TensorTable> table, std::unique_ptr<DeviceDetector> detector,
                     PublisherOptions options, std::optional<StateDigest> base_digest)
    : state_(new State{JoinedPublisher(std::move(table), std::move(detector), options, list_of(base_digest))}) {}

Publisher::~Publisher() = default;
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&&) noexcept = default;

const Delta& Publisher::publish(CUevent_st* weights_ready) { return state_->all.publish(weights_ready).front(); }
const DeviceDelta& Publisher::publish_on_device(CUevent_st* weights_ready) {
  return state_->all.publish_on_device(weights_ready).front();
}
void Publisher::commit(std::uint64_t version) { state_->all.commit(version); }
void Publisher::abort(std::uint64_t version) { state_->all.abort(version); }
std::uint64_t Publisher::version() const noexcept { return state_->all.version(); }
const StateDigest& Publisher::digest() const noexcept { return state_->all.digests().front(); }
bool Publisher::pending() const noexcept { return state_->all.pending(); }
Detector* Publisher::detector() noexcept { return state_->all.detector(); }
DeviceDetector* Publisher::device_detector() noexcept { return state_->all.device_detector(); }

namespace {

class HostPublisherBackend final : public PublisherBackend {
 public:
  HostPublisherBackend(const JoinedTables& tables, Detector& detector, const EncodeOptions& options)
      : tables_(tables), detector_(detector), options_(options) {
    check_encode_options(options, detector.knows_old());
  }

  Abilities abilities() const noexcept override {
    const bool keeps_snapshot = !detector_.snapshot().empty();
    return {detector_.knows_old(), keeps_snapshot, detector_.consumes_changes(),
            keeps_snapshot && options_.values != ValueCodec::kRaw};
  }

  std::vector<StateDigest> digests() override {
    // The live weights may have moved on from what receivers hold, which a snapshot knows.
    std::vector<ConstHostTensor> tensors;
    for (const HostTensor& tensor : detector_.snapshot()) tensors.push_back({tensor.data, tensor.strides});
    for (std::size_t t = tensors.size(); t < tables_.all().size(); ++t) tensors.push_back(detector_.current(t));
    return tables_.sums(digest_tensors(tables_.all(), tensors, options_.threads));
  }

  void encode(std::span<const DeltaHeader> headers, CUevent_st* weights_ready, const EncodedStreamSink& sink) override {
    if (weights_ready != nullptr) throw Error(ErrorCode::kUsage, "an event to wait for needs a device detector");
    encode_streams(tables_, detector_, headers, options_, abilities().refreshes_in_pass, sink);
  }

  void apply_to_snapshot(const std::vector<Delta>& deltas, Direction direction) override {
    const std::span<const HostTensor> tensors = detector_.snapshot();
    const auto snapshot =
        place_tensors(tables_.all(), std::vector<HostTensor>(tensors.begin(), tensors.end()), "snapshot");
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
  Detector& detector_;
  EncodeOptions options_;
};

}  // namespace

std::unique_ptr<PublisherBackend> make_host_publisher_backend(const JoinedTables& tables, Detector& detector,
                                                              const EncodeOptions& options) {
  return std::make_unique<HostPublisherBackend>(tables, detector, options);
}

}  // namespace sparsecast
