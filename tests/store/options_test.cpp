// SPDX-License-Identifier: Apache-2.0

// Location and keys of a bucket: environment, files, precedence, and errors.

#include "store/s3_options.hpp"

#include <gtest/gtest.h>

#include "store/keys_setup.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"

namespace sparsecast::test {
namespace {

S3Options read(const Variables& variables, const std::string& location = "s3://bucket/some/prefix") {
  FaultFileSystem fs;
  return options_of(variables, fs, location);
}

const Variables kKeys = {{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "secret"}};

Variables with_keys(Variables more) {
  more.insert(kKeys.begin(), kKeys.end());
  return more;
}

TEST(S3Options, ComeFromTheEnvironment) {
  const S3Options options = read(with_keys({{"AWS_SESSION_TOKEN", "token"},
                                            {"AWS_REGION", "eu-west-1"},
                                            {"AWS_DEFAULT_REGION", "us-west-2"},
                                            {"AWS_ENDPOINT_URL_S3", "http://127.0.0.1:8333"},
                                            {"AWS_ENDPOINT_URL", "http://other"},
                                            {"AWS_CA_BUNDLE", "/etc/ca.pem"}}));
  EXPECT_EQ(options.bucket, "bucket");
  EXPECT_EQ(options.prefix, "some/prefix");
  EXPECT_EQ(options.access_key, "id");
  EXPECT_EQ(options.secret_key, "secret");
  EXPECT_EQ(options.session_token, "token");
  EXPECT_EQ(options.region, "eu-west-1");
  EXPECT_EQ(options.endpoint, "http://127.0.0.1:8333");
  EXPECT_EQ(options.ca_bundle, "/etc/ca.pem");
  EXPECT_EQ(read(with_keys({{"AWS_DEFAULT_REGION", "us-west-2"}})).region, "us-west-2");
  EXPECT_EQ(read(with_keys({{"AWS_ENDPOINT_URL", "http://other"}})).endpoint, "http://other");
  EXPECT_EQ(read(kKeys).region, "us-east-1");
}

const char* const kConfig = R"(# a comment
[default]
region = eu-north-1
[profile cluster]
region=eu-south-1 ; the near one
endpoint_url = https://s3.cluster:9000
ca_bundle = /ca.pem
s3 =
  addressing_style = virtual
  max_concurrent_requests = 20
services = lab
[services lab]
s3 =
    endpoint_url = https://lab.example:443
)";
const char* const kCredentials = R"([default]
aws_access_key_id = default-id
aws_secret_access_key = default/sec#ret+=
[cluster]
aws_access_key_id=cluster-id
aws_secret_access_key=cluster-secret
aws_session_token=cluster-token
)";

TEST(S3Options, ComeFromTheUsualFiles) {
  FaultFileSystem fs;
  fs.put_file("/home/me/.aws/config", std::string(kConfig));
  fs.put_file("/home/me/.aws/credentials", std::string(kCredentials));
  const S3Options options = options_of({{"HOME", "/home/me"}}, fs);
  EXPECT_EQ(options.access_key, "default-id");
  EXPECT_EQ(options.secret_key, "default/sec#ret+=");
  EXPECT_EQ(options.region, "eu-north-1");
  EXPECT_EQ(options.endpoint, "");
  EXPECT_EQ(options.path_style, std::nullopt);
  const S3Options cluster = options_of({{"HOME", "/home/me"}, {"AWS_PROFILE", "cluster"}}, fs);
  EXPECT_EQ(cluster.access_key, "cluster-id");
  EXPECT_EQ(cluster.session_token, "cluster-token");
  EXPECT_EQ(cluster.region, "eu-south-1");
  EXPECT_EQ(cluster.endpoint, "https://lab.example:443") << "a service's own endpoint comes before the profile's";
  EXPECT_EQ(cluster.path_style, false);
  EXPECT_EQ(cluster.ca_bundle, "/ca.pem");
  // The environment comes first; its keys take no token of the file.
  const S3Options mixed =
      options_of(with_keys({{"HOME", "/home/me"}, {"AWS_PROFILE", "cluster"}, {"AWS_REGION", "r"}}), fs);
  EXPECT_EQ(mixed.access_key, "id");
  EXPECT_EQ(mixed.session_token, "");
  EXPECT_EQ(mixed.region, "r");
}

TEST(S3Options, ComeFromFilesThatTheEnvironmentNames) {
  FaultFileSystem fs;
  fs.put_file("conf", "[default]\nregion = x-1\naws_access_key_id = a\naws_secret_access_key = b\n");
  EXPECT_EQ(options_of({{"AWS_CONFIG_FILE", "conf"}}, fs).access_key, "a") << "keys may stand in the config file";
  fs.put_file("cred", "[default]\naws_access_key_id = c\r\naws_secret_access_key = d\r\n");
  EXPECT_EQ(options_of({{"AWS_CONFIG_FILE", "conf"}, {"AWS_SHARED_CREDENTIALS_FILE", "cred"}}, fs).secret_key, "d");
}

TEST(S3Options, FilesNameKeysInAnyCaseAndWithEitherSign) {
  FaultFileSystem fs;
  fs.put_file("cred", "[default]\nAWS_ACCESS_KEY_ID: id\nAws_Secret_Access_Key=a=b:c\nAWS_SECURITY_TOKEN = old\n");
  fs.put_file("conf", "[default]\nREGION = x-1\nEndpoint_URL = http://host:80\n");
  const S3Options options = options_of({{"AWS_CONFIG_FILE", "conf"}, {"AWS_SHARED_CREDENTIALS_FILE", "cred"}}, fs);
  EXPECT_EQ(options.access_key, "id");
  EXPECT_EQ(options.secret_key, "a=b:c");
  EXPECT_EQ(options.session_token, "old");
  EXPECT_EQ(options.region, "x-1");
  EXPECT_EQ(options.endpoint, "http://host:80");
}

TEST(S3Options, PathsOfFilesAreExpandedAsAShellWould) {
  FaultFileSystem fs;
  fs.put_file("/home/me/lab/cred", "[default]\naws_access_key_id = id\naws_secret_access_key = secret\n");
  for (const std::string path : {"~/lab/cred", "$HOME/lab/cred", "${HOME}/lab/cred", "/home/$WHO/lab/cred",
                                 "~/${DIR}/cred", "/home/me/lab/cred"}) {
    SCOPED_TRACE(path);
    const Variables variables = {
        {"HOME", "/home/me"}, {"WHO", "me"}, {"DIR", "lab"}, {"AWS_SHARED_CREDENTIALS_FILE", path}};
    EXPECT_EQ(options_of(variables, fs).access_key, "id");
  }
  for (const std::string path :
       {"${HOME/lab/cred", "$", "${}/cred", "$UNSET/cred", "x~/lab/cred", "~", "~other/cred"}) {
    SCOPED_TRACE(path);
    fs.put_file(path, "[default]\naws_access_key_id = plain\naws_secret_access_key = secret\n");
    EXPECT_EQ(options_of({{"HOME", "/home/me"}, {"AWS_SHARED_CREDENTIALS_FILE", path}}, fs).access_key, "plain");
  }
}

TEST(S3Options, TheProfileIsThatOfEitherVariableAndItsNameMayBeQuoted) {
  FaultFileSystem fs;
  fs.put_file("cred",
              "[ml]\naws_access_key_id = ml\naws_secret_access_key = s\n"
              "[my team]\naws_access_key_id = team\naws_secret_access_key = s\n");
  fs.put_file("conf",
              "[profile \"my team\"]\nregion = x-1\nservices = a b\n[services 'a b']\ns3 =\n"
              "  endpoint_url = http://lab\n[default]\nregion = x-2\n[profile default]\nregion = x-3\n");
  const Variables files = {{"AWS_CONFIG_FILE", "conf"}, {"AWS_SHARED_CREDENTIALS_FILE", "cred"}};
  const auto with = [&](Variables more) {
    more.insert(files.begin(), files.end());
    return options_of(more, fs);
  };
  EXPECT_EQ(with({{"AWS_DEFAULT_PROFILE", "ml"}}).access_key, "ml");
  EXPECT_EQ(with({{"AWS_DEFAULT_PROFILE", "ml"}, {"AWS_PROFILE", "my team"}}).access_key, "ml") << "as botocore has it";
  EXPECT_EQ(with({{"AWS_PROFILE", "my team"}}).access_key, "team");
  EXPECT_EQ(with({{"AWS_PROFILE", "my team"}}).region, "x-1");
  EXPECT_EQ(with({{"AWS_PROFILE", "my team"}}).endpoint, "http://lab");
  EXPECT_EQ(with(kKeys).region, "x-3") << "the section with the word profile comes first";
  expect_error(ErrorCode::kUnauthenticated,
               [&] {
                 with({{"AWS_DEFAULT_PROFILE", "nobody"}});
               },
               {"'nobody' of AWS_DEFAULT_PROFILE"});
}

TEST(S3Options, ConfiguredEndpointsAreIgnoredOnDemand) {
  FaultFileSystem fs;
  fs.put_file("conf", "[default]\nendpoint_url = http://lab\nignore_configured_endpoint_urls = True\n");
  const Variables endpoint = with_keys({{"AWS_ENDPOINT_URL", "http://host"}});
  for (const std::string value : {"true", "TRUE"}) {
    Variables variables = endpoint;
    variables["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = value;
    EXPECT_EQ(read(variables).endpoint, "");
  }
  Variables variables = endpoint;
  variables["AWS_CONFIG_FILE"] = "conf";
  EXPECT_EQ(options_of(variables, fs).endpoint, "");
  variables["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "false";
  EXPECT_EQ(options_of(variables, fs).endpoint, "http://host") << "the environment comes first";
}

TEST(S3Options, TheOldNameOfTheTokenAndEndpointsInUpperCaseAreTaken) {
  EXPECT_EQ(read(with_keys({{"AWS_SECURITY_TOKEN", "old"}})).session_token, "old");
  EXPECT_EQ(read(with_keys({{"AWS_SECURITY_TOKEN", "old"}, {"AWS_SESSION_TOKEN", "new"}})).session_token, "old");
  EXPECT_EQ(read(with_keys({{"AWS_ENDPOINT_URL", "HTTP://host"}})).endpoint, "HTTP://host");
  EXPECT_EQ(read(with_keys({{"AWS_ENDPOINT_URL", "Https://host"}})).endpoint, "Https://host");
}

TEST(S3Options, MissingKeysAreToldWithWhatToDo) {
  expect_error(ErrorCode::kUnauthenticated,
               [] {
                 read({{"AWS_EC2_METADATA_DISABLED", "true"}});
               },
               {"AWS_ACCESS_KEY_ID"});
  expect_error(ErrorCode::kUnauthenticated, [] { read({{"AWS_ACCESS_KEY_ID", "id"}}); }, {"environment", "only one"});
  expect_error(ErrorCode::kUnauthenticated, [] { read({{"AWS_PROFILE", "nobody"}}); }, {"'nobody'"});
  FaultFileSystem fs;
  fs.put_file("cred", "[default]\naws_secret_access_key = hidden\n");
  const std::string words = words_of([&] { options_of({{"AWS_SHARED_CREDENTIALS_FILE", "cred"}}, fs); });
  EXPECT_NE(words.find("profile 'default'"), std::string::npos) << words;
  EXPECT_EQ(words.find("hidden"), std::string::npos) << words;
}

TEST(S3Options, FilesThatAreNoneAreRefusedByLineWithoutTheirValues) {
  for (const std::string text :
       {"hidden", "[default\nhidden = x", "[]\n", "hidden = x", "[default]\n= hidden", "\n\n[ ]"}) {
    SCOPED_TRACE(text);
    FaultFileSystem fs;
    fs.put_file("cred", text);
    const std::string words = words_of([&] { options_of({{"AWS_SHARED_CREDENTIALS_FILE", "cred"}}, fs); });
    EXPECT_NE(words.find("corrupt: cred, line "), std::string::npos) << words;
    EXPECT_EQ(words.find("hidden"), std::string::npos) << words;
  }
}

TEST(S3Options, UnreadableFilesAreErrors) {
  FaultFileSystem fs;
  fs.put_file("cred", "[default]\n");
  for (std::uint64_t at = 0; at < 5; ++at) {
    fs.reset_log();
    fs.fail_at(at, EACCES);
    expect_error(ErrorCode::kIo, [&] { options_of({{"AWS_SHARED_CREDENTIALS_FILE", "cred"}}, fs); }, {"cred"});
  }
}

TEST(S3Options, RefuseWhatNoRequestCanHold) {
  for (const std::string location : {"", "bucket", "s3:/bucket", "s3://", "s3:///prefix", "s3://ab", "s3://buc ket",
                                     "s3://bucket//x", "s3://bucket/../x", "s3://bucket/a b", "s3://bucket/a?b"}) {
    expect_error(ErrorCode::kUsage, [&] { read(kKeys, location); });
  }
  EXPECT_EQ(read(kKeys, "s3://bucket").prefix, "");
  EXPECT_EQ(read(kKeys, "s3://bucket/").prefix, "");
  EXPECT_EQ(read(kKeys, "s3://bucket/a/").prefix, "a");
  for (const std::string endpoint : {"ftp://host", "host:80", "http://", "http:///x", "http://u:p@host",
                                     "http://host?q", "http://ho st", "http://host\r\nX: y"}) {
    expect_error(ErrorCode::kUsage, [&] { read(with_keys({{"AWS_ENDPOINT_URL_S3", endpoint}})); }, {"endpoint"});
  }
  expect_error(ErrorCode::kUsage, [] { read(with_keys({{"AWS_REGION", "eu west"}})); }, {"region"});
  expect_error(ErrorCode::kUnauthenticated, [] { read(with_keys({{"AWS_SESSION_TOKEN", "a\r\nX-Evil: b"}})); });
  expect_error(ErrorCode::kUnauthenticated, [] {
    read({{"AWS_ACCESS_KEY_ID", "a b"}, {"AWS_SECRET_ACCESS_KEY", "c"}});
  });
}

TEST(S3Options, RefuseSizesAndTimesOutOfRange) {
  const S3Options good = read(kKeys);
  const auto refused = [&](const auto& change) {
    S3Options options = good;
    change(options);
    expect_error(ErrorCode::kUsage, [&] { require_s3_options(options); });
  };
  refused([](S3Options& options) { options.part_bytes = (5 << 20) - 1; });
  refused([](S3Options& options) { options.part_bytes = ~std::uint64_t{0}; });
  refused([](S3Options& options) { options.connections = 0; });
  refused([](S3Options& options) { options.connections = 1000; });
  refused([](S3Options& options) { options.deadline = std::chrono::milliseconds(0); });
  refused([](S3Options& options) { options.stall_timeout = std::chrono::milliseconds(-1); });
  refused([](S3Options& options) { options.connect_timeout = std::chrono::milliseconds::max(); });
  S3Options anonymous = good;
  anonymous.access_key = anonymous.secret_key = "";
  expect_error(ErrorCode::kUnauthenticated, [&] { require_s3_options(anonymous); });
  anonymous.anonymous = true;
  require_s3_options(anonymous);
}

TEST(S3Options, AddressesAreOfTheBucketOrItsHost) {
  S3Options options = read(with_keys({{"AWS_REGION", "eu-west-1"}}));
  EXPECT_EQ(s3_address(options).object_root, "https://bucket.s3.eu-west-1.amazonaws.com/some/prefix");
  EXPECT_EQ(s3_address(options).location, "s3://bucket/some/prefix");
  options.path_style = true;
  EXPECT_EQ(s3_address(options).bucket_url, "https://s3.eu-west-1.amazonaws.com/bucket");
  options.endpoint = "http://127.0.0.1:9000/";
  options.path_style.reset();
  EXPECT_EQ(s3_address(options).object_root, "http://127.0.0.1:9000/bucket/some/prefix");
  options.path_style = false;
  options.prefix = "";
  EXPECT_EQ(s3_address(options).object_root, "http://bucket.127.0.0.1:9000");
  EXPECT_EQ(s3_address(options).key_prefix, "");
}

}  // namespace
}  // namespace sparsecast::test
