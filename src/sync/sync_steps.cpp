// SPDX-License-Identifier: Apache-2.0

// How the records of a delta travel in a sync of one publisher. Over NCCL as a round of one transfer
// (nccl_transport.hpp), between memory of the host and of devices alike:
//
//     exchange_heads      header, commit and the sizes of the frames (frame_head.hpp), or why there are none
//     broadcast_frames    the frames, from where they were encoded to where they are staged
//
// Over any other transport as records in memory of the host, through Transport::broadcast. A receiver that cannot take
// the frames takes part all the same, and says why in its vote.

#include "sync/sync_steps.hpp"

#include <fmt/format.h>

#include <exception>

#include "sparsecast/nccl_transport.hpp"
#include "sync/frame_head.hpp"

namespace sparsecast {
namespace {

Error nothing_to_send(int why) {
  std::string text = "the source had nothing to send";
  if (why != 0) text += fmt::format(": {}", to_string(static_cast<ErrorCode>(why)));
  return {ErrorCode::kPeerFailed, text};
}

class RecordSource final : public SourceSteps {
 public:
  RecordSource(Transport& transport, CUevent_st* weights_ready)
      : transport_(transport), weights_ready_(weights_ready) {}

  Published publish(Publisher& publisher) override {
    const Delta& delta = publisher.publish(weights_ready_);
    // Copies: a transport must own what it sends, because after a failure it may go on reading it.
    records_.reserve(delta.frames.size() + 2);
    records_.push_back(delta.header);
    records_.insert(records_.end(), delta.frames.begin(), delta.frames.end());
    records_.push_back(delta.commit);
    return {delta.info.version, delta.result.changed, delta.wire_bytes()};
  }
  void send(int refused, Deadline deadline) override {
    if (refused != 0) records_.clear();
    transport_.broadcast(records_, transport_.rank(), deadline);
  }

 private:
  Transport& transport_;
  CUevent_st* weights_ready_;
  std::vector<Bytes> records_;
};

class RecordReceiver final : public ReceiverSteps {
 public:
  RecordReceiver(Transport& transport, int source) : transport_(transport), source_(source) {}

  std::uint64_t receive(Subscriber&, Deadline deadline) override {
    transport_.broadcast(records_, source_, deadline);
    std::uint64_t total = 0;
    for (const Bytes& record : records_) total += record.size();
    return total;
  }
  ConstBytes header() const override { return records_.size() < 2 ? ConstBytes{} : ConstBytes(records_.front()); }
  ConstBytes commit() const override { return records_.size() < 2 ? ConstBytes{} : ConstBytes(records_.back()); }
  void stage(Subscriber& subscriber) override {
    if (records_.empty()) throw nothing_to_send(0);
    for (const Bytes& record : records_) subscriber.stage(record);
  }
  void forget() override { records_.clear(); }

 private:
  Transport& transport_;
  int source_;
  std::vector<Bytes> records_;
};

/// Returns a round's one transfer, with nothing in it yet.
FrameTransfer transfer_of(NcclTransport& transport, int source) {
  FrameTransfer transfer;
  transfer.channel = &transport;
  transfer.source = source;
  transfer.head_room = static_cast<std::uint32_t>(expected_head_bytes(1));  // Equal on all ranks.
  return transfer;
}

class RoundSource final : public SourceSteps {
 public:
  RoundSource(NcclTransport& transport, CUevent_st* weights_ready)
      : weights_ready_(weights_ready), transfer_(transfer_of(transport, transport.rank())) {}

  Published publish(Publisher& publisher) override {
    FrameHead head;
    Published published;
    if (publisher.on_device()) {
      const DeviceDelta& delta = publisher.publish_on_device(weights_ready_);
      const DeviceDelta* const deltas[] = {&delta};
      head.add(delta);
      transfer_.stream = delta.stream;
      // NCCL only reads a source's memory.
      transfer_.d_frames = const_cast<std::byte*>(range_of_frames(head, deltas));
      for (std::size_t f = 0; transfer_.d_frames == nullptr && f < delta.frames.size(); ++f) {
        add_piece(head, f, delta.frames[f].d_record, true);
      }
      published = {delta.info.version, delta.result.changed, delta.wire_bytes()};
    } else {
      const Delta& delta = publisher.publish(weights_ready_);
      head.add(delta);
      for (std::size_t f = 0; f < delta.frames.size(); ++f) add_piece(head, f, delta.frames[f].data(), false);
      published = {delta.info.version, delta.result.changed, delta.wire_bytes()};
    }
    transfer_.head = head.pack();
    transfer_.bytes = head.bytes;
    return published;
  }

  void send(int refused, Deadline deadline) override {
    transfer_.error = refused;
    if (transfer_.head.size() > FrameTransfer::kMaxHeadBytes) transfer_.error = static_cast<int>(ErrorCode::kUsage);
    NcclTransport::exchange_heads({&transfer_, 1}, deadline);
    NcclTransport::broadcast_frames({&transfer_, 1}, deadline);
  }

 private:
  void add_piece(const FrameHead& head, std::size_t frame, const std::byte* data, bool on_device) {
    const StreamHead& stream = head.streams[0];
    transfer_.pieces.push_back({const_cast<std::byte*>(data), stream.offsets[frame], stream.sizes[frame], on_device});
  }

  CUevent_st* weights_ready_;
  FrameTransfer transfer_;
};

class RoundReceiver final : public ReceiverSteps {
 public:
  RoundReceiver(NcclTransport& transport, int source) : transfer_(transfer_of(transport, source)) {}

  std::uint64_t receive(Subscriber& subscriber, Deadline deadline) override {
    NcclTransport::exchange_heads({&transfer_, 1}, deadline);
    try {
      reserve(subscriber);
    } catch (...) {
      failure_ = std::current_exception();
    }
    NcclTransport::broadcast_frames({&transfer_, 1}, deadline);
    std::uint64_t total = stream_.header.size() + stream_.commit.size();
    for (const std::uint32_t size : stream_.sizes) total += size;
    return total;
  }

  ConstBytes header() const override { return stream_.header; }
  ConstBytes commit() const override { return stream_.commit; }

  void stage(Subscriber& subscriber) override {
    if (failure_) std::rethrow_exception(failure_);
    subscriber.stage(stream_.header);
    const std::vector<DeviceRecord> frames = stream_.frames_in(frames_);
    if (subscriber.on_device()) {
      subscriber.stage_frames(frames);
    } else {
      for (const DeviceRecord& frame : frames) subscriber.stage(ConstBytes(frame.d_record, frame.record_bytes));
    }
    subscriber.stage(stream_.commit);
  }
  void forget() override { stream_ = {}; }

 private:
  void reserve(Subscriber& subscriber) {
    if (transfer_.error != 0) throw nothing_to_send(transfer_.error);
    FrameHead head = parse_frame_head(transfer_.head, transfer_.bytes);
    if (head.streams.size() != 1) {
      throw Error(ErrorCode::kCorrupt, fmt::format("frames of {} streams where one belongs", head.streams.size()));
    }
    stream_ = std::move(head.streams[0]);
    frames_ = subscriber.reserve_frames(transfer_.bytes);
    if (subscriber.on_device()) {
      transfer_.d_frames = frames_;
    } else if (transfer_.bytes != 0) {
      transfer_.pieces.push_back({frames_, 0, transfer_.bytes, false});
    }
  }

  FrameTransfer transfer_;
  StreamHead stream_;
  std::byte* frames_ = nullptr;  ///< The subscriber's memory for the range.
  std::exception_ptr failure_;
};

}  // namespace

SyncReport sync_send(Publisher& publisher, Transport& transport, std::chrono::milliseconds timeout,
                     CUevent_st* weights_ready) {
  if (auto* const nccl = dynamic_cast<NcclTransport*>(&transport)) {
    RoundSource steps(*nccl, weights_ready);
    return run_source(publisher, transport, timeout, steps);
  }
  RecordSource steps(transport, weights_ready);
  return run_source(publisher, transport, timeout, steps);
}

SyncReport sync_receive(Subscriber& subscriber, Transport& transport, int source, std::chrono::milliseconds timeout,
                        const ApplyOrder& order) {
  if (auto* const nccl = dynamic_cast<NcclTransport*>(&transport)) {
    RoundReceiver steps(*nccl, source);
    return run_receiver(subscriber, transport, timeout, order, steps);
  }
  RecordReceiver steps(transport, source);
  return run_receiver(subscriber, transport, timeout, order, steps);
}

}  // namespace sparsecast
