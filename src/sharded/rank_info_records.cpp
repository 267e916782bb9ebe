#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sharded/rank_info.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr int kFormat = 1;

Hash128 hash_from(const nlohmann::json& words) {
  return {words.at(0).get<std::uint64_t>(), words.at(1).get<std::uint64_t>()};
}

nlohmann::json to_json(const RankInfo& rank_info) {
  return {{"trainer", rank_info.role == Role::kTrainer},
          {"group", rank_info.group},
          {"rank", rank_info.rank},
          {"layout", {rank_info.layout.lo, rank_info.layout.hi}},
          {"next_layout", {rank_info.next_layout.lo, rank_info.next_layout.hi}},
          {"layout_bytes", rank_info.layout_bytes},
          {"version", rank_info.version},
          {"in_doubt", rank_info.in_doubt},
          {"last_attempt", rank_info.last_attempt},
          {"needs_anchor", rank_info.needs_anchor},
          {"channels", rank_info.plan.max_groups_per_rank},
          {"lane_cost", rank_info.plan.route_cost_bytes},
          {"unsent", rank_info.plan.unsent}};
}

RankInfo from_json(const nlohmann::json& object) {
  RankInfo rank_info;
  rank_info.role = object.at("trainer").get<bool>() ? Role::kTrainer : Role::kEngine;
  rank_info.group = object.at("group").get<std::string>();
  rank_info.rank = object.at("rank").get<std::uint32_t>();
  rank_info.layout = hash_from(object.at("layout"));
  rank_info.next_layout = hash_from(object.at("next_layout"));
  rank_info.layout_bytes = object.at("layout_bytes").get<std::uint64_t>();
  rank_info.version = object.at("version").get<std::uint64_t>();
  rank_info.in_doubt = object.at("in_doubt").get<std::uint64_t>();
  rank_info.last_attempt = object.at("last_attempt").get<std::uint64_t>();
  rank_info.needs_anchor = object.at("needs_anchor").get<bool>();
  rank_info.plan.max_groups_per_rank = object.at("channels").get<std::size_t>();
  rank_info.plan.route_cost_bytes = object.at("lane_cost").get<std::uint64_t>();
  rank_info.plan.unsent = object.at("unsent").get<std::vector<std::string>>();
  return rank_info;
}

}  // namespace

void RankInfo::set_layouts(const Layout& current, const Layout* next) {
  layout = current.hash();
  if (next != nullptr) next_layout = next->hash();
}

Bytes pack_roles(const std::vector<RankInfo>& roles) {
  nlohmann::json list = nlohmann::json::array();
  for (const RankInfo& rank_info : roles) list.push_back(to_json(rank_info));
  const std::vector<std::uint8_t> packed = nlohmann::json::to_cbor({{"format", kFormat}, {"roles", list}});
  const auto* const begin = reinterpret_cast<const std::byte*>(packed.data());
  return {begin, begin + packed.size()};
}

std::vector<RankInfo> parse_roles(ConstBytes bytes, const std::string& peer) {
  try {
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
    const nlohmann::json object = nlohmann::json::from_cbor(begin, begin + bytes.size());
    if (object.at("format").get<int>() != kFormat) {
      throw Error(ErrorCode::kGroupMismatch, "it speaks another version of the meeting", peer);
    }
    std::vector<RankInfo> roles;
    for (const nlohmann::json& role : object.at("roles")) roles.push_back(from_json(role));
    return roles;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCorrupt, fmt::format("what it says of itself cannot be read: {}", error.what()), peer);
  }
}

}  // namespace sparsecast
