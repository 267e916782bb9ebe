// SPDX-License-Identifier: Apache-2.0

// A sync whose frames stay in device memory, as a round of one transfer (nccl_transport.hpp):
//
//     exchange_heads      header, commit and the sizes of the frames (frame_head.hpp), or why there are none
//     broadcast_frames    the frames, from where they were encoded to where they are staged
//
// A receiver that cannot take the frames takes part all the same, and says why in its vote.

#include <fmt/format.h>

#include <exception>

#include "sparsecast/nccl_transport.hpp"
#include "sync/frame_head.hpp"
#include "sync/sync_steps.hpp"

namespace sparsecast {
namespace {

/// Equal on all ranks.
const auto kHeadRoom = static_cast<std::uint32_t>(expected_head_bytes(1));

class DeviceSource final : public SourceSteps {
 public:
  DeviceSource(NcclTransport& transport, CUevent_st* weights_ready) : weights_ready_(weights_ready) {
    transfer_.channel = &transport;
    transfer_.source = transport.rank();
    transfer_.head_room = kHeadRoom;
  }

  Published publish(Publisher& publisher) override {
    const DeviceDelta& delta = publisher.publish_on_device(weights_ready_);
    const DeviceDelta* const deltas[] = {&delta};
    FrameHead head;
    head.add(delta);
    transfer_.head = head.pack();
    transfer_.bytes = head.bytes;
    transfer_.stream = delta.stream;
    // NCCL only reads a source's memory.
    transfer_.d_frames = const_cast<std::byte*>(range_of_frames(head, deltas));
    if (transfer_.d_frames == nullptr) {
      for (std::size_t f = 0; f < delta.frames.size(); ++f) {
        transfer_.pieces.push_back({const_cast<std::byte*>(delta.frames[f].d_record), head.streams[0].offsets[f],
                                    delta.frames[f].record_bytes, true});
      }
    }
    return {delta.info.version, delta.result.changed, delta.wire_bytes()};
  }

  void send(int refused, Deadline deadline) override {
    transfer_.error = refused;
    if (transfer_.head.size() > FrameTransfer::kMaxHeadBytes) transfer_.error = static_cast<int>(ErrorCode::kUsage);
    NcclTransport::exchange_heads({&transfer_, 1}, deadline);
    NcclTransport::broadcast_frames({&transfer_, 1}, deadline);
  }

 private:
  CUevent_st* weights_ready_;
  FrameTransfer transfer_;
};

class DeviceReceiver final : public ReceiverSteps {
 public:
  DeviceReceiver(NcclTransport& transport, Subscriber& subscriber, int source, const ApplyOrder& order)
      : subscriber_(subscriber), order_(order) {
    transfer_.channel = &transport;
    transfer_.source = source;
    transfer_.head_room = kHeadRoom;
  }

  std::uint64_t receive(Deadline deadline) override {
    NcclTransport::exchange_heads({&transfer_, 1}, deadline);
    try {
      reserve();
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
    subscriber.stage_frames(stream_.frames_in(transfer_.d_frames));
    subscriber.stage(stream_.commit);
  }
  void forget() override { stream_ = {}; }
  ApplyReport apply(Subscriber& subscriber) override { return subscriber.apply(order_); }

 private:
  void reserve() {
    if (transfer_.error != 0) throw nothing_to_send(transfer_.error);
    FrameHead head = parse_frame_head(transfer_.head, transfer_.bytes);
    if (head.streams.size() != 1) {
      throw Error(ErrorCode::kCorrupt, fmt::format("frames of {} streams where one belongs", head.streams.size()));
    }
    stream_ = std::move(head.streams[0]);
    transfer_.d_frames = subscriber_.reserve_frames(transfer_.bytes);
  }

  Subscriber& subscriber_;
  ApplyOrder order_;
  FrameTransfer transfer_;
  StreamHead stream_;
  std::exception_ptr failure_;
};

}  // namespace

SyncReport sync_send(Publisher& publisher, NcclTransport& transport, std::chrono::milliseconds timeout,
                     CUevent_st* weights_ready) {
  DeviceSource steps(transport, weights_ready);
  return run_source(publisher, transport, timeout, steps);
}

SyncReport sync_receive(Subscriber& subscriber, NcclTransport& transport, int source, std::chrono::milliseconds timeout,
                        const ApplyOrder& order) {
  DeviceReceiver steps(transport, subscriber, source, order);
  return run_receiver(subscriber, transport, timeout, steps);
}

}  // namespace sparsecast
