// SPDX-License-Identifier: Apache-2.0

// A sync whose frames stay in device memory:
//
//     broadcast           header, commit, the sizes of the frames (host records)
//     broadcast_device    the frames, in pieces that fit the channel's staging buffers
//
// A receiver that cannot take the frames takes part all the same, and says why in its vote.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "codec/block.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sync/sync_steps.hpp"

namespace sparsecast {
namespace {

enum ControlRecord : std::size_t { kHeader, kCommit, kSizes, kControlRecords };

Bytes pack_sizes(const std::vector<DeviceRecord>& frames) {
  Bytes record(frames.size() * sizeof(std::uint32_t));
  for (std::size_t f = 0; f < frames.size(); ++f) {
    std::memcpy(record.data() + f * sizeof(std::uint32_t), &frames[f].record_bytes, sizeof(std::uint32_t));
  }
  return record;
}

std::vector<std::uint32_t> parse_sizes(const Bytes& record) {
  std::vector<std::uint32_t> sizes(record.size() / sizeof(std::uint32_t));
  if (!sizes.empty()) std::memcpy(sizes.data(), record.data(), sizes.size() * sizeof(std::uint32_t));
  return sizes;
}

}  // namespace

class NcclTransport::DeviceSync {
 public:
  class DeviceSource final : public SourceSteps {
   public:
    DeviceSource(NcclTransport& transport, CUevent_st* weights_ready)
        : transport_(transport), weights_ready_(weights_ready) {}

    Published publish(Publisher& publisher) override {
      const DeviceDelta& delta = publisher.publish_on_device(weights_ready_);
      records_ = {delta.header, delta.commit, pack_sizes(delta.frames)};
      const std::uint64_t most = transport_.bucket_bytes();
      for (const DeviceRecord& frame : delta.frames) {
        for (std::uint64_t at = 0; at < frame.record_bytes; at += most) {
          buckets_.push_back({frame.d_record + at, std::min<std::uint64_t>(most, frame.record_bytes - at)});
        }
      }
      stream_ = delta.stream;
      return {delta.info.version, delta.result.changed, delta.wire_bytes()};
    }

    void send(bool refused, Deadline deadline) override {
      if (refused) records_.clear();
      transport_.broadcast(records_, transport_.rank(), deadline);
      if (!refused) transport_.broadcast_device(buckets_, transport_.rank(), {}, deadline, stream_);
    }

   private:
    NcclTransport& transport_;
    CUevent_st* weights_ready_;
    std::vector<Bytes> records_;
    std::vector<DeviceBucket> buckets_;
    CUstream_st* stream_ = nullptr;
  };

  class DeviceReceiver final : public ReceiverSteps {
   public:
    DeviceReceiver(NcclTransport& transport, Subscriber& subscriber, const ApplyOrder& order)
        : transport_(transport), subscriber_(subscriber), order_(order) {}

    std::uint64_t receive(int source, Deadline deadline) override {
      transport_.broadcast(records_, source, deadline);
      if (records_.empty()) return 0;
      try {
        reserve();
      } catch (...) {
        failure_ = std::current_exception();
      }
      const auto take = [this](std::size_t, const void* d_data, std::uint64_t bytes, void* stream) {
        if (!failure_ && arrived_ <= expected_ && bytes <= expected_ - arrived_) {
          transport_.copy_on_device(d_frames_ + arrived_, d_data, bytes, stream);
        }
        arrived_ += bytes;
      };
      transport_.broadcast_device({}, source, take, deadline);
      std::uint64_t total = arrived_;
      for (const Bytes& record : records_) total += record.size();
      return records_.size() == kControlRecords ? total - records_[kSizes].size() : total;
    }

    bool any() const override { return !records_.empty(); }
    ConstBytes header() const override { return control(kHeader); }
    ConstBytes commit() const override { return control(kCommit); }

    void stage(Subscriber& subscriber) override {
      if (failure_) std::rethrow_exception(failure_);
      if (arrived_ != expected_) {
        throw Error(ErrorCode::kCorrupt, fmt::format("frames of {} bytes came as {}", expected_, arrived_));
      }
      subscriber.stage(records_[kHeader]);
      subscriber.stage_frames(frames_);
      subscriber.stage(records_[kCommit]);
    }
    void forget() override { records_.clear(); }
    ApplyReport apply(Subscriber& subscriber) override { return subscriber.apply(order_); }

   private:
    ConstBytes control(ControlRecord record) const {
      return records_.size() == kControlRecords ? ConstBytes(records_[record]) : ConstBytes{};
    }

    void reserve() {
      if (records_.size() != kControlRecords || records_[kSizes].size() % sizeof(std::uint32_t) != 0) {
        throw Error(ErrorCode::kCorrupt, "what came before the frames is not header, commit and sizes");
      }
      const std::vector<std::uint32_t> sizes = parse_sizes(records_[kSizes]);
      for (const std::uint32_t size : sizes) {
        if (size < kFramePrefix || size % 8 != 0) {
          throw Error(ErrorCode::kCorrupt, fmt::format("a frame of {} bytes", size));
        }
        expected_ += size;
      }
      d_frames_ = subscriber_.reserve_frames(expected_);
      std::uint64_t at = 0;
      for (const std::uint32_t size : sizes) {
        frames_.push_back({d_frames_ + at, size});
        at += size;
      }
    }

    NcclTransport& transport_;
    Subscriber& subscriber_;
    ApplyOrder order_;
    std::vector<Bytes> records_;
    std::vector<DeviceRecord> frames_;
    std::byte* d_frames_ = nullptr;
    std::uint64_t expected_ = 0;
    std::uint64_t arrived_ = 0;
    std::exception_ptr failure_;
  };
};

SyncReport sync_send(Publisher& publisher, NcclTransport& transport, std::chrono::milliseconds timeout,
                     CUevent_st* weights_ready) {
  NcclTransport::DeviceSync::DeviceSource steps(transport, weights_ready);
  return run_source(publisher, transport, timeout, steps);
}

SyncReport sync_receive(Subscriber& subscriber, NcclTransport& transport, int source, std::chrono::milliseconds timeout,
                        const ApplyOrder& order) {
  NcclTransport::DeviceSync::DeviceReceiver steps(transport, subscriber, order);
  return run_receiver(subscriber, transport, source, timeout, steps);
}

}  // namespace sparsecast
