// SPDX-License-Identifier: Apache-2.0
#include "layout/json_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 12;

[[noreturn]] void corrupt(const std::string& fault) { throw Error(ErrorCode::kCorrupt, fault); }

}  // namespace

json parse_bounded_json(std::string_view text) {
  // The parser would treat a zero byte as the end of its input.
  if (text.find('\0') != std::string_view::npos) corrupt("a zero byte in JSON");
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) corrupt(fmt::format("the JSON nests deeper than {}", kMaxDepth));
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      corrupt(fmt::format("the key '{}' occurs twice", excerpt(parsed.get_ref<const std::string&>())));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::parse_error& error) {
    corrupt(fmt::format("not JSON at byte {}", error.byte));
  } catch (const json::exception&) {
    corrupt("not JSON: a number is out of range");
  }
}

std::string JsonPlace::path() const {
  if (parent_ == nullptr) return {};
  const std::string outer = parent_->path();
  if (key_.empty()) return fmt::format("{}[{}]", outer, index_);
  return outer.empty() ? excerpt(key_) : fmt::format("{}.{}", outer, excerpt(key_));
}

void JsonPlace::fail(const std::string& fault) const { throw Error(ErrorCode::kCorrupt, fault, path()); }

void JsonPlace::check_keys(std::initializer_list<std::string_view> known) const {
  if (!value_.is_object()) fail("this is not an object");
  for (const auto& entry : value_.items()) {
    if (std::find(known.begin(), known.end(), entry.key()) != known.end()) continue;
    fail(fmt::format("unknown key '{}'", excerpt(entry.key())));
  }
}

bool JsonPlace::has(const char* key) const {
  if (!value_.is_object()) fail("this is not an object");
  return value_.contains(key);
}

JsonPlace JsonPlace::at(const char* key) const {
  if (!has(key)) fail(fmt::format("'{}' is missing", key));
  return {value_.at(key), *this, key, 0};
}

JsonPlace JsonPlace::member(const std::string& key) const { return {value_.at(key), *this, key, 0}; }

std::size_t JsonPlace::size() const {
  if (!value_.is_array()) fail("this is not an array");
  return value_.size();
}

JsonPlace JsonPlace::operator[](std::size_t index) const {
  if (index >= size()) fail(fmt::format("an array of {}, too short", size()));
  return {value_[index], *this, {}, index};
}

const std::string& JsonPlace::text() const {
  if (!value_.is_string()) fail("this is not a string");
  return value_.get_ref<const std::string&>();
}

bool JsonPlace::flag() const {
  if (!value_.is_boolean()) fail("this is neither true nor false");
  return value_.get<bool>();
}

std::uint64_t JsonPlace::number(std::uint64_t most) const {
  if (!value_.is_number_unsigned()) fail("this is not a number of zero or more");
  const auto number = value_.get<std::uint64_t>();
  if (number > most) fail(fmt::format("{} is over the limit of {}", number, most));
  return number;
}

std::vector<std::uint64_t> JsonPlace::numbers(std::size_t most) const {
  if (size() > most) fail(fmt::format("an array of {}, over the limit of {}", size(), most));
  std::vector<std::uint64_t> out(size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = (*this)[i].number();
  return out;
}

std::vector<std::string> JsonPlace::texts() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < size(); ++i) out.push_back((*this)[i].text());
  return out;
}

}  // namespace sparsecast
