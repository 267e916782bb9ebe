// SPDX-License-Identifier: Apache-2.0
#pragma once

// Settings of the AWS tools: variables of the environment, and profiles in files.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "sparsecast/io.hpp"

namespace sparsecast {

/// Function that returns the value of an environment variable, or nullopt if it is not set or empty.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// Content of one of the AWS tools' files (~/.aws/config, ~/.aws/credentials): section -> key -> value. Keys are in
/// lower case, and quotes around the name of a profile are removed. Indented lines after a key without a value, such as
/// "s3 =", become the keys "s3.NAME". Sections with the same name are joined. If a key occurs twice in a section, the
/// last value counts.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;

/// Parses the text of one of the AWS tools' files. Throws Error{kCorrupt} naming `path` and the line for text that is
/// neither a section, nor a setting, nor a comment. Errors never contain values, which may be secrets.
IniFile parse_ini_file(std::string_view text, const std::string& path);

/// Returns the whole text of a file, of at most `max_bytes`. Throws Error{kIo} if it cannot be read, kCorrupt if it is
/// larger.
std::string read_text_file(FileSystem& fs, const std::string& path, std::uint64_t max_bytes);

/// Paths of the AWS tools' files, which need not exist, and the profile that is used.
struct AwsFiles {
  std::string credentials;
  std::string config;
  std::string profile = "default";
  std::string profile_variable;  ///< Environment variable that named the profile; "" if none did.
};
AwsFiles find_aws_files(const Environment& environment);

/// The settings of one profile, as the files had them when the object was made.
class AwsProfile {
 public:
  using Value = std::optional<std::string>;

  /// Reads the files. Throws Error{kUnauthenticated} if an environment variable names a profile that neither file has,
  /// and kIo or kCorrupt for a file that cannot be read.
  AwsProfile(FileSystem& fs, AwsFiles files);

  const AwsFiles& files() const { return files_; }
  /// Returns a setting of the profile in the credentials file; nullopt if it is absent or empty.
  Value credential(const std::string& name) const;
  /// Returns a setting of the profile in the config file; nullopt if it is absent or empty.
  Value config(const std::string& name) const;
  /// Returns a setting of the profile in the credentials file or, if it is absent there, in the config file.
  Value either(const std::string& name) const;
  /// Returns the URL that the config file gives for a service ("s3", "sts"); nullopt if there is none. Looks first in
  /// the section of services that the profile names, then for a URL of the service in the profile, then for a URL of
  /// all services in the profile.
  Value endpoint(const std::string& service) const;

 private:
  AwsFiles files_;
  std::string config_section_;
  IniFile credentials_;
  IniFile config_;
};

/// Returns the first value that is not nullopt; nullopt if all are.
std::optional<std::string> first_of(std::initializer_list<std::optional<std::string>> values);

/// Returns `text` with its ASCII letters in lower case.
std::string lower_case(std::string_view text);

}  // namespace sparsecast
