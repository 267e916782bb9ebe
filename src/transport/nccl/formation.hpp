// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a communicator is formed. Every rank contributes what it has and which group it was in. From the messages of all
// ranks one plan is made, and all ranks get it. Nothing is created before that.

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/nccl_transport.hpp"

namespace sparsecast {

inline constexpr std::uint32_t kNcclChannelProtocol = 1;

/// Message of one rank about itself when a group forms. Text fields are padded with zeros.
struct NcclRankInfo {
  std::uint32_t protocol = kNcclChannelProtocol;
  std::int32_t nccl_version = 0;
  std::uint64_t staging_bytes = 0;
  std::uint32_t can_register = 0;
  std::uint32_t can_configure = 0;  ///< Not 0 if the library has ncclBroadcastConfig.
  std::uint32_t can_suspend = 0;
  std::int32_t max_ctas = 0;                 ///< Value of NcclOptions::max_ctas on this rank.
  std::int32_t broadcast_ctas = 0;           ///< Value of NcclOptions::broadcast_ctas on this rank.
  std::uint32_t suspend_between_rounds = 0;  ///< Not 0 if NcclOptions::suspend_between_rounds is true.
  std::uint32_t can_init_scalable = 0;
  /// Not 0 if the library has ncclCommShrink, and the rank has an old communicator that is not suspended.
  std::uint32_t can_shrink = 0;
  /// Not 0 if the library has ncclCommGrow, and the old communicator, if any, is neither broken nor suspended.
  std::uint32_t can_grow = 0;
  /// Number (FormationPlan::channel) of the group whose communicator this rank still has; 0: it has none.
  std::uint64_t old_channel = 0;
  std::uint64_t nonce = 0;  ///< Random number, so that two groups of the same ranks have different numbers.
  std::int32_t old_rank = -1;
  std::int32_t old_size = 0;
  std::array<char, 48> device{};   ///< UUID of the device.
  std::array<char, 64> host_id{};  ///< Value of NCCL_HOSTID. Ranks with different values may share a device.
  /// NCCL's environment variables that must be equal on all ranks: a line "NAME=value" for each that is set.
  std::array<char, 768> settings{};
};

enum class Formation { kInit, kInitScalable, kShrink, kGrow };

/// Plan by which all ranks of a group make its NCCL communicator. It is the same on every rank.
struct FormationPlan {
  Formation formation = Formation::kInit;
  bool registered = false;
  bool configured = false;  ///< Whether every rank can configure broadcasts (ncclBroadcastConfig).
  bool suspends = false;
  std::vector<int> lost;      ///< For kShrink: the ranks of the old communicator that are left out.
  std::vector<int> roots;     ///< Ranks that each create a unique id of NCCL.
  std::uint64_t channel = 0;  ///< Number that identifies the new group; the same on every rank.
};

const char* to_string(Formation formation);

/// Returns NCCL's environment variables that must be the same on every rank, and NCCL_MULTI_RANK_GPU_ENABLE, with their
/// values in this process: a line "NAME=value" for each that is set.
std::string nccl_settings();
/// Returns, as "NAME=value", every environment variable that is set and concerns NCCL or the choice of devices.
std::vector<std::string> relevant_environment();

/// Returns the Value that the message of a rank consists of. Throws Error{kGroupMismatch} that names `rank` when the
/// message has another length, which means another version of sparsecast.
template <class Value>
Value value_of_rank(std::span<const std::byte> bytes, std::size_t rank) {
  Value value;
  if (bytes.size() != sizeof(Value)) {
    throw Error(ErrorCode::kGroupMismatch, fmt::format("rank {} sent {} bytes where {} belong: another version of "
                                                       "sparsecast?",
                                                       rank, bytes.size(), sizeof(Value)));
  }
  std::memcpy(&value, bytes.data(), sizeof(Value));
  return value;
}

/// Returns the rank infos in the messages of all ranks, in the order of ranks; throws as value_of_rank does.
std::vector<NcclRankInfo> parse_rank_infos(const std::vector<Bytes>& all);
/// Throws Error{kGroupMismatch} unless all ranks have the same versions, options and settings, and each has a device of
/// its own (except where NCCL lets ranks share one). The error names two ranks and what is wrong with them. There must
/// be at least one rank.
void check_rank_infos(const std::vector<NcclRankInfo>& rank_infos);
FormationPlan plan_formation(const std::vector<NcclRankInfo>& rank_infos);

/// Returns the plan as bytes, for a message to all ranks.
Bytes pack_formation(const FormationPlan& plan);
/// Returns the plan in `bytes`, the output of pack_formation(). Throws Error{kCorrupt} for other bytes.
FormationPlan parse_formation(ConstBytes bytes);

template <std::size_t N>
void set_text(std::array<char, N>& field, const std::string& text) {
  field.fill('\0');
  text.copy(field.data(), N - 1);
}
/// Returns the text in a field, up to its first zero byte.
template <std::size_t N>
std::string get_text(const std::array<char, N>& field) {
  const std::string text(field.data(), N - 1);
  return text.substr(0, text.find('\0'));
}

}  // namespace sparsecast
