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

nlohmann::json to_json(const RolePresence& presence) {
  return {{"trainer", presence.role == Role::kTrainer},
          {"group", presence.group},
          {"rank", presence.rank},
          {"layout", {presence.layout.lo, presence.layout.hi}},
          {"next_layout", {presence.next_layout.lo, presence.next_layout.hi}},
          {"layout_bytes", presence.layout_bytes},
          {"version", presence.version},
          {"in_doubt", presence.in_doubt},
          {"last_attempt", presence.last_attempt},
          {"needs_anchor", presence.needs_anchor},
          {"channels", presence.plan.max_channels_per_rank},
          {"lane_cost", presence.plan.lane_cost_bytes},
          {"unsent", presence.plan.unsent}};
}

RolePresence from_json(const nlohmann::json& object) {
  RolePresence presence;
  presence.role = object.at("trainer").get<bool>() ? Role::kTrainer : Role::kEngine;
  presence.group = object.at("group").get<std::string>();
  presence.rank = object.at("rank").get<std::uint32_t>();
  presence.layout = hash_from(object.at("layout"));
  presence.next_layout = hash_from(object.at("next_layout"));
  presence.layout_bytes = object.at("layout_bytes").get<std::uint64_t>();
  presence.version = object.at("version").get<std::uint64_t>();
  presence.in_doubt = object.at("in_doubt").get<std::uint64_t>();
  presence.last_attempt = object.at("last_attempt").get<std::uint64_t>();
  presence.needs_anchor = object.at("needs_anchor").get<bool>();
  presence.plan.max_channels_per_rank = object.at("channels").get<std::size_t>();
  presence.plan.lane_cost_bytes = object.at("lane_cost").get<std::uint64_t>();
  presence.plan.unsent = object.at("unsent").get<std::vector<std::string>>();
  return presence;
}

}  // namespace

void RolePresence::set_layouts(const Layout& current, const Layout* next) {
  layout = current.hash();
  if (next != nullptr) next_layout = next->hash();
}

Bytes pack_roles(const std::vector<RolePresence>& roles) {
  nlohmann::json list = nlohmann::json::array();
  for (const RolePresence& presence : roles) list.push_back(to_json(presence));
  const std::vector<std::uint8_t> packed = nlohmann::json::to_cbor({{"format", kFormat}, {"roles", list}});
  const auto* const begin = reinterpret_cast<const std::byte*>(packed.data());
  return {begin, begin + packed.size()};
}

std::vector<RolePresence> parse_roles(ConstBytes bytes, const std::string& peer) {
  try {
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
    const nlohmann::json object = nlohmann::json::from_cbor(begin, begin + bytes.size());
    if (object.at("format").get<int>() != kFormat) {
      throw Error(ErrorCode::kGroupMismatch, "it speaks another version of the meeting", peer);
    }
    std::vector<RolePresence> roles;
    for (const nlohmann::json& role : object.at("roles")) roles.push_back(from_json(role));
    return roles;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCorrupt, fmt::format("what it says of itself cannot be read: {}", error.what()), peer);
  }
}

}  // namespace sparsecast
