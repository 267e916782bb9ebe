#pragma once

// Who is in a call of a channel, and how any other thread asks that one to give up.
//
//     free --enter()--> in a call --leave()--> free
//        \                  |
//         \             ask(): the call is woken, gives up, and tells the others why
//          ask(): the asker is in for a moment, and does that itself
//
// Where a library allows calls of one thread only (MPI), another thread may not do that itself; the next call does.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "sparsecast/error.hpp"

namespace sparsecast {

class CancellationToken {
 public:
  /// `any_thread`: whoever asks may act on it. Throws Error{kIo}.
  explicit CancellationToken(bool any_thread);
  ~CancellationToken();
  CancellationToken(const CancellationToken&) = delete;
  CancellationToken& operator=(const CancellationToken&) = delete;

  /// For a call. Another thread that is in for a moment is waited for; false when one is in a call.
  bool enter();
  /// For something that waits for nobody; false when a thread is in.
  bool enter_for_a_moment();
  /// From any thread; the first reason stands. True: the caller is in for a moment now, and acts on it.
  bool ask(const std::string& reason);
  std::optional<std::string> asked() const;

  // For the thread that is in.

  /// Out, unless the reason that it was asked for is still to be acted on; then it stays in.
  std::optional<std::string> leave();
  /// Throws Error{kPeerFailed} with the reason, once it has been asked; nothing after ignore().
  void check() const;
  /// The same for what this channel is a part of, which `whole` asks, or null: now and then, in a wait that lasts.
  void look_up() const;
  void follow(std::function<std::optional<std::string>()> whole) { whole_ = std::move(whole); }
  /// Readable, for poll(2), when check() would throw; -1, which poll(2) passes over, after ignore().
  int descriptor() const noexcept { return heeded_ ? descriptor_ : -1; }
  /// Words that must get through are being sent, or have been; heed(): no longer.
  void ignore() noexcept { heeded_ = false; }
  void heed() noexcept { heeded_ = true; }
  /// The reason has been acted on.
  void acted() noexcept { acted_ = true; }

 private:
  const bool any_thread_;
  std::function<std::optional<std::string>()> whole_;
  int descriptor_ = -1;  ///< eventfd(2).
  std::atomic<bool> raised_{false};
  bool heeded_ = true;  ///< Of the thread that is in, as is `acted_`.
  bool acted_ = false;

  mutable std::mutex mutex_;  ///< Of what follows.
  enum class State { kFree, kInCall, kForAMoment } state_ = State::kFree;
  std::condition_variable free_;
  std::thread::id last_;  ///< The thread whose calls these are.
  std::optional<std::string> reason_;
};

}  // namespace sparsecast
