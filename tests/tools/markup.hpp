// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace sparsecast::tools {

/// A start tag opens an element that its end tag closes, in order; everything else is escaped. What is wrong, or an
/// empty string.
inline std::string malformed(const std::string& page) {
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at)) {
    const std::size_t end = page.find('>', at);
    if (end == std::string::npos) return "a tag without an end";
    const std::string tag = page.substr(at + 1, end - at - 1);
    at = end;
    if (tag.find('<') != std::string::npos) return "a '<' inside '" + tag + "'";
    if (tag.starts_with("!") || tag.ends_with("/")) continue;
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    if (!name.starts_with("/")) {
      open.push_back(name);
      continue;
    }
    if (open.empty() || "/" + open.back() != name) return "'" + name + "' closes another element";
    open.pop_back();
  }
  for (std::size_t at = page.find('&'); at != std::string::npos; at = page.find('&', at + 1)) {
    const std::size_t end = page.find(';', at);
    const std::string entity = end == std::string::npos ? "" : page.substr(at + 1, end - at - 1);
    const bool known = entity == "amp" || entity == "lt" || entity == "gt" || entity == "quot" || entity == "#39";
    if (!known) return "an '&' that is no entity";
  }
  return open.empty() ? "" : "'" + open.back() + "' is not closed";
}

}  // namespace sparsecast::tools
