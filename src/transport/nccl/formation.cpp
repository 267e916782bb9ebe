// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/formation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "sparsecast/digest.hpp"

extern char** environ;

namespace sparsecast {
namespace {

constexpr int kRanksPerRoot = 128;
constexpr int kMostRanks = 1 << 20;  ///< Bound on ranks; a larger group cannot exist.
constexpr int kMultiRankVersion = 23003;
/// Environment variables whose mismatch leads to hangs or crashes, not to errors.
constexpr const char* kMustAgree[] = {
    "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE",        "NCCL_NET",         "NCCL_NET_PLUGIN",  "NCCL_PROTO",
    "NCCL_ALGO",         "NCCL_IB_DISABLE",         "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_MNNVL_ENABLE",
    "NCCL_MIN_CTAS",     "NCCL_MAX_CTAS",           "NCCL_BUFFSIZE",    "NCCL_LAUNCH_MODE", "NCCL_COLLNET_ENABLE",
    "NCCL_PXN_DISABLE",  "NCCL_DISABLE_MEM_MANAGER"};

[[noreturn]] void disagree(int rank, const std::string& what, const std::string& theirs, const std::string& first) {
  throw Error(ErrorCode::kGroupMismatch,
              fmt::format("the ranks differ in {}: rank {} has {}, rank 0 has {}", what, rank, theirs, first));
}

std::string or_nothing(const std::string& text) { return text.empty() ? "none" : text; }

void check_devices(const std::vector<NcclRankInfo>& rank_infos) {
  const bool may_share = get_text(rank_infos[0].settings).find("NCCL_MULTI_RANK_GPU_ENABLE=1\n") != std::string::npos &&
                         rank_infos[0].nccl_version >= kMultiRankVersion;
  if (may_share) return;
  // Ranks that claim different hosts may share a device: for tests, over sockets.
  std::map<std::pair<std::string, std::string>, std::size_t> users;
  for (std::size_t r = 0; r < rank_infos.size(); ++r) {
    const std::string device = get_text(rank_infos[r].device);
    const auto [user, added] = users.try_emplace({device, get_text(rank_infos[r].host_id)}, r);
    if (added) continue;
    throw Error(ErrorCode::kGroupMismatch,
                fmt::format("ranks {} and {} use the same GPU ({}); give each rank its own, by CUDA_VISIBLE_DEVICES or "
                            "NcclOptions::device",
                            user->second, r, device));
  }
}

void check_options(int rank, const NcclRankInfo& own, const NcclRankInfo& first) {
  const auto check = [rank](const char* option, std::uint64_t theirs, std::uint64_t of_first) {
    if (theirs == of_first) return;
    disagree(rank, std::string("NcclOptions::") + option, std::to_string(theirs), std::to_string(of_first));
  };
  check("staging_bytes", own.staging_bytes, first.staging_bytes);
  check("max_ctas", static_cast<std::uint64_t>(own.max_ctas), static_cast<std::uint64_t>(first.max_ctas));
  check("broadcast_ctas", static_cast<std::uint64_t>(own.broadcast_ctas),
        static_cast<std::uint64_t>(first.broadcast_ctas));
  check("suspend_between_rounds", own.suspend_between_rounds, first.suspend_between_rounds);
}

std::uint64_t number_of_channel(const std::vector<NcclRankInfo>& rank_infos) {
  return xxh3_64(std::as_bytes(std::span(rank_infos))) | 1;
}

bool all(const std::vector<NcclRankInfo>& rank_infos, std::uint32_t NcclRankInfo::*ability) {
  return std::all_of(rank_infos.begin(), rank_infos.end(), [&](const NcclRankInfo& p) { return p.*ability != 0; });
}

/// Returns whether all ranks are from one old group, in the same order, and some ranks of it are missing. Sets `lost`
/// to the missing ranks.
bool shrinks(const std::vector<NcclRankInfo>& rank_infos, std::vector<int>& lost) {
  const NcclRankInfo& first = rank_infos[0];
  if (first.old_channel == 0 || first.old_size > kMostRanks || !all(rank_infos, &NcclRankInfo::can_shrink))
    return false;
  int next = 0;
  for (const NcclRankInfo& p : rank_infos) {
    if (p.old_channel != first.old_channel || p.old_size != first.old_size || p.old_rank < next ||
        p.old_rank >= first.old_size) {
      return false;
    }
    for (; next < p.old_rank; ++next) lost.push_back(next);
    ++next;
  }
  for (; next < first.old_size; ++next) lost.push_back(next);
  return !lost.empty();
}

/// Returns whether the first ranks are a complete old group, in the same order, and all other ranks are new.
bool grows(const std::vector<NcclRankInfo>& rank_infos) {
  const NcclRankInfo& first = rank_infos[0];
  const auto old_size = static_cast<std::size_t>(std::max(first.old_size, 0));
  if (first.old_channel == 0 || old_size >= rank_infos.size() || !all(rank_infos, &NcclRankInfo::can_grow))
    return false;
  for (std::size_t r = 0; r < rank_infos.size(); ++r) {
    const NcclRankInfo& p = rank_infos[r];
    if (r < old_size ? p.old_channel != first.old_channel || p.old_rank != static_cast<int>(r) : p.old_channel != 0) {
      return false;
    }
  }
  return true;
}

/// Head of a packed plan. The lost ranks and the roots follow it.
struct PlanHead {
  std::uint32_t formation = 0;
  std::uint32_t registered = 0;
  std::uint32_t configured = 0;
  std::uint32_t suspends = 0;
  std::uint64_t channel = 0;
  std::uint64_t lost = 0;
  std::uint64_t roots = 0;
};

}  // namespace

const char* to_string(Formation formation) {
  switch (formation) {
    case Formation::kInit:
      return "init";
    case Formation::kInitScalable:
      return "init with several roots";
    case Formation::kShrink:
      return "shrink";
    case Formation::kGrow:
      return "grow";
  }
  return "unknown";
}

std::string nccl_settings() {
  std::string settings;
  const auto add = [&](const char* name) {
    if (const char* const value = std::getenv(name)) settings += fmt::format("{}={}\n", name, value);
  };
  add("NCCL_MULTI_RANK_GPU_ENABLE");
  for (const char* name : kMustAgree) add(name);
  return settings;
}

std::vector<std::string> relevant_environment() {
  constexpr const char* kPrefixes[] = {
      "NCCL_",       "CUDA_VISIBLE_DEVICES=",    "CUDA_DEVICE_ORDER=", "CUDA_LAUNCH_BLOCKING=", "CUDA_MPS_",
      "TORCH_NCCL_", "SPARSECAST_NCCL_LIBRARY=", "OMPI_MCA_",          "LD_PRELOAD=",           "LD_LIBRARY_PATH="};
  std::vector<std::string> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const bool relevant = std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [&](const char* prefix) {
      return std::strncmp(*entry, prefix, std::strlen(prefix)) == 0;
    });
    if (relevant) found.emplace_back(*entry);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<NcclRankInfo> parse_rank_infos(const std::vector<Bytes>& all) {
  std::vector<NcclRankInfo> rank_infos;
  for (std::size_t r = 0; r < all.size(); ++r) rank_infos.push_back(value_of_rank<NcclRankInfo>(all[r], r));
  return rank_infos;
}

void check_rank_infos(const std::vector<NcclRankInfo>& rank_infos) {
  const NcclRankInfo& first = rank_infos[0];
  for (std::size_t i = 1; i < rank_infos.size(); ++i) {
    const NcclRankInfo& p = rank_infos[i];
    const int rank = static_cast<int>(i);
    if (p.protocol != first.protocol) {
      disagree(rank, "the protocol of sparsecast's channels", std::to_string(p.protocol),
               std::to_string(first.protocol));
    }
    if (p.nccl_version != first.nccl_version) {
      disagree(rank, "the NCCL library", nccl_version_text(p.nccl_version), nccl_version_text(first.nccl_version));
    }
    check_options(rank, p, first);
    if (p.settings != first.settings) {
      std::string theirs = or_nothing(get_text(p.settings));
      std::string ours = or_nothing(get_text(first.settings));
      std::replace(theirs.begin(), theirs.end(), '\n', ' ');
      std::replace(ours.begin(), ours.end(), '\n', ' ');
      disagree(rank, "NCCL's environment", theirs, ours);
    }
  }
  check_devices(rank_infos);
}

FormationPlan plan_formation(const std::vector<NcclRankInfo>& rank_infos) {
  FormationPlan plan;
  plan.registered = all(rank_infos, &NcclRankInfo::can_register);
  plan.configured = all(rank_infos, &NcclRankInfo::can_configure);
  plan.suspends = rank_infos[0].suspend_between_rounds != 0 && all(rank_infos, &NcclRankInfo::can_suspend);
  plan.channel = number_of_channel(rank_infos);
  plan.roots = {0};
  const int size = static_cast<int>(rank_infos.size());
  if (shrinks(rank_infos, plan.lost)) {
    plan.formation = Formation::kShrink;
    return plan;
  }
  plan.lost.clear();
  if (grows(rank_infos)) {
    plan.formation = Formation::kGrow;
  } else if (size >= 2 * kRanksPerRoot && all(rank_infos, &NcclRankInfo::can_init_scalable)) {
    plan.formation = Formation::kInitScalable;
    for (int root = kRanksPerRoot; root + kRanksPerRoot <= size; root += kRanksPerRoot) plan.roots.push_back(root);
  }
  return plan;
}

Bytes pack_formation(const FormationPlan& plan) {
  const PlanHead head{static_cast<std::uint32_t>(plan.formation),
                      plan.registered ? 1U : 0U,
                      plan.configured ? 1U : 0U,
                      plan.suspends ? 1U : 0U,
                      plan.channel,
                      plan.lost.size(),
                      plan.roots.size()};
  const auto lost = std::as_bytes(std::span(plan.lost));
  const auto roots = std::as_bytes(std::span(plan.roots));
  Bytes out(sizeof(head) + lost.size() + roots.size());
  std::memcpy(out.data(), &head, sizeof(head));
  std::ranges::copy(lost, out.begin() + sizeof(head));
  std::ranges::copy(roots, out.end() - static_cast<std::ptrdiff_t>(roots.size()));
  return out;
}

FormationPlan parse_formation(ConstBytes bytes) {
  PlanHead head;
  const auto require = [](bool right) {
    if (!right) throw Error(ErrorCode::kCorrupt, "the plan of how to form the communicator cannot be read");
  };
  require(bytes.size() >= sizeof(head));
  std::memcpy(&head, bytes.data(), sizeof(head));
  bytes = bytes.subspan(sizeof(head));
  const std::uint64_t ranks = bytes.size() / sizeof(int);
  require(head.formation <= static_cast<std::uint32_t>(Formation::kGrow));
  require(head.registered <= 1 && head.configured <= 1 && head.suspends <= 1);
  require(head.lost <= ranks && head.roots == ranks - head.lost && bytes.size() % sizeof(int) == 0);
  FormationPlan plan;
  plan.formation = static_cast<Formation>(head.formation);
  plan.registered = head.registered != 0;
  plan.configured = head.configured != 0;
  plan.suspends = head.suspends != 0;
  plan.channel = head.channel;
  const auto take = [&bytes](std::vector<int>& list, std::uint64_t count) {
    list.resize(static_cast<std::size_t>(count));
    std::ranges::copy(bytes.first(list.size() * sizeof(int)), std::as_writable_bytes(std::span(list)).begin());
    bytes = bytes.subspan(list.size() * sizeof(int));
  };
  take(plan.lost, head.lost);
  take(plan.roots, head.roots);
  return plan;
}

}  // namespace sparsecast
