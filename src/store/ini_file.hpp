// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace sparsecast {

/// Sections of the files that the AWS tools keep (~/.aws/config, ~/.aws/credentials): section -> key -> value. Indented
/// lines after "s3 =" are the keys "s3.NAME". A section or key that comes twice: the last holds.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;

/// Error{kCorrupt} names `path` and the line of what is neither a section, nor a setting, nor a comment. Values are in
/// no error: they may be secrets.
IniFile parse_ini_file(std::string_view text, const std::string& path);

}  // namespace sparsecast
