// SPDX-License-Identifier: Apache-2.0

// Keys and signatures: RFC 8032's own vector, and the files that keys are kept in.

#include "sparsecast/delta_log.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "log/format/hex.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"
#include "support/log_forge.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

const std::string kSeed = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb";  // RFC 8032, test 2.
const std::string kPublic = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
const std::string kSignature =
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";

void put_private(FileSystem& fs, const std::string& path, const std::string& text) {
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kCreatePrivate);
  file->write_at(0, std::as_bytes(std::span(std::string_view(text))));
}

TEST(SigningKeys, SignAsTheStandardSays) {
  FaultFileSystem fs;
  put_private(fs, "key", "ed25519-secret:" + kSeed + "\n");
  const auto key = SigningKey::load(fs, "key");
  EXPECT_EQ(to_string(key->public_key()), "ed25519:" + kPublic);
  const Bytes message{std::byte{0x72}};
  const Signature signature = key->sign(message);
  EXPECT_EQ(hex_of(signature), kSignature);
  EXPECT_TRUE(verify_signature(key->public_key(), message, signature));
  for (std::size_t bit = 0; bit < 512; ++bit) {
    Signature altered = signature;
    altered[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(verify_signature(key->public_key(), message, altered)) << bit;
  }
  EXPECT_FALSE(verify_signature(key->public_key(), Bytes{std::byte{0x73}}, signature));
  EXPECT_FALSE(verify_signature(fixed_key(1)->public_key(), message, signature));
}

TEST(SigningKeys, ComeBackFromTheirFile) {
  const TemporaryDirectory directory;
  FileSystem& fs = FileSystem::posix();
  const auto key = SigningKey::generate();
  key->save(fs, directory / "key");
  EXPECT_EQ(SigningKey::load(fs, directory / "key")->public_key(), key->public_key());
  EXPECT_NE(SigningKey::generate()->public_key(), key->public_key());
  struct stat status {};
  ASSERT_EQ(::stat((directory / "key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST(SigningKeys, AreNeverWrittenOverAnotherFile) {
  const TemporaryDirectory directory;
  FileSystem& fs = FileSystem::posix();
  const auto key = SigningKey::generate();
  key->save(fs, directory / "key");
  expect_error(ErrorCode::kIo, [&] { SigningKey::generate()->save(fs, directory / "key"); });
  EXPECT_EQ(SigningKey::load(fs, directory / "key")->public_key(), key->public_key());
}

TEST(SigningKeys, ThatOthersMayReadAreRefused) {
  const TemporaryDirectory directory;
  FileSystem& fs = FileSystem::posix();
  const std::string path = directory / "key";
  SigningKey::generate()->save(fs, path);
  for (const unsigned mode : {0640U, 0604U, 0660U, 0610U, 0601U, 0602U, 0620U, 0777U}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_FALSE(fs.is_private(path)) << mode;
    expect_error(ErrorCode::kUsage, [&] { SigningKey::load(fs, path); }, {path, "chmod 600"});
  }
  for (const unsigned mode : {0600U, 0700U}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(fs.is_private(path)) << mode;
    EXPECT_NO_THROW(SigningKey::load(fs, path));
  }
}

TEST(SigningKeys, FromTornAndWrongFilesAreRefusedWithoutShowingThem) {
  FaultFileSystem fs;
  const std::string good = "ed25519-secret:" + kSeed;
  std::vector<std::string> texts;
  for (std::size_t size = 0; size < good.size(); ++size) texts.push_back(good.substr(0, size));
  texts.push_back(good + "0");
  texts.push_back(good + "\n" + good);
  texts.push_back("ed25519:" + kSeed);
  texts.push_back("rsa-secret:" + kSeed);
  texts.push_back("ed25519-secret:" + std::string(64, 'G'));
  texts.push_back("ed25519-secret:" + std::string(64, 'A'));
  texts.push_back(std::string((1U << 20) + 1, 'a'));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string path = "key" + std::to_string(i);
    put_private(fs, path, texts[i]);
    try {
      SigningKey::load(fs, path);
      ADD_FAILURE() << texts[i];
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage) << error.what();
      EXPECT_EQ(std::string(error.what()).find(kSeed.substr(0, 8)), std::string::npos) << error.what();
    }
  }
  expect_error(ErrorCode::kIo, [&] { SigningKey::load(fs, "absent"); });
}

TEST(SigningKeys, AreOnDiskWhenSaveReturns) {
  FaultFileSystem fs;
  const auto key = SigningKey::generate();
  key->save(fs, "key");
  const auto after = fs.durable_state();
  EXPECT_EQ(SigningKey::load(*after, "key")->public_key(), key->public_key());
}

TEST(PublicKeys, HaveOneForm) {
  const std::string text = "ed25519:" + kPublic;
  EXPECT_EQ(to_string(public_key_from_string(text)), text);
  for (const std::string& other : {std::string(), kPublic, "ed25519:" + kPublic.substr(1), text + "0", text + " ",
                                   "ed25519:" + std::string(64, 'G'), "ed25519:" + std::string(64, 'A')}) {
    expect_error(ErrorCode::kUsage, [&] { public_key_from_string(other); });
  }
  for (const std::string& other : {"ed448:" + kPublic, "ED25519:" + kPublic, ":" + kPublic, " ed25519:" + kPublic}) {
    expect_error(ErrorCode::kUnsupported, [&] { public_key_from_string(other); });
  }
}

TEST(PublicKeys, AreReadFromFilesWithComments) {
  FaultFileSystem fs;
  const std::string one = to_string(fixed_key(1)->public_key());
  const std::string two = to_string(fixed_key(2)->public_key());
  fs.put_file("keys", "# trainers\n\n  " + one + "\t\r\n#" + two + "\n" + two);
  EXPECT_EQ(read_public_keys(fs, "keys"),
            (std::vector<PublicKey>{fixed_key(1)->public_key(), fixed_key(2)->public_key()}));
  fs.put_file("bad", one + "\n\n" + two.substr(1) + "\n");
  expect_error(ErrorCode::kUnsupported, [&] { read_public_keys(fs, "bad"); }, {"bad", "line 3"});
  fs.put_file("empty", "");
  EXPECT_TRUE(read_public_keys(fs, "empty").empty());
  expect_error(ErrorCode::kIo, [&] { read_public_keys(fs, "absent"); });
}

}  // namespace
}  // namespace sparsecast::test
