// SPDX-License-Identifier: Apache-2.0

// Live tensors that follow a log, through a Subscriber.

#include <fmt/format.h>

#include <cstring>

#include "checkpoint/checkpoint_store.hpp"
#include "checkpoint/table_difference.hpp"
#include "core/tensor_view.hpp"
#include "log/follower/checkpoint_place.hpp"
#include "memory/memory_backend.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kWindowBytes = std::uint64_t{4} << 20;

class SubscriberTarget : public FollowerTarget {
 public:
  SubscriberTarget(Subscriber& subscriber, std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                   FileSystem& fs, std::string scratch, std::function<bool(bool)> pause, const DeviceOptions& device)
      : subscriber_(subscriber),
        table_(std::move(table)),
        live_(std::move(live)),
        fs_(fs),
        scratch_(std::move(scratch)),
        pause_(std::move(pause)) {
    if (!table_) throw Error(ErrorCode::kUsage, "a target needs the tensor table");
    check_refs(*table_, live_, "live");
    memory_ = memory_at(place_of(*table_, live_, "live", device), device);
  }

  std::string scratch_directory() override { return scratch_; }

  std::optional<StateDigest> recover() override {
    if (!subscriber_.dirty()) {
      try {
        subscriber_.audit();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kDirty) throw;
      }
    }
    if (subscriber_.dirty()) return std::nullopt;
    return subscriber_.digest();
  }

  void apply(const DeltaFile& delta) override {
    require_same_table(*table_, "the live tensors", delta.table(), delta.name());
    align_version(delta.header());
    try {
      subscriber_.stage(delta.header_record());
      for (std::size_t i = 0; i < delta.frames(); ++i) subscriber_.stage(delta.frame(i));
      subscriber_.stage(delta.commit_record());
      const Pause pause(pause_);
      subscriber_.apply();
    } catch (...) {
      subscriber_.discard();
      throw;
    }
    subscriber_.audit_next();
  }

  void reseed(const std::string& directory, std::uint64_t version, const StateDigest& expected) override {
    const CheckpointStore store(Checkpoint::open(fs_, directory));
    require_same_table(*table_, "the live tensors", store.table(), directory);
    require_anchor_digest(store, expected, directory);
    const Pause pause(pause_);
    overwrite(store);
    subscriber_.reset(version, expected);
  }

 private:
  /// The engine does not read the weights while this object exists.
  class Pause {
   public:
    explicit Pause(const std::function<bool(bool)>& pause) : pause_(pause) {
      if (pause_ && !pause_(true)) {
        throw Error(ErrorCode::kTimeout, "the engine did not let the weights be written, and keeps its version");
      }
    }
    ~Pause() {
      if (pause_) pause_(false);
    }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    const std::function<bool(bool)>& pause_;
  };

  /// Sets the subscriber's version number to the delta's base version: the log identifies versions by digest.
  void align_version(const DeltaHeader& header) {
    if (subscriber_.dirty() || subscriber_.version() == header.base_version) return;
    if (subscriber_.digest() == header.base_digest) subscriber_.reset(header.base_version, header.base_digest);
  }

  void overwrite(const CheckpointStore& store) {
    try {
      const std::unique_ptr<RegionWriter> writer = memory_->make_writer(*table_, live_);
      Bytes window(static_cast<std::size_t>(std::min(kWindowBytes, table_->bytes())));
      for (std::size_t t = 0; t < live_.size(); ++t) {
        const std::uint64_t bytes = (*table_)[t].bytes();
        for (std::uint64_t at = 0; at < bytes; at += window.size()) {
          const MutableBytes part =
              MutableBytes(window).first(static_cast<std::size_t>(std::min<std::uint64_t>(window.size(), bytes - at)));
          store.read(t, at, part);
          writer->write(t, at / element_size((*table_)[t].dtype), part);
        }
      }
      writer->finish();
    } catch (const Error&) {
      mark_if_changed();
      throw;
    }
  }

  /// Audits the tensors after a failed load. If they were partly overwritten, they belong to no version, and the audit
  /// marks the subscriber as dirty.
  void mark_if_changed() {
    try {
      subscriber_.audit();
    } catch (const Error&) {
    }
  }

  Subscriber& subscriber_;
  std::shared_ptr<const TensorTable> table_;
  std::vector<TensorRef> live_;
  std::shared_ptr<MemoryBackend> memory_;
  FileSystem& fs_;
  std::string scratch_;
  std::function<bool(bool)> pause_;
};

}  // namespace

std::unique_ptr<FollowerTarget> make_subscriber_target(Subscriber& subscriber, std::shared_ptr<const TensorTable> table,
                                                       const std::vector<TensorRef>& live, FileSystem& fs,
                                                       const std::string& scratch, std::function<bool(bool)> pause,
                                                       const DeviceOptions& device) {
  return std::make_unique<SubscriberTarget>(subscriber, std::move(table), live, fs, scratch, std::move(pause), device);
}

}  // namespace sparsecast
