#ifdef SPARSECAST_HAVE_NCCL

#include "tests/support/fake_nccl.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

struct Operation {
  int arrived = 0;
  int root = -1;
  Bytes data;
};

/// What the communicators of one group share.
struct SplitChoice {
  int color = 0;
  int key = 0;
};

struct World {
  int size = 0;
  int joined = 0;
  std::map<std::uint64_t, Operation> operations;
  std::map<std::uint64_t, std::map<int, SplitChoice>> splits;  ///< By their number, then rank.
};

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
  std::uint64_t splits = 0;                 ///< That it has taken part in.
  std::optional<std::uint64_t> unanswered;  ///< The number of one that not all ranks have asked for yet.
};

Communicator* of(ncclComm_t handle) { return reinterpret_cast<Communicator*>(handle); }
ncclComm_t handle_of(Communicator* communicator) { return reinterpret_cast<ncclComm_t>(communicator); }

class Stream {
 public:
  Stream() : worker_([this](const std::stop_token& stop) { work(stop); }) {}
  ~Stream() {
    worker_.request_stop();
    changed_.notify_all();
  }
  void push(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

 private:
  void work(const std::stop_token& stop) {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, stop, [&] { return !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_;
  std::jthread worker_;
};

struct Event {
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> finished{0};
};

thread_local int current_device = 0;

}  // namespace

struct FakeNccl::State final : public DeviceApi {
  explicit State(FakeNccl& owner) : fake(owner) {}

  FakeNccl& fake;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<Communicator>> communicators;  ///< Freed ones too: a use of them is noticed.
  std::map<std::uint64_t, std::shared_ptr<World>> worlds;
  std::set<void*> streams;
  std::uint64_t ids = 0;
  std::atomic<bool> closing{false};

  std::mutex misuse_mutex;
  std::vector<std::string> misuses;
  void misuse(const std::string& what) {
    const std::lock_guard lock(misuse_mutex);
    misuses.push_back(what);
  }

  Communicator* add(std::shared_ptr<World> world, int rank) {
    communicators.push_back(std::make_unique<Communicator>());
    communicators.back()->world = std::move(world);
    communicators.back()->rank = rank;
    ++communicators.back()->world->joined;
    return communicators.back().get();
  }
  std::shared_ptr<World> world_of(std::uint64_t id, int size) {
    auto& world = worlds[id];
    if (!world) world = std::make_shared<World>();
    world->size = size;
    return world;
  }

  // The device.
  int current_device() override { return sparsecast::test::current_device; }
  void use_device(int device) override { sparsecast::test::current_device = device; }
  bool holds(const void*, int) override { return true; }  // Device memory is host memory here.
  std::string uuid(int device) override {
    return "GPU-" + std::to_string(fake.faults.same_gpu.count(device) != 0 ? 77 : device);
  }
  void* allocate(std::uint64_t bytes) override {
    ++fake.counts.allocated;
    return new std::byte[bytes];
  }
  void free(void* pointer) noexcept override {
    --fake.counts.allocated;
    delete[] static_cast<std::byte*>(pointer);
  }
  void* allocate_host(std::uint64_t bytes) override { return allocate(bytes); }
  void free_host(void* pointer) noexcept override { free(pointer); }
  void* create_stream() override {
    auto* const stream = new Stream;
    const std::lock_guard lock(mutex);
    streams.insert(stream);
    return stream;
  }
  void destroy_stream(void* stream) noexcept override {
    {
      const std::lock_guard lock(mutex);
      streams.erase(stream);
    }
    delete static_cast<Stream*>(stream);
  }
  void* create_event() override { return new std::shared_ptr<Event>(std::make_shared<Event>()); }
  void destroy_event(void* event) noexcept override { delete static_cast<std::shared_ptr<Event>*>(event); }
  static std::shared_ptr<Event>& event_of(void* event) { return *static_cast<std::shared_ptr<Event>*>(event); }
  void record(void* event, void* stream) override {
    const auto shared = event_of(event);
    const std::uint64_t turn = ++shared->recorded;
    bool known = false;
    {
      const std::lock_guard lock(mutex);
      known = streams.count(stream) != 0;
    }
    // A stream of the emulated CUDA runtime, which has done everything already.
    if (!known) {
      shared->finished = turn;
      return;
    }
    static_cast<Stream*>(stream)->push([shared, turn] { shared->finished = turn; });
  }
  void wait(void* stream, void* event) override {
    const auto shared = event_of(event);
    const std::uint64_t turn = shared->recorded;
    static_cast<Stream*>(stream)->push([this, shared, turn] {
      while (shared->finished < turn && !closing) std::this_thread::sleep_for(100us);
    });
  }
  bool finished(void* event) override { return event_of(event)->finished >= event_of(event)->recorded; }
  void copy_to_device(void* to, const void* from, std::uint64_t bytes, void* stream) override {
    static_cast<Stream*>(stream)->push([=] { std::memcpy(to, from, bytes); });
  }
  void copy_to_host(void* to, const void* from, std::uint64_t bytes, void* stream) override {
    copy_to_device(to, from, bytes, stream);
  }
  void copy_on_device(void* to, const void* from, std::uint64_t bytes, void* stream) override {
    copy_to_device(to, from, bytes, stream);
  }

  // The library.
  void run_broadcast(Communicator* communicator, std::uint64_t number, std::byte* data, std::size_t bytes, int root) {
    std::unique_lock lock(mutex);
    Operation& operation = communicator->world->operations[number];
    if (fake.faults.never_arrive.count(communicator->rank) == 0) ++operation.arrived;
    if (operation.root >= 0 && operation.root != root) misuse("the ranks disagree on the root");
    operation.root = root;
    if (communicator->rank == root) {
      operation.data.assign(data, data + bytes);
      if (fake.faults.damage_tables && bytes == sizeof(CountTable)) operation.data[100] ^= std::byte{4};
    }
    changed.notify_all();
    changed.wait(lock,
                 [&] { return communicator->stopped || closing || operation.arrived == communicator->world->size; });
    if (communicator->stopped || closing) return;
    if (operation.data.size() != bytes) misuse("the ranks disagree on the size of broadcast " + std::to_string(number));
    std::memcpy(data, operation.data.data(), std::min(bytes, operation.data.size()));
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
    reinterpret_cast<Stream*>(stream)->push(
        [=, this] { run_broadcast(communicator, number, static_cast<std::byte*>(data), bytes, root); });
    return ncclSuccess;
  }

  ncclResult_t init(ncclComm_t* out, int size, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
    if (config->blocking != 0) misuse("a blocking communicator");
    const std::lock_guard lock(mutex);
    std::uint64_t number = 0;
    std::memcpy(&number, id.internal, sizeof(number));
    *out = handle_of(add(world_of(number, size), rank));
    return ncclInProgress;
  }

  ncclResult_t derive(Communicator* parent, std::uint64_t id, int size, int rank, ncclComm_t* out) {
    parent->child = out;
    parent->child_world = world_of(id, size);
    parent->child_rank = rank;
    ++parent->child_world->joined;
    return ncclInProgress;
  }

  /// Once all ranks of the parent have said their color and key.
  bool answer_split(Communicator& parent) {
    const std::map<int, SplitChoice>& choices = parent.world->splits[*parent.unanswered];
    if (static_cast<int>(choices.size()) < parent.world->size) return false;
    const SplitChoice own = choices.at(parent.rank);
    int size = 0;
    int before = 0;
    for (const auto& [rank, choice] : choices) {
      if (choice.color != own.color) continue;
      ++size;
      if (std::pair(choice.key, rank) < std::pair(own.key, parent.rank)) ++before;
    }
    const auto id = reinterpret_cast<std::uint64_t>(parent.world.get()) + (*parent.unanswered << 48) +
                    static_cast<std::uint64_t>(own.color) + 1;
    parent.unanswered.reset();
    derive(&parent, id, size, before, parent.child);
    return true;
  }

  ncclResult_t async_error(ncclComm_t handle, ncclResult_t* state) {
    const std::lock_guard lock(mutex);
    Communicator* const communicator = of(handle);
    if (communicator->freed) misuse("ncclCommGetAsyncError on a freed communicator");
    *state = communicator->async_error;
    if (communicator->world->joined < communicator->world->size || fake.faults.init_hangs) *state = ncclInProgress;
    if (communicator->unanswered && !answer_split(*communicator)) {
      *state = ncclInProgress;
    } else if (communicator->child != nullptr) {
      if (communicator->child_world->joined < communicator->child_world->size) {
        *state = ncclInProgress;
      } else {
        Communicator* const child = add(communicator->child_world, communicator->child_rank);
        --child->world->joined;  // Counted when it was asked for.
        *communicator->child = handle_of(child);
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
    changed.notify_all();
  }
};

namespace {

FakeNccl* current = nullptr;

void misuse(const std::string& what) { current->state().misuse(what); }

ncclUniqueId new_id() {
  ncclUniqueId id{};
  const std::lock_guard lock(current->state().mutex);
  const std::uint64_t number = ++current->state().ids;
  std::memcpy(id.internal, &number, sizeof(number));
  return id;
}

void fill_optional(NcclFunctions& f) {
  f.mem_alloc = [](void** pointer, size_t bytes) {
    if (current->faults.no_mem_alloc.count(current_device) != 0) return ncclUnhandledCudaError;
    ++current->counts.mem_allocs;
    *pointer = current->state().allocate(bytes);
    return ncclSuccess;
  };
  f.mem_free = [](void* pointer) {
    ++current->counts.mem_frees;
    current->state().free(pointer);
    return ncclSuccess;
  };
  f.comm_register = [](ncclComm_t, void* pointer, size_t, void** handle) {
    if (current->faults.no_register.count(current_device) != 0) return ncclSystemError;
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
    const std::lock_guard lock(current->state().mutex);
    Communicator* const parent = of(communicator);
    if (parent->stopped && flags != kShrinkAbort) misuse("a stopped communicator shrinks without the flag");
    const auto before = std::count_if(lost, lost + count, [&](int r) { return r < parent->rank; });
    const auto id = reinterpret_cast<std::uint64_t>(parent->world.get());
    return current->state().derive(parent, id, parent->world->size - count, parent->rank - static_cast<int>(before),
                                   out);
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
    return current->state().derive(of(communicator), current->state().ids, size, of(communicator)->rank, out);
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
    parent->world->splits[number][parent->rank] = {color, key};
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
    if (type != ncclInt8) misuse("not bytes");
    return current->state().broadcast(communicator, data, count, root, stream);
  };
}

}  // namespace

FakeNccl::FakeNccl() : state_(std::make_unique<State>(*this)) {
  current = this;
  fill_required(functions);
  fill_optional(functions);
}

FakeNccl::~FakeNccl() {
  state_->closing = true;
  state_->changed.notify_all();
  current = nullptr;
}

std::string FakeNccl::misuses() const {
  const std::lock_guard lock(state_->misuse_mutex);
  std::string text;
  for (const std::string& what : state_->misuses) text += what + "\n";
  return text;
}

DeviceApi& FakeNccl::device() { return *state_; }

NcclRuntime FakeNccl::runtime() {
  NcclRuntime runtime;
  runtime.functions = &functions;
  runtime.device = state_.get();
  runtime.info.version = functions.version;
  return runtime;
}

}  // namespace sparsecast::test

#endif
