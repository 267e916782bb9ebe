// SPDX-License-Identifier: Apache-2.0

// This file finds a bucket's address and its access keys. It takes them from the location, the environment and the
// files of the AWS tools, with the same precedence as these tools.

#include "store/s3_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "sparsecast/error.hpp"
#include "store/object_key.hpp"

namespace sparsecast {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string lower(std::string_view text) {
  std::string all(text);
  std::transform(all.begin(), all.end(), all.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return all;
}

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
    const std::string name = lower(trimmed(content.substr(0, sign)));
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

constexpr std::string_view kScheme = "s3://";
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

class Settings {
 public:
  Settings(FileSystem& fs, const Environment& environment)
      : fs_(fs),
        environment_(environment),
        credentials_(read_file("AWS_SHARED_CREDENTIALS_FILE", "credentials")),
        config_(read_file("AWS_CONFIG_FILE", "config")) {
    const auto named = first({variable("AWS_DEFAULT_PROFILE"), variable("AWS_PROFILE")});
    profile_ = named.value_or("default");
    // The section of the default profile has no "profile" before its name, but some tools write it.
    config_section_ = "profile " + profile_;
    if (profile_ == "default" && !config_.contains(config_section_)) config_section_ = profile_;
    if (named && !credentials_.contains(profile_) && !config_.contains(config_section_)) {
      throw Error(ErrorCode::kUnauthenticated,
                  fmt::format("neither the config nor the credentials file has the profile '{}' of {}", *named,
                              variable("AWS_DEFAULT_PROFILE") ? "AWS_DEFAULT_PROFILE" : "AWS_PROFILE"));
    }
  }

  void fill(S3Options& options) const {
    fill_keys(options);
    if (const auto region = first({variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"), config("region")})) {
      options.region = *region;
    }
    const auto ignored =
        first({variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"), config("ignore_configured_endpoint_urls")});
    if (lower(ignored.value_or("")) != "true") {
      options.endpoint = first({variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"),
                                service("s3.endpoint_url"), config("s3.endpoint_url"), config("endpoint_url")})
                             .value_or("");
    }
    options.ca_bundle = first({variable("AWS_CA_BUNDLE"), config("ca_bundle")}).value_or("");
    const auto style = config("s3.addressing_style");
    if (style == "path") options.path_style = true;
    if (style == "virtual") options.path_style = false;
  }

 private:
  using Value = std::optional<std::string>;

  static Value first(std::initializer_list<Value> values) {
    for (const Value& value : values) {
      if (value) return value;
    }
    return std::nullopt;
  }

  /// Takes both keys from one source, because a key and a secret from different sources do not match.
  void fill_keys(S3Options& options) const {
    if (take_keys(options, variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"),
                  first({variable("AWS_SECURITY_TOKEN"), variable("AWS_SESSION_TOKEN")}), "the environment")) {
      return;
    }
    for (const auto& [file, section] : {std::pair(&credentials_, profile_), std::pair(&config_, config_section_)}) {
      if (take_keys(
              options, value_of(*file, section, "aws_access_key_id"), value_of(*file, section, "aws_secret_access_key"),
              first({value_of(*file, section, "aws_security_token"), value_of(*file, section, "aws_session_token")}),
              fmt::format("profile '{}'", profile_))) {
        return;
      }
    }
    throw Error(ErrorCode::kUnauthenticated,
                fmt::format("no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the profile '{}' "
                            "some (for roles: aws configure export-credentials --format env)",
                            profile_));
  }

  static bool take_keys(S3Options& options, const Value& access, const Value& secret, const Value& token,
                        const std::string& source) {
    if (!access && !secret) return false;
    if (!access || !secret) {
      throw Error(ErrorCode::kUnauthenticated,
                  fmt::format("{} has only one of access key id and secret access key", source));
    }
    options.access_key = *access;
    options.secret_key = *secret;
    options.session_token = token.value_or("");
    return true;
  }

  Value variable(const char* name) const { return environment_(name); }
  Value config(const std::string& name) const { return value_of(config_, config_section_, name); }
  Value service(const std::string& name) const {
    const Value services = config("services");
    return services ? value_of(config_, "services " + *services, name) : std::nullopt;
  }

  static Value value_of(const IniFile& file, const std::string& section, const std::string& name) {
    const auto found = file.find(section);
    if (found == file.end()) return std::nullopt;
    const auto value = found->second.find(name);
    if (value == found->second.end() || value->second.empty()) return std::nullopt;
    return value->second;
  }

  IniFile read_file(const char* name_variable, const std::string& usual) const {
    std::string path;
    if (const auto named = environment_(name_variable)) {
      path = expanded(*named, environment_);
    } else if (const auto home = environment_("HOME")) {
      path = *home + "/.aws/" + usual;
    }
    if (path.empty() || !fs_.exists(path) || fs_.is_directory(path)) return {};
    const auto file = fs_.open(path, OpenMode::kRead);
    const std::uint64_t size = file->size();
    if (size > kMaxFileBytes) throw Error(ErrorCode::kCorrupt, "too large for a file of settings", path);
    std::string text(size, '\0');
    file->read_at(0, std::as_writable_bytes(std::span(text)));
    return parse_ini_file(text, path);
  }

  FileSystem& fs_;
  const Environment& environment_;
  IniFile credentials_;
  IniFile config_;
  std::string profile_;
  std::string config_section_;
};

bool is_graphic(char c) { return c > ' ' && c < 0x7f; }

bool has_only(const std::string& text, std::string_view extra) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           extra.find(c) != std::string_view::npos;
  });
}

void require(bool holds, const std::string& sentence) {
  if (!holds) throw Error(ErrorCode::kUsage, sentence);
}

/// Returns whether the text is "http://host[:port][/path]" (or https), without user, query or fragment.
bool is_endpoint(const std::string& endpoint) {
  const std::string scheme = lower(endpoint.substr(0, 8));
  const std::size_t begin = scheme == "https://" ? 8 : scheme.starts_with("http://") ? 7 : 0;
  return begin != 0 && endpoint.size() > begin && endpoint[begin] != '/' && endpoint.size() < 512 &&
         has_only(endpoint.substr(begin), ".-_:/[]");
}

void require_keys(const S3Options& options) {
  if (options.anonymous) return;
  if (options.access_key.empty() || options.secret_key.empty()) {
    throw Error(ErrorCode::kUnauthenticated, "no keys for S3, and the requests are not to be anonymous");
  }
  for (const std::string* key : {&options.access_key, &options.secret_key, &options.session_token}) {
    if (key->size() > 8192 || !std::all_of(key->begin(), key->end(), is_graphic)) {
      throw Error(ErrorCode::kUnauthenticated, "a key or token for S3 has blanks or other characters that none has");
    }
  }
  // Key and secret are passed to libcurl as "key:secret".
  if (options.access_key.find(':') != std::string::npos) {
    throw Error(ErrorCode::kUnauthenticated, "the access key id for S3 has a ':'");
  }
}

}  // namespace

S3Options s3_options_from(FileSystem& fs, const std::string& location, const Environment& environment) {
  require(location.starts_with(kScheme), fmt::format("'{}' is no location like s3://bucket/prefix", location));
  S3Options options;
  const std::string rest = location.substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  options.bucket = rest.substr(0, slash);
  if (slash != std::string::npos) options.prefix = rest.substr(slash + 1);
  if (options.prefix.ends_with('/')) options.prefix.pop_back();
  Settings(fs, environment).fill(options);
  require_s3_options(options);
  return options;
}

S3Options S3Options::from_environment(FileSystem& fs, const std::string& location) {
  return s3_options_from(fs, location, [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  });
}

void require_s3_options(const S3Options& options) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongest = std::chrono::hours(24);
  require(options.bucket.size() >= 3 && options.bucket.size() <= 255 && has_only(options.bucket, "._-"),
          fmt::format("'{}' is no name of a bucket", options.bucket));
  require(options.prefix.empty() || is_object_key(options.prefix),
          fmt::format("'{}' cannot be the prefix of keys", options.prefix));
  require(options.endpoint.empty() || is_endpoint(options.endpoint),
          "the endpoint is not like https://host:port, without user and query");
  require(!options.region.empty() && options.region.size() < 64 && has_only(options.region, "-_"),
          fmt::format("'{}' is no region", options.region));
  require(options.part_bytes >= (std::uint64_t{5} << 20) && options.part_bytes <= (std::uint64_t{1} << 30),
          "part_bytes must be 5 MiB to 1 GiB");
  require(options.connections >= 1 && options.connections <= 256, "connections must be 1 to 256");
  for (const milliseconds time : {options.deadline, options.connect_timeout, options.stall_timeout}) {
    require(time > milliseconds(0) && time <= kLongest, "the times of an S3 store must be positive, at most a day");
  }
  require_keys(options);
}

S3Address s3_address(const S3Options& options) {
  S3Address address;
  std::string endpoint = options.endpoint;
  if (endpoint.empty()) endpoint = fmt::format("https://s3.{}.amazonaws.com", options.region);
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (options.path_style.value_or(!options.endpoint.empty())) {
    address.bucket_url = endpoint + "/" + options.bucket;
  } else {
    const std::size_t host = endpoint.find("://") + 3;
    address.bucket_url = endpoint.substr(0, host) + options.bucket + "." + endpoint.substr(host);
  }
  address.object_root = address.bucket_url;
  address.location = "s3://" + options.bucket;
  if (!options.prefix.empty()) {
    address.object_root += "/" + options.prefix;
    address.location += "/" + options.prefix;
    address.key_prefix = options.prefix + "/";
  }
  return address;
}

}  // namespace sparsecast
