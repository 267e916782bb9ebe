// SPDX-License-Identifier: Apache-2.0
#include "store/aws_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "sparsecast/error.hpp"

namespace sparsecast {

std::string lower_case(std::string_view text) {
  std::string all(text);
  std::transform(all.begin(), all.end(), all.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return all;
}

namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Returns the line without a trailing comment. The comment sign must follow a blank, because secrets may contain '#'.
std::string_view without_comment(std::string_view text) {
  for (std::size_t i = 1; i < text.size(); ++i) {
    if ((text[i] == '#' || text[i] == ';') && is_blank(text[i - 1])) return text.substr(0, i);
  }
  return text;
}

/// Returns the name under which a section is stored: `profile "my team"` becomes `profile my team`.
std::string section_name(std::string_view text) {
  const std::size_t blank = std::min(text.find_first_of(" \t"), text.size());
  const std::string_view kind = text.substr(0, blank);
  std::string_view rest = trimmed(text.substr(blank));
  if (rest.size() >= 2 && (rest.front() == '"' || rest.front() == '\'') && rest.back() == rest.front()) {
    rest = rest.substr(1, rest.size() - 2);
  }
  return rest.empty() ? std::string(kind) : fmt::format("{} {}", kind, rest);
}

class IniParser {
 public:
  explicit IniParser(const std::string& path) : path_(path) {}

  void line(std::string_view text) {
    ++number_;
    const bool indented = !text.empty() && is_blank(text.front());
    const std::string_view content = trimmed(text);
    if (content.empty() || content.front() == '#' || content.front() == ';') return;
    if (content.front() == '[') {
      open_section(content);
    } else {
      setting(content, indented);
    }
  }

  IniFile take() { return std::move(file_); }

 private:
  void open_section(std::string_view content) {
    const std::size_t end = content.find(']');
    if (end == std::string_view::npos) refuse("a section without its ]");
    const std::string_view name = trimmed(content.substr(1, end - 1));
    if (name.empty()) refuse("a section without a name");
    section_ = &file_[section_name(name)];
    outer_.clear();
  }

  void setting(std::string_view content, bool indented) {
    if (section_ == nullptr) refuse("a setting before the first section");
    const std::size_t sign = content.find_first_of("=:");
    if (sign == std::string_view::npos) refuse("neither a section nor a setting");
    const std::string name = lower_case(trimmed(content.substr(0, sign)));
    if (name.empty()) refuse("a setting without a name");
    const std::string value(trimmed(without_comment(content.substr(sign + 1))));
    const bool nested = indented && !outer_.empty();
    (*section_)[nested ? outer_ + "." + name : name] = value;
    if (!nested) outer_ = value.empty() ? name : std::string();
  }

  [[noreturn]] void refuse(const char* what) const {
    throw Error(ErrorCode::kCorrupt, what, fmt::format("{}, line {}", path_, number_));
  }

  const std::string& path_;
  IniFile file_;
  std::map<std::string, std::string>* section_ = nullptr;
  std::string outer_;  ///< The setting without a value to which indented lines belong.
  std::size_t number_ = 0;
};

}  // namespace

IniFile parse_ini_file(std::string_view text, const std::string& path) {
  IniParser parser(path);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    parser.line(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parser.take();
}

namespace {

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// Returns a path with the values of `$NAME` and `${NAME}` and with the home directory for a leading `~/`. Variables
/// that are not set stay in the text.
std::string expanded(const std::string& path, const Environment& environment) {
  std::string all;
  for (std::size_t i = 0; i < path.size();) {
    const bool braces = path.compare(i, 2, "${") == 0;
    const std::size_t begin = i + (braces ? 2 : 1);
    std::size_t end = begin;
    while (path[i] == '$' && end < path.size() && is_name_char(path[end])) ++end;
    const bool complete = end > begin && (!braces || (end < path.size() && path[end] == '}'));
    const auto value = complete ? environment(path.substr(begin, end - begin).c_str()) : std::nullopt;
    all += value ? *value : path.substr(i, 1);
    i = value ? end + (braces ? 1 : 0) : i + 1;
  }
  const auto home = environment("HOME");
  if (home && all.starts_with("~/")) all.replace(0, 1, *home);
  return all;
}

std::string path_of(const Environment& environment, const char* variable, const std::string& usual) {
  if (const auto named = environment(variable)) return expanded(*named, environment);
  const auto home = environment("HOME");
  return home ? *home + "/.aws/" + usual : std::string();
}

IniFile read_ini_file(FileSystem& fs, const std::string& path) {
  if (path.empty() || !fs.exists(path) || fs.is_directory(path)) return {};
  return parse_ini_file(read_text_file(fs, path, kMaxFileBytes), path);
}

AwsProfile::Value value_of(const IniFile& file, const std::string& section, const std::string& name) {
  const auto found = file.find(section);
  if (found == file.end()) return std::nullopt;
  const auto value = found->second.find(name);
  if (value == found->second.end() || value->second.empty()) return std::nullopt;
  return value->second;
}

}  // namespace

std::optional<std::string> first_of(std::initializer_list<std::optional<std::string>> values) {
  for (const std::optional<std::string>& value : values) {
    if (value) return value;
  }
  return std::nullopt;
}

std::string read_text_file(FileSystem& fs, const std::string& path, std::uint64_t max_bytes) {
  const auto file = fs.open(path, OpenMode::kRead);
  const std::uint64_t size = file->size();
  if (size > max_bytes) throw Error(ErrorCode::kCorrupt, fmt::format("larger than {} bytes", max_bytes), path);
  std::string text(size, '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

AwsFiles find_aws_files(const Environment& environment) {
  AwsFiles files;
  files.credentials = path_of(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
  files.config = path_of(environment, "AWS_CONFIG_FILE", "config");
  for (const char* variable : {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}) {
    if (const auto named = environment(variable)) {
      files.profile = *named;
      files.profile_variable = variable;
    }
  }
  return files;
}

AwsProfile::AwsProfile(FileSystem& fs, AwsFiles files)
    : files_(std::move(files)),
      config_section_("profile " + files_.profile),
      credentials_(read_ini_file(fs, files_.credentials)),
      config_(read_ini_file(fs, files_.config)) {
  // The section of the default profile has no "profile" before its name, but some tools write it.
  if (files_.profile == "default" && !config_.contains(config_section_)) config_section_ = files_.profile;
  if (!files_.profile_variable.empty() && !credentials_.contains(files_.profile) &&
      !config_.contains(config_section_)) {
    throw Error(ErrorCode::kUnauthenticated,
                fmt::format("neither the config nor the credentials file has the profile '{}' of {}", files_.profile,
                            files_.profile_variable));
  }
}

AwsProfile::Value AwsProfile::credential(const std::string& name) const {
  return value_of(credentials_, files_.profile, name);
}

AwsProfile::Value AwsProfile::config(const std::string& name) const { return value_of(config_, config_section_, name); }

AwsProfile::Value AwsProfile::either(const std::string& name) const {
  return first_of({credential(name), config(name)});
}

AwsProfile::Value AwsProfile::endpoint(const std::string& service) const {
  const Value services = config("services");
  return first_of({services ? value_of(config_, "services " + *services, service + ".endpoint_url") : std::nullopt,
                   config(service + ".endpoint_url"), config("endpoint_url")});
}

}  // namespace sparsecast
