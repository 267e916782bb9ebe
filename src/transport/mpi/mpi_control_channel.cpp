// SPDX-License-Identifier: Apache-2.0

// A control channel over MPI: the star of control/star_group.hpp on plain messages. A part of it (split) is a star of
// its own on the same communicator, with another tag: so no call of MPI is needed that waits without a deadline.

#include "sparsecast/mpi_transport.hpp"

#ifdef SPARSECAST_HAVE_MPI

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "transport/control/blobs.hpp"
#include "transport/control/star_group.hpp"
#include "transport/mpi/mpi_link.hpp"

namespace sparsecast {
namespace {

constexpr std::chrono::seconds kSetupTime{60};
constexpr std::uint64_t kMaxBlobBytes = std::uint64_t{1} << 20;
constexpr const char* kWho = "mpi control channel";

struct PartRequest {
  SplitChoice choice;
  std::int32_t next_tag = 0;
};

/// Returns whether any thread may call MPI, even while another one does.
bool any_thread_may_call_mpi() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  return level == MPI_THREAD_MULTIPLE;
}

class MpiControlChannel final : public ControlChannel, public std::enable_shared_from_this<MpiControlChannel> {
 public:
  /// Takes the ranks of the communicator that make the channel, in the order of their new ranks.
  MpiControlChannel(std::shared_ptr<MpiCommunicator> communicator, std::vector<int> ranks, int tag)
      : communicator_(std::move(communicator)),
        ranks_(std::move(ranks)),
        star_(kWho, own_rank(), size_of(), kMaxBlobBytes, any_thread_may_call_mpi()) {
    communicator_->next_tag = tag + 1;
    const auto link_to = [&](int rank) {
      return std::make_unique<MpiLink>(communicator_, ranks_[static_cast<std::size_t>(rank)], tag,
                                       fmt::format("rank {}", rank), star_.max_body_bytes());
    };
    if (star_.rank() != 0) {
      star_.connect_hub(link_to(0));
      return;
    }
    std::vector<std::unique_ptr<Link>> members(1);
    for (int r = 1; r < star_.size(); ++r) members.push_back(link_to(r));
    star_.connect_members(std::move(members));
  }
  ~MpiControlChannel() override {
    star_.settle_abort();
    // The news of a failure may never be taken.
    if (star_.broken()) communicator_->leave_behind();
  }
  MpiControlChannel(const MpiControlChannel&) = delete;
  MpiControlChannel& operator=(const MpiControlChannel&) = delete;

  int rank() const noexcept override { return star_.rank(); }
  int size() const noexcept override { return star_.size(); }
  std::uint64_t max_blob_bytes() const noexcept override { return star_.max_blob_bytes(); }
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) override {
    return star_.all_gather(own, deadline);
  }
  Bytes broadcast(std::span<const std::byte> own, Deadline deadline) override { return star_.broadcast(own, deadline); }
  int agree(int status, int coordinator, Deadline deadline) override {
    return star_.agree(status, coordinator, deadline);
  }
  std::shared_ptr<ControlChannel> split(int color, int key, Deadline deadline) override;
  void abort(const std::string& reason) noexcept override {
    star_.abort(reason);
    parts_.abort(reason);
  }
  std::optional<std::string> aborted() noexcept override { return star_.aborted(); }

 private:
  int own_rank() const {
    return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), communicator_->rank()) - ranks_.begin());
  }
  int size_of() const { return static_cast<int>(ranks_.size()); }

  std::shared_ptr<MpiCommunicator> communicator_;
  std::vector<int> ranks_;
  StarGroup star_;
  ChildChannels parts_;
};

std::shared_ptr<ControlChannel> MpiControlChannel::split(int color, int key, Deadline deadline) {
  const PartRequest own{{color, key}, communicator_->next_tag};
  const std::vector<Bytes> all = all_gather(bytes_of(own), deadline);
  std::vector<SplitChoice> choices;
  int tag = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto request = value_of<PartRequest>(all[r], fmt::format("rank {}", r));
    choices.push_back(request.choice);
    tag = std::max(tag, request.next_tag);
  }
  communicator_->next_tag = tag + 1;
  if (color < 0) return nullptr;
  int* largest = nullptr;
  int known = 0;
  check_mpi(MPI_Comm_get_attr(communicator_->handle(), MPI_TAG_UB, &largest, &known), "MPI_Comm_get_attr");
  if (known != 0 && tag > *largest) {
    throw Error(ErrorCode::kUnsupported, fmt::format("this MPI has {} tags, and as many parts were made", *largest),
                kWho);
  }
  std::vector<int> ranks = ranks_of_color(choices, color);
  for (int& r : ranks) r = ranks_[static_cast<std::size_t>(r)];
  auto part = std::make_shared<MpiControlChannel>(communicator_, std::move(ranks), tag);
  part->star_.set_parent([whole = weak_from_this()]() -> std::optional<std::string> {
    const auto here = whole.lock();
    return here ? here->aborted() : std::nullopt;
  });
  return parts_.add(std::move(part));
}

}  // namespace

std::shared_ptr<ControlChannel> make_mpi_control_channel(const void* communicator) {
  require_running_mpi(kWho);
  const MPI_Comm parent = communicator == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(communicator);
  try {
    auto own = std::make_shared<MpiCommunicator>(parent, std::chrono::steady_clock::now() + kSetupTime);
    std::vector<int> ranks(static_cast<std::size_t>(own->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return std::make_shared<MpiControlChannel>(std::move(own), std::move(ranks), 1);
  } catch (const Error& error) {
    throw error.within(kWho);
  }
}

}  // namespace sparsecast

#else

namespace sparsecast {

std::shared_ptr<ControlChannel> make_mpi_control_channel(const void*) {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no MPI transport");
}

}  // namespace sparsecast

#endif
