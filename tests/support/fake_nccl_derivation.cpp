// SPDX-License-Identifier: Apache-2.0

// Communicators of the fake NCCL that are made of others: split, shrunk and grown, each by a thread of its own.

#ifdef SPARSECAST_HAVE_NCCL

#include "tests/support/fake_nccl_state.hpp"

namespace sparsecast::test {

ncclResult_t FakeNccl::State::begin_job(Communicator& owner, ncclComm_t* out,
                                        std::function<std::optional<Place>()> find) {
  owner.busy_polls = fake.faults.busy_polls;
  owner.job = std::make_shared<Job>();
  owner.job->out = out;
  jobs.emplace_back([this, parent = owner.world, at = owner.device, job = owner.job, find = std::move(find)] {
    std::optional<Place> place;
    while (!job->aborted && !closing && !(place && place->world->all_joined() && !fake.faults.derivation_hangs)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!place && (place = find())) place->world->join(place->rank);
    }
    if (!job->aborted && closing) return;  // Nobody has stopped it, so nobody keeps what it would write to.
    if (job->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    {
      const std::lock_guard lock(mutex);
      Communicator* const made = add(place ? place->world : parent, place ? place->rank : 0, at);
      if (job->aborted) made->async_error = ncclInternalError;
      std::atomic_ref(*job->out).store(handle_of(made));
    }
    job->done = true;
  });
  return ncclInProgress;
}

ncclResult_t FakeNccl::State::grow(Communicator* parent, int size, const ncclUniqueId* given, int rank, ncclComm_t* out,
                                   const ncclConfig_t* config) {
  std::atomic_ref(*out).store(nullptr);
  ncclUniqueId id{};
  if (given != nullptr) {
    id = *given;
  } else if (!wait_for_growth(*parent, id)) {
    return ncclRemoteError;
  }
  ncclComm_t made = nullptr;
  init(&made, size, id, parent == nullptr ? rank : parent->rank, config);
  const std::lock_guard lock(mutex);
  std::atomic_ref(*out).store(made);
  Communicator* const grown = of(made);
  grown->job = std::make_shared<Job>();
  grown->job->out = out;
  jobs.emplace_back([this, grown, job = grown->job] {
    while (!job->aborted && !closing && !(grown->world->all_joined() && !fake.faults.derivation_hangs)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!job->aborted && closing) return;
    if (job->aborted) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic_ref(*job->out).store(handle_of(grown));
    job->done = true;
  });
  return ncclInProgress;
}

bool FakeNccl::State::wait_for_growth(Communicator& parent, ncclUniqueId& id) {
  constexpr std::chrono::seconds kLongest{5};
  const auto begin = std::chrono::steady_clock::now();
  ++hanging;
  std::optional<std::uint64_t> number;
  while (!(number = parent.world->growth()) && !is_over(parent)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (std::chrono::steady_clock::now() - begin < kLongest) continue;
    misuse("nobody ends a wait in ncclCommGrow");
    break;
  }
  if (number) std::memcpy(id.internal, &*number, sizeof(*number));
  --hanging;
  return number.has_value();
}

ncclResult_t FakeNccl::State::split(Communicator& parent, int color, int key, ncclComm_t* out) {
  const std::lock_guard lock(mutex);
  const std::uint64_t number = parent.splits++;
  parent.world->choose(number, parent.rank, {color, key});
  if (color < 0) {
    *out = nullptr;
    return ncclSuccess;
  }
  return begin_job(parent, out, [this, world = parent.world, rank = parent.rank, number]() -> std::optional<Place> {
    const auto choices = world->choices(number);
    if (!choices) return std::nullopt;
    const SplitChoice own = choices->at(rank);
    int size = 0;
    int before = 0;
    for (const auto& [other, choice] : *choices) {
      if (choice.color != own.color) continue;
      ++size;
      if (std::pair(choice.key, other) < std::pair(own.key, rank)) ++before;
    }
    const std::uint64_t words[] = {number, static_cast<std::uint64_t>(own.color)};
    return Place{worlds->of(derived_id(*world, "split", words), size), before};
  });
}

ncclResult_t FakeNccl::State::shrink(Communicator& parent, std::span<const int> lost, ncclComm_t* out, int flags) {
  const std::lock_guard lock(mutex);
  if (parent.stopped && flags != kShrinkAbort) misuse("a stopped communicator shrinks without the flag");
  const auto before = std::count_if(lost.begin(), lost.end(), [&](int r) { return r < parent.rank; });
  const std::vector<std::uint64_t> words(lost.begin(), lost.end());
  const Place place{
      worlds->of(derived_id(*parent.world, "shrink", words), parent.world->size() - static_cast<int>(lost.size())),
      parent.rank - static_cast<int>(before)};
  return begin_job(parent, out, [place] { return place; });
}

ncclResult_t FakeNccl::State::meet(Communicator& communicator, bool suspend) {
  const std::lock_guard lock(mutex);
  if (communicator.suspended == suspend) misuse("a communicator is suspended or resumed twice");
  communicator.suspended = suspend;
  constexpr std::uint64_t kBehindSplits = std::uint64_t{1} << 32;
  const std::uint64_t number = kBehindSplits + communicator.meetings++;
  communicator.world->choose(number, communicator.rank, {});
  communicator.job = std::make_shared<Job>();
  jobs.emplace_back([this, world = communicator.world, number, job = communicator.job] {
    while (!job->aborted && !closing && !world->choices(number)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    job->done = true;
  });
  return ncclInProgress;
}

}  // namespace sparsecast::test

#endif
