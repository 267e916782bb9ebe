// SPDX-License-Identifier: Apache-2.0

#ifdef SPARSECAST_HAVE_NCCL

#include "support/fake_groups.hpp"

#include "sharded/sync_world.hpp"
#include "support/fake_nccl_state.hpp"

namespace sparsecast::test {

FakeGroups::FakeGroups() : fake_(std::make_unique<FakeNccl>()) {}
FakeGroups::~FakeGroups() = default;

GroupOpener FakeGroups::open(int rank) {
  NcclOptions options;
  options.device = rank;
  options.staging_bytes = kStagingBytes;
  return split_nccl_groups([this, options](std::shared_ptr<ControlChannel> world, Deadline deadline) {
    return std::make_unique<NcclTransport>(
        NcclGroup::form(fake_->runtime(), std::move(world), options, nullptr, deadline));
  });
}

void FakeGroups::fail_call(int rank, int call) { fake_->fail_call(rank, call); }
bool FakeGroups::call_has_failed() const { return fake_->call_has_failed(); }
void FakeGroups::hang(std::uint64_t bytes) {
  fake_->functions.comm_revoke = nullptr;
  fake_->faults.hanging_bytes = bytes;
}
int FakeGroups::held_blocks() const { return fake_->counts.allocated; }
std::uint64_t FakeGroups::held_bytes(int rank) { return fake_->state().device.held_bytes(rank); }
std::string FakeGroups::misuses() const { return fake_->misuses(); }

}  // namespace sparsecast::test

#endif
