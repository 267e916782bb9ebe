// SPDX-License-Identifier: Apache-2.0
#include "transport/control/link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sparsecast {
namespace {

constexpr std::size_t kMostText = 600;

}  // namespace

const char* to_string(MessageType type) {
  switch (type) {
    case MessageType::kStart:
      return "start";
    case MessageType::kBlob:
    case MessageType::kGathered:
      return "all_gather";
    case MessageType::kBroadcast:
      return "broadcast";
    case MessageType::kVote:
      return "vote";
    case MessageType::kDecision:
      return "decision";
    case MessageType::kAbort:
      return "abort";
    case MessageType::kLeave:
      return "leave";
    case MessageType::kReduce:
      return "reduce";
  }
  return "unknown message";
}

std::string printable(std::span<const std::byte> text) {
  std::string line;
  for (const std::byte b : text.first(std::min(text.size(), kMostText))) {
    const char c = static_cast<char>(b);
    line += c >= ' ' && c <= '~' ? c : '?';
  }
  return line;
}

Bytes abort_body(const Error& error) {
  const auto code = static_cast<std::uint32_t>(error.code());
  const std::string text = error.what();
  const std::size_t bytes = std::min(text.size(), kMostText);
  Bytes body(sizeof(code) + bytes);
  std::memcpy(body.data(), &code, sizeof(code));
  std::memcpy(body.data() + sizeof(code), text.data(), bytes);
  return body;
}

Error abort_of(const ControlMessage& message) {
  std::uint32_t code = 0;
  if (message.body.size() < sizeof(code)) return {ErrorCode::kPeerFailed, "no reason given"};
  std::memcpy(&code, message.body.data(), sizeof(code));
  const bool known = code == static_cast<std::uint32_t>(ErrorCode::kTimeout) ||
                     code == static_cast<std::uint32_t>(ErrorCode::kGroupMismatch);
  return {known ? static_cast<ErrorCode>(code) : ErrorCode::kPeerFailed,
          printable(std::span(message.body).subspan(sizeof(code)))};
}

const ControlMessage* find_abort(const std::deque<ControlMessage>& waiting) {
  const auto found = std::ranges::find(waiting, MessageType::kAbort, &ControlMessage::type);
  return found == waiting.end() ? nullptr : &*found;
}

void throw_if_aborted(const std::deque<ControlMessage>& waiting, const std::string& name) {
  const ControlMessage* const abort = find_abort(waiting);
  if (abort == nullptr) return;
  const Error reason = abort_of(*abort);
  // A kTimeout would blame the peer that is waited for.
  const ErrorCode code = reason.code() == ErrorCode::kTimeout ? ErrorCode::kPeerFailed : reason.code();
  throw Error(code, fmt::format("gave up: {}", reason.message()), name);
}

}  // namespace sparsecast
