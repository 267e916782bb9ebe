// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include "tests/support/fake_nccl.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "sparsecast/hash.hpp"
#include "tests/support/fake_device.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

struct Communicator {
  std::shared_ptr<World> world;
  int rank = 0;
  std::uint64_t issued = 0;
  ncclResult_t async_error = ncclSuccess;
  bool stopped = false;
  bool freed = false;
  std::thread::id issuer;
  // A communicator that is being made of this one appears here when all its ranks have asked for it.
  ncclComm_t* child = nullptr;
  std::shared_ptr<World> child_world;
  int child_rank = 0;
  std::uint64_t splits = 0;                 ///< Number of splits that it took part in.
  std::optional<std::uint64_t> unanswered;  ///< The number of one that not all ranks have asked for yet.
};

Communicator* of(ncclComm_t handle) { return reinterpret_cast<Communicator*>(handle); }
ncclComm_t handle_of(Communicator* communicator) { return reinterpret_cast<ncclComm_t>(communicator); }

/// Returns an id that is equal on all ranks with equal arguments.
std::uint64_t derived_id(const World& world, std::string_view how, std::span<const std::uint64_t> words) {
  std::uint64_t id = xxh3_64(std::as_bytes(std::span(how)), world.id());
  for (const std::uint64_t word : words) id = xxh3_64(std::as_bytes(std::span(&word, 1)), id);
  return id;
}

}  // namespace

struct FakeNccl::State {
  State(FakeNccl& owner, std::unique_ptr<Worlds> shared)
      : fake(owner), worlds(std::move(shared)), device(fake.faults.same_gpu, fake.counts.allocated) {}

  FakeNccl& fake;
  std::unique_ptr<Worlds> worlds;
  FakeDevice device;
  std::mutex mutex;
  std::vector<std::unique_ptr<Communicator>> communicators;  ///< Freed ones too: a use of them is noticed.
  std::atomic<bool> closing{false};

  std::mutex misuse_mutex;
  std::vector<std::string> misuses;
  void misuse(const std::string& what) {
    const std::lock_guard lock(misuse_mutex);
    misuses.push_back(what);
  }

  Communicator* add(std::shared_ptr<World> world, int rank) {
    world->join(rank);
    communicators.push_back(std::make_unique<Communicator>());
    communicators.back()->world = std::move(world);
    communicators.back()->rank = rank;
    return communicators.back().get();
  }

  bool is_over(const Communicator& communicator) {
    const std::lock_guard lock(mutex);
    return communicator.stopped || closing;
  }

  void run_broadcast(const Communicator& communicator, std::uint64_t number, std::span<std::byte> data, int root) {
    World& world = *communicator.world;
    if (fake.faults.never_arrive.count(communicator.rank) == 0) {
      Bytes sent;
      if (communicator.rank == root) sent.assign(data.begin(), data.end());
      if (fake.faults.damage_tables && sent.size() == sizeof(CountTable)) sent[100] ^= std::byte{4};
      world.arrive(number, {communicator.rank, root, sent});
    }
    std::optional<Message> message;
    while (!is_over(communicator) && !(message = world.message(number))) std::this_thread::sleep_for(100us);
    if (!message) return;
    if (!message->one_root) misuse("the ranks disagree on the root");
    if (message->data.size() != data.size()) {
      misuse("the ranks disagree on the size of broadcast " + std::to_string(number));
    }
    std::memcpy(data.data(), message->data.data(), std::min(data.size(), message->data.size()));
  }

  ncclResult_t broadcast(ncclComm_t handle, void* data, std::size_t bytes, int root, cudaStream_t stream) {
    Communicator* const communicator = of(handle);
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(mutex);
      if (communicator->freed) misuse("ncclBroadcast on a freed communicator");
      if (communicator->stopped) return ncclInvalidUsage;
      if (communicator->issuer == std::thread::id{}) communicator->issuer = std::this_thread::get_id();
      if (communicator->issuer != std::this_thread::get_id()) misuse("two threads issue");
      number = communicator->issued++;
      ++fake.counts.broadcasts;
      if (communicator->rank == fake.faults.async_error_rank &&
          communicator->issued > static_cast<std::uint64_t>(fake.faults.healthy_broadcasts)) {
        communicator->async_error = ncclRemoteError;
      }
    }
    FakeDevice::enqueue(stream, [=, this] {
      run_broadcast(*communicator, number, {static_cast<std::byte*>(data), bytes}, root);
    });
    return ncclSuccess;
  }

  ncclResult_t init(ncclComm_t* out, int size, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
    if (config->blocking != 0) misuse("a blocking communicator");
    const std::lock_guard lock(mutex);
    std::uint64_t number = 0;
    std::memcpy(&number, id.internal, sizeof(number));
    *out = handle_of(add(worlds->of(number, size), rank));
    return ncclInProgress;
  }

  ncclResult_t derive(Communicator* parent, std::uint64_t id, int size, int rank, ncclComm_t* out) {
    parent->child = out;
    parent->child_world = worlds->of(id, size);
    parent->child_rank = rank;
    parent->child_world->join(rank);
    return ncclInProgress;
  }

  /// Once all ranks of the parent have said their color and key.
  bool answer_split(Communicator& parent) {
    const auto choices = parent.world->choices(*parent.unanswered);
    if (!choices) return false;
    const SplitChoice own = choices->at(parent.rank);
    int size = 0;
    int before = 0;
    for (const auto& [rank, choice] : *choices) {
      if (choice.color != own.color) continue;
      ++size;
      if (std::pair(choice.key, rank) < std::pair(own.key, parent.rank)) ++before;
    }
    const std::uint64_t words[] = {*parent.unanswered, static_cast<std::uint64_t>(own.color)};
    parent.unanswered.reset();
    derive(&parent, derived_id(*parent.world, "split", words), size, before, parent.child);
    return true;
  }

  ncclResult_t shrink(Communicator* parent, std::span<const int> lost, ncclComm_t* out, int flags) {
    const std::lock_guard lock(mutex);
    if (parent->stopped && flags != kShrinkAbort) misuse("a stopped communicator shrinks without the flag");
    const auto before = std::count_if(lost.begin(), lost.end(), [&](int r) { return r < parent->rank; });
    const std::vector<std::uint64_t> words(lost.begin(), lost.end());
    return derive(parent, derived_id(*parent->world, "shrink", words),
                  parent->world->size() - static_cast<int>(lost.size()), parent->rank - static_cast<int>(before), out);
  }

  ncclResult_t async_error(ncclComm_t handle, ncclResult_t* state) {
    const std::lock_guard lock(mutex);
    Communicator* const communicator = of(handle);
    if (communicator->freed) misuse("ncclCommGetAsyncError on a freed communicator");
    *state = communicator->async_error;
    if (fake.faults.init_hangs || !communicator->world->all_joined()) *state = ncclInProgress;
    if (communicator->unanswered && !answer_split(*communicator)) {
      *state = ncclInProgress;
    } else if (communicator->child != nullptr) {
      if (!communicator->child_world->all_joined()) {
        *state = ncclInProgress;
      } else {
        *communicator->child = handle_of(add(communicator->child_world, communicator->child_rank));
        communicator->child = nullptr;
      }
    }
    return ncclSuccess;
  }

  void stop(ncclComm_t handle, bool free_it) {
    const std::lock_guard lock(mutex);
    if (of(handle)->freed) misuse("a communicator is stopped after it was freed");
    of(handle)->stopped = true;
    of(handle)->freed = free_it;
    of(handle)->async_error = ncclSuccess;
  }
};

namespace {

FakeNccl* current = nullptr;

void misuse(const std::string& what) { current->state().misuse(what); }

ncclUniqueId new_id() {
  ncclUniqueId id{};
  const std::uint64_t number = current->state().worlds->new_id();
  std::memcpy(id.internal, &number, sizeof(number));
  return id;
}

void fill_optional(NcclFunctions& f) {
  f.mem_alloc = [](void** pointer, size_t bytes) {
    if (current->faults.no_mem_alloc.count(FakeDevice::device_in_use()) != 0) return ncclUnhandledCudaError;
    ++current->counts.mem_allocs;
    *pointer = current->device().allocate(bytes);
    return ncclSuccess;
  };
  f.mem_free = [](void* pointer) {
    ++current->counts.mem_frees;
    current->device().free(pointer);
    return ncclSuccess;
  };
  f.comm_register = [](ncclComm_t, void* pointer, size_t, void** handle) {
    if (current->faults.no_register.count(FakeDevice::device_in_use()) != 0) return ncclSystemError;
    ++current->counts.registrations;
    *handle = pointer;
    return ncclSuccess;
  };
  f.comm_deregister = [](ncclComm_t communicator, void*) {
    if (of(communicator)->freed) misuse("ncclCommDeregister on a freed communicator");
    ++current->counts.deregistrations;
    return ncclSuccess;
  };
  f.comm_init_rank_scalable = [](ncclComm_t* out, int size, int rank, int, ncclUniqueId* ids, ncclConfig_t* config) {
    ++current->counts.scalable_inits;
    return current->state().init(out, size, ids[0], rank, config);
  };
  f.comm_shrink = [](ncclComm_t communicator, int* lost, int count, ncclComm_t* out, ncclConfig_t*, int flags) {
    ++current->counts.shrinks;
    return current->state().shrink(of(communicator), {lost, static_cast<std::size_t>(count)}, out, flags);
  };
  f.comm_revoke = [](ncclComm_t communicator, int) {
    ++current->counts.revokes;
    current->state().stop(communicator, false);
    return ncclInProgress;
  };
  f.comm_grow = [](ncclComm_t communicator, int size, const ncclUniqueId* id, int rank, ncclComm_t* out,
                   ncclConfig_t* config) {
    ++current->counts.grows;
    if (communicator == nullptr) return current->state().init(out, size, *id, rank, config);
    const std::lock_guard lock(current->state().mutex);
    // Only the root is given the id; the fake's others find the newest.
    return current->state().derive(of(communicator), current->state().worlds->newest_id(), size, of(communicator)->rank,
                                   out);
  };
  f.comm_get_unique_id = [](ncclComm_t, ncclUniqueId* id) {
    *id = new_id();
    return ncclSuccess;
  };
}

void fill_required(NcclFunctions& f) {
  f.version = 22902;
  f.get_unique_id = [](ncclUniqueId* id) {
    *id = new_id();
    return ncclSuccess;
  };
  f.comm_init_rank_config = [](ncclComm_t* out, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
    ++current->counts.inits;
    return current->state().init(out, size, id, rank, config);
  };
  f.comm_split = [](ncclComm_t communicator, int color, int key, ncclComm_t* out, ncclConfig_t*) {
    ++current->counts.splits;
    const std::lock_guard lock(current->state().mutex);
    Communicator* const parent = of(communicator);
    const std::uint64_t number = parent->splits++;
    parent->world->choose(number, parent->rank, {color, key});
    if (color < 0) return ncclSuccess;
    parent->child = out;
    parent->unanswered = number;
    return ncclInProgress;
  };
  f.comm_finalize = [](ncclComm_t) { return ncclSuccess; };
  f.comm_destroy = [](ncclComm_t communicator) {
    ++current->counts.destroys;
    current->state().stop(communicator, true);
    return ncclSuccess;
  };
  f.comm_abort = [](ncclComm_t communicator) {
    ++current->counts.aborts;
    current->state().stop(communicator, true);
    return ncclSuccess;
  };
  f.comm_get_async_error = [](ncclComm_t communicator, ncclResult_t* state) {
    return current->state().async_error(communicator, state);
  };
  f.get_error_string = [](ncclResult_t code) {
    return code == ncclRemoteError ? "remote process exited or there was a network error" : "some NCCL error";
  };
  f.get_last_error = [](ncclComm_t) -> const char* { return "the fake's last words"; };
  f.broadcast = [](const void*, void* data, size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                   cudaStream_t stream) {
    if (type != ncclInt8 && type != ncclUint8) misuse("not bytes");
    return current->state().broadcast(communicator, data, count, root, stream);
  };
}

}  // namespace

FakeNccl::FakeNccl(std::unique_ptr<Worlds> worlds) : state_(std::make_unique<State>(*this, std::move(worlds))) {
  current = this;
  fill_required(functions);
  fill_optional(functions);
}

FakeNccl::~FakeNccl() {
  state_->closing = true;
  state_->device.close();
  current = nullptr;
}

std::string FakeNccl::misuses() const {
  const std::lock_guard lock(state_->misuse_mutex);
  std::string text;
  for (const std::string& what : state_->misuses) text += what + "\n";
  return text;
}

DeviceApi& FakeNccl::device() { return state_->device; }

NcclRuntime FakeNccl::runtime() {
  NcclRuntime runtime;
  runtime.functions = &functions;
  runtime.device = &state_->device;
  runtime.info.version = functions.version;
  return runtime;
}

}  // namespace sparsecast::test

#endif
