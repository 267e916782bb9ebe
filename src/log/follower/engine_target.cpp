// SPDX-License-Identifier: Apache-2.0

// The ranks of an engine that follow a log together. Rank 0 broadcasts what is to be done; every rank does it, and all
// ranks exchange how it went, so that each of them comes to the same decision by itself.

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>

#include <nlohmann/json.hpp>

#include "checkpoint/table_difference.hpp"
#include "log/follower/engine_part.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast {
namespace {

/// Time for which a rank waits for rank 0's next order. A death is found by the channel, not by this.
constexpr std::chrono::hours kOrderTime{24 * 365};

/// Order of rank 0, which all ranks carry out at the same time.
struct Order {
  enum class Kind { kRecover, kStage, kApply, kReseed, kEnd };
  Kind kind = Kind::kEnd;
  std::string path;            ///< Of the delta, or the directory of the anchor.
  std::uint64_t version = 0;   ///< kReseed: version of the anchor.
  std::uint64_t delta_id = 0;  ///< kStage: DeltaHeader::delta_id of the file.
  /// Digest to which the parts of all ranks must add up: before kStage, or after kApply and kReseed.
  StateDigest digest;
};

/// Outcome of an order on one rank, which the rank sends to all others.
struct Answer {
  ErrorCode code{};  ///< Zero: the rank has not failed.
  std::string error;
  bool dirty = false;
  bool granted = true;  ///< Whether its engine lets the weights be written.
  StateDigest digest;   ///< What the rank adds to the engine's digest.
};

Bytes to_bytes(const nlohmann::json& json) {
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

/// Calls read(json) with the JSON in `bytes`. Throws Error{kCorrupt} when they are not what `read` expects.
template <class Read>
auto from_bytes(ConstBytes bytes, const std::string& sender, const Read& read) {
  try {
    const auto* const begin = reinterpret_cast<const char*>(bytes.data());
    return read(nlohmann::json::parse(begin, begin + bytes.size()));
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::kCorrupt, "a message is not one of an engine that follows a log", sender);
  }
}

Bytes pack(const Order& order) {
  return to_bytes({{"kind", static_cast<int>(order.kind)},
                   {"path", order.path},
                   {"version", order.version},
                   {"delta", order.delta_id},
                   {"digest", to_hex(order.digest.value)}});
}

Order parse_order(ConstBytes bytes) {
  return from_bytes(bytes, "rank 0", [](const nlohmann::json& json) {
    Order order;
    const int kind = json.at("kind");
    if (kind < 0 || kind > static_cast<int>(Order::Kind::kEnd)) {
      throw Error(ErrorCode::kCorrupt, fmt::format("an order of kind {}", kind), "rank 0");
    }
    order.kind = static_cast<Order::Kind>(kind);
    order.path = json.at("path");
    order.version = json.at("version");
    order.delta_id = json.at("delta");
    order.digest.value = hash_from_hex(json.at("digest"));
    return order;
  });
}

Bytes pack(const Answer& answer) {
  return to_bytes({{"code", static_cast<int>(answer.code)},
                   {"error", answer.error},
                   {"dirty", answer.dirty},
                   {"granted", answer.granted},
                   {"digest", to_hex(answer.digest.value)}});
}

Answer parse_answer(ConstBytes bytes, std::size_t rank) {
  return from_bytes(bytes, fmt::format("rank {}", rank), [](const nlohmann::json& json) {
    Answer answer;
    answer.code = static_cast<ErrorCode>(json.at("code").get<int>());
    answer.error = json.at("error");
    answer.dirty = json.at("dirty");
    answer.granted = json.at("granted");
    answer.digest.value = hash_from_hex(json.at("digest"));
    return answer;
  });
}

/// The answers of all ranks, the same on every one.
class Answers {
 public:
  explicit Answers(const std::vector<Bytes>& parts) {
    for (std::size_t r = 0; r < parts.size(); ++r) of_rank_.push_back(parse_answer(parts[r], r));
  }

  bool any_dirty() const { return std::ranges::any_of(of_rank_, &Answer::dirty); }
  StateDigest digest() const {
    StateDigest total;
    for (const Answer& answer : of_rank_) total += answer.digest;
    return total;
  }
  /// Returns the error of the first rank that has failed.
  std::optional<Error> error() const {
    for (std::size_t r = 0; r < of_rank_.size(); ++r) {
      const Answer& answer = of_rank_[r];
      if (answer.code != ErrorCode{}) return Error(answer.code, answer.error, fmt::format("rank {} of the engine", r));
    }
    return std::nullopt;
  }
  /// Returns the first rank whose engine does not let its weights be written.
  std::optional<std::size_t> refusal() const {
    const auto found = std::ranges::find(of_rank_, false, &Answer::granted);
    if (found == of_rank_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - of_rank_.begin());
  }

 private:
  std::vector<Answer> of_rank_;
};

}  // namespace

struct EngineRank::State {
  State(std::shared_ptr<ControlChannel> channel, std::shared_ptr<const TensorTable> tensors, const Layout& layout,
        const std::shared_ptr<const FanoutPlan>& plan, std::vector<TensorRef> local, FileSystem& file_system,
        Options all)
      : ranks(std::move(channel)),
        table(std::move(tensors)),
        fs(file_system),
        options(std::move(all)),
        part(table, plan, layout, static_cast<std::size_t>(ranks->rank()), std::move(local), options.subscriber,
             options.device) {}

  Deadline deadline() const { return std::chrono::steady_clock::now() + options.timeout; }

  /// Does `work`, which may change the answer of this rank, and returns the answers of all ranks, once all have done
  /// it.
  template <class Work>
  Answers exchange(const Work& work) {
    Answer own;
    try {
      work(own);
    } catch (const Error& error) {
      own.code = error.code();
      own.error = error.what();
    } catch (const std::exception& error) {
      own.code = ErrorCode::kIo;
      own.error = error.what();
    }
    own.digest = part.digest();
    return Answers(ranks->all_gather(pack(own), deadline()));
  }

  bool dirty() const noexcept { return torn || part.dirty(); }

  /// Does what all ranks do at the same time, and throws the same on all of them, but for errors of the channel.
  std::optional<StateDigest> obey(const Order& order) {
    switch (order.kind) {
      case Order::Kind::kRecover:
        return recover();
      case Order::Kind::kStage:
        stage(order);
        break;
      case Order::Kind::kApply:
        apply(order);
        break;
      case Order::Kind::kReseed:
        reseed(order);
        break;
      case Order::Kind::kEnd:
        break;
    }
    return std::nullopt;
  }

  std::optional<StateDigest> recover() {
    const Answers answers = exchange([&](Answer& own) {
      try {
        if (!dirty()) part.audit();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kDirty) throw;
      }
      own.dirty = dirty();
    });
    if (const auto error = answers.error()) throw *error;
    if (answers.any_dirty()) return std::nullopt;
    return answers.digest();
  }

  void stage(const Order& order) {
    const Answers answers = exchange([&](Answer&) {
      const DeltaFile delta = DeltaFile::open(fs, order.path);
      if (delta.header().delta_id != order.delta_id) {
        throw Error(ErrorCode::kMixed, "rank 0 has another file under this path", order.path);
      }
      require_same_table(*table, "the live tensors", delta.table(), delta.name());
      part.stage(delta);
    });
    std::optional<Error> error = answers.error();
    if (!error && !(answers.digest() == order.digest)) {
      error.emplace(ErrorCode::kWrongBase,
                    fmt::format("the parts of all ranks have digest {}, and it starts from {}",
                                to_hex(answers.digest().value), to_hex(order.digest.value)),
                    order.path);
    }
    if (error) {
      part.discard();
      throw *error;
    }
  }

  /// Asks the engines of all ranks to let their weights be written. While none of them reads the weights, calls
  /// `write`, and then `judge` with the answers of all ranks, which throws unless the weights are of one version.
  /// Throws Error{kTimeout} when an engine refuses.
  template <class Write, class Judge>
  void in_pause(const Write& write, const Judge& judge) {
    const bool granted = !options.pause || options.pause(true);
    struct End {
      const std::function<bool(bool)>* pause;
      ~End() {
        if (pause != nullptr && *pause) (*pause)(false);
      }
    } const end{granted ? &options.pause : nullptr};
    if (const auto refusal = exchange([&](Answer& own) { own.granted = granted; }).refusal()) {
      part.discard();
      throw Error(ErrorCode::kTimeout, "the engine did not let the weights be written, and keeps its version",
                  fmt::format("rank {} of the engine", *refusal));
    }
    torn = true;  // Until all ranks are known to have written the same version.
    judge(exchange([&](Answer&) { write(); }));
    torn = false;
  }

  void apply(const Order& order) {
    bool written = false;
    in_pause(
        [&] {
          part.apply();
          written = true;
        },
        [&](const Answers& answers) {
          if (!answers.error() && answers.digest() == order.digest) return;
          undo(written, order);
          torn = false;
          if (const auto error = answers.error()) throw *error;
          throw Error(ErrorCode::kDigestMismatch,
                      fmt::format("the parts of all ranks came out with digest {}, not {}; the version before stands",
                                  to_hex(answers.digest().value), to_hex(order.digest.value)),
                      order.path);
        });
    const Answers audited = exchange([&](Answer&) { part.audit_next(); });
    if (const auto error = audited.error()) throw *error;
  }

  /// Brings the version before back on all ranks. `written` says whether this rank's part was written.
  void undo(bool written, const Order& order) {
    const Answers undone = exchange([&](Answer& own) {
      if (written) part.undo_last();
      own.dirty = part.dirty();
    });
    if (undone.error() || undone.any_dirty()) {
      throw Error(ErrorCode::kDirty, "the result was wrong and could not be undone; an anchor is needed", order.path);
    }
  }

  void reseed(const Order& order) {
    std::optional<CheckpointStore> store;
    const Answers ready = exchange([&](Answer&) {
      store.emplace(Checkpoint::open(fs, order.path));
      require_same_table(*table, "the live tensors", store->table(), order.path);
    });
    if (const auto error = ready.error()) throw *error;
    in_pause([&] { part.overwrite(*store, order.version); },
             [&](const Answers& answers) {
               if (const auto error = answers.error()) throw *error;
               if (answers.digest() == order.digest) return;
               throw Error(ErrorCode::kDirty,
                           fmt::format("the parts of all ranks have digest {}, and the anchor has {}",
                                       to_hex(answers.digest().value), to_hex(order.digest.value)),
                           order.path);
             });
  }

  std::shared_ptr<ControlChannel> ranks;
  std::shared_ptr<const TensorTable> table;
  FileSystem& fs;
  Options options;
  EnginePart part;
  bool torn = false;  ///< True while other ranks may hold another version than this one.
};

namespace {

void require_same_on_all(ControlChannel& ranks, const TensorTable& table, const FanoutPlan& plan, Deadline deadline) {
  const std::string own = to_hex(table.hash()) + to_hex(plan.hash());
  const auto* const begin = reinterpret_cast<const std::byte*>(own.data());
  const std::vector<Bytes> parts = ranks.all_gather({begin, own.size()}, deadline);
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (std::ranges::equal(parts[r], parts.front())) continue;
    throw Error(ErrorCode::kGroupMismatch, "its tensors or its layout are other than rank 0's",
                fmt::format("rank {} of the engine", r));
  }
}

}  // namespace

EngineRank::EngineRank(std::shared_ptr<ControlChannel> ranks, std::shared_ptr<const TensorTable> table,
                       const std::shared_ptr<const Layout>& layout, std::vector<TensorRef> local, FileSystem& fs,
                       Options options) {
  if (!ranks || !table || !layout)
    throw Error(ErrorCode::kUsage, "a rank of an engine needs channel, table and layout");
  if (static_cast<std::size_t>(ranks->size()) != layout->ranks().size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the channel has {} ranks, and the layout {}", ranks->size(), layout->ranks().size()));
  }
  const auto plan = std::make_shared<const FanoutPlan>(plan_from_log(*table, layout));
  require_same_on_all(*ranks, *table, *plan, std::chrono::steady_clock::now() + options.timeout);
  state_ = std::make_unique<State>(std::move(ranks), std::move(table), *layout, plan, std::move(local), fs,
                                   std::move(options));
}

EngineRank::~EngineRank() = default;

bool EngineRank::dirty() const noexcept { return state_->dirty(); }

void EngineRank::serve() {
  State& state = *state_;
  for (;;) {
    const Order order = parse_order(state.ranks->broadcast({}, std::chrono::steady_clock::now() + kOrderTime));
    if (order.kind == Order::Kind::kEnd) return;
    try {
      state.obey(order);
    } catch (const Error&) {
      if (state.ranks->aborted()) throw;
    }
  }
}

namespace {

class EngineTarget : public FollowerTarget {
 public:
  /// `obey` does an order on all ranks.
  EngineTarget(std::function<std::optional<StateDigest>(const Order&)> obey, FileSystem& fs, std::string scratch)
      : obey_(std::move(obey)), fs_(fs), scratch_(std::move(scratch)) {}

  ~EngineTarget() override {
    try {
      obey_({});
    } catch (const Error&) {  // The channel is broken, and all ranks know.
    }
  }

  std::string scratch_directory() override { return scratch_; }
  std::optional<StateDigest> recover() override { return obey_({Order::Kind::kRecover, {}, 0, 0, {}}); }

  void apply(const DeltaFile& delta) override {
    const DeltaHeader& header = delta.header();
    obey_({Order::Kind::kStage, delta.name(), 0, header.delta_id, header.base_digest});
    obey_({Order::Kind::kApply, delta.name(), 0, 0, delta.commit().result_digest});
  }

  void reseed(const std::string& directory, std::uint64_t version, const StateDigest& expected) override {
    require_anchor_digest(CheckpointStore(Checkpoint::open(fs_, directory)), expected, directory);
    obey_({Order::Kind::kReseed, directory, version, 0, expected});
  }

 private:
  std::function<std::optional<StateDigest>(const Order&)> obey_;
  FileSystem& fs_;
  std::string scratch_;
};

}  // namespace

std::unique_ptr<FollowerTarget> make_engine_target(EngineRank& rank, const std::string& scratch) {
  EngineRank::State& state = *rank.state_;
  if (state.ranks->rank() != 0) throw Error(ErrorCode::kUsage, "rank 0 of an engine leads it");
  const auto obey = [&state](const Order& order) {
    state.ranks->broadcast(pack(order), state.deadline());
    return state.obey(order);
  };
  return std::make_unique<EngineTarget>(obey, state.fs, scratch);
}

}  // namespace sparsecast
