// SPDX-License-Identifier: Apache-2.0
#include "log/follower/delta_fetcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/interrupt.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::uint64_t plus(std::uint64_t a, std::uint64_t b) { return a > ~b ? ~std::uint64_t{0} : a + b; }

DeltaFile open_edge(FileSystem& fs, const std::string& path, const DeltaRef& ref) {
  DeltaFile file = DeltaFile::open(fs, path);
  if (file.header().base_version != ref.from || file.header().version != ref.to) {
    throw Error(ErrorCode::kMixed,
                fmt::format("it leads from version {} to {}, not from {} to {}", file.header().base_version,
                            file.header().version, ref.from, ref.to),
                delta_key(ref));
  }
  return file;
}

}  // namespace

DeltaFetcher::DeltaFetcher(LogReader& reader, FileSystem& fs, std::string scratch, std::vector<DeltaRef> path,
                           FetchLimits limits, FollowerProgress progress)
    : reader_(reader),
      fs_(fs),
      scratch_(std::move(scratch)),
      path_(std::move(path)),
      limits_(limits),
      progress_(std::move(progress)),
      slots_(path_.size()) {
  for (const DeltaRef& ref : path_) total_ = plus(total_, ref.bytes);
  const std::size_t threads =
      std::min<std::size_t>(static_cast<std::size_t>(std::max(0, limits_.threads)), path_.size());
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

DeltaFetcher::~DeltaFetcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  threads_.clear();
  for (std::size_t i = released_; i < slots_.size(); ++i) {
    if (slots_[i].step == Step::kWaiting) continue;
    slots_[i].file.reset();
    remove_file(i);
  }
}

std::string DeltaFetcher::path_of(std::size_t i) const {
  return fmt::format("{}/{}{}-{}.scd", scratch_, kSpoolPrefix, path_[i].from, path_[i].to);
}

bool DeltaFetcher::may_start(std::size_t i) const {
  return i == released_ || plus(held_, path_[i].bytes) <= limits_.read_ahead_bytes;
}

bool DeltaFetcher::fits(std::size_t i, std::size_t j) const {
  std::uint64_t bytes = 0;
  for (; i <= j; ++i) bytes = plus(bytes, path_[i].bytes);
  return bytes <= limits_.read_ahead_bytes;
}

void DeltaFetcher::fetch(std::size_t i) { reader_.fetch_delta(path_[i], fs_, path_of(i)); }

void DeltaFetcher::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (next_ == slots_.size()) return;
    if (!may_start(next_)) {
      changed_.wait(lock);
      continue;
    }
    const std::size_t i = next_++;
    slots_[i].step = Step::kFetching;
    held_ = plus(held_, path_[i].bytes);
    lock.unlock();
    std::exception_ptr failure;
    try {
      fetch(i);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    slots_[i].step = failure ? Step::kFailed : Step::kHere;
    slots_[i].failure = failure;
    done_ = plus(done_, path_[i].bytes);
    if (failure) next_ = slots_.size();  // The path ends at a failure, so later objects are not needed.
    if (progress_ && !failure) progress_("fetching", done_, total_);
    changed_.notify_all();
  }
}

const DeltaFile& DeltaFetcher::open(std::size_t i) {
  FetchSlot& slot = slots_[i];
  if (slot.file) return *slot.file;
  const auto began = std::chrono::steady_clock::now();
  if (threads_.empty()) {
    slot.step = Step::kFetching;
    fetch(i);
    slot.step = Step::kHere;
    done_ = plus(done_, path_[i].bytes);
    if (progress_) progress_("fetching", done_, total_);
  } else {
    std::unique_lock lock(mutex_);
    // A failure of a later object stops the fetching, but objects that have arrived can be used. Objects that still
    // wait will not come.
    const auto failed = [&] {
      return std::find_if(slots_.begin(), slots_.end(), [](const FetchSlot& s) { return s.step == Step::kFailed; });
    };
    wait_or_interrupt(changed_, lock, std::chrono::steady_clock::time_point::max(), [&] {
      return slot.step == Step::kHere || slot.step == Step::kFailed ||
             (slot.step == Step::kWaiting && failed() != slots_.end());
    });
    if (slot.step != Step::kHere) std::rethrow_exception(failed()->failure);
  }
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  slot.file = open_edge(fs_, path_of(i), path_[i]);
  return *slot.file;
}

void DeltaFetcher::release(std::size_t i) {
  slots_[i].file.reset();
  remove_file(i);
  {
    const std::lock_guard lock(mutex_);
    slots_[i].step = Step::kReleased;
    released_ = i + 1;
    if (!threads_.empty()) held_ -= std::min(held_, path_[i].bytes);
  }
  changed_.notify_all();
}

void DeltaFetcher::remove_file(std::size_t i) noexcept {
  try {
    if (fs_.exists(path_of(i))) fs_.remove(path_of(i));
  } catch (...) {  // Remains in the scratch directory, which is cleaned at the next start.
  }
}

}  // namespace sparsecast
