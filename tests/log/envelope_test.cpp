// SPDX-License-Identifier: Apache-2.0

// The envelope of records: one form; what is signed; which error an attack gets.

#include "log/format/envelope.hpp"

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/log_forge.hpp"

namespace sparsecast::test {
namespace {

using Json = nlohmann::json;

Bytes with_hash(const std::string& body) {
  const std::string hash = hex_of(content_hash(std::as_bytes(std::span(std::string_view(body)))).bytes);
  return bytes_of(body + "blake2b-256 " + hash + "\n");
}

Bytes with_json(const std::string& json) { return with_hash("sparsecast-log 1 floor\n" + json + "\n"); }

void expect_refused(const Bytes& record, ErrorCode code = ErrorCode::kCorrupt) {
  SCOPED_TRACE(text_of(record).substr(0, 200));
  expect_error(code, [&] { open_record("floor", record, "name"); }, {"name"});
}

TEST(LogEnvelope, OpensWhatItChecksummed) {
  ContentHash hash;
  const auto key = fixed_key(1);
  const Bytes record = make_record("floor", {{"a", 1}, {"b", "text"}}, key.get(), &hash);
  const OpenedRecord opened = open_record("floor", record, "name");
  EXPECT_EQ(opened.fields.at("a"), 1);
  EXPECT_EQ(opened.fields.at("b"), "text");
  EXPECT_EQ(opened.signer, key->public_key());
  EXPECT_EQ(opened.hash, hash);
  EXPECT_EQ(open_record("floor", make_record("floor", {{"a", 1}}, nullptr), "name").signer, std::nullopt);
}

TEST(LogEnvelope, RefusesJsonInAnyOtherForm) {
  EXPECT_NO_THROW(open_record("floor", with_json(R"({"a":1,"signer":""})"), "name"));
  for (const char* json : {R"({"a": 1,"signer":""})",
                           R"({"a":1,"signer":""} )",
                           R"( {"a":1,"signer":""})",
                           R"({"signer":"","a":1})",
                           R"({"a":1,"a":1,"signer":""})",
                           R"({"a":1,"a":2,"signer":""})",
                           R"({"a":01,"signer":""})",
                           R"({"a":1e0,"signer":""})",
                           R"({"a":+1,"signer":""})",
                           R"({"a":-0,"signer":""})",
                           R"({"\u0061":1,"signer":""})",
                           R"({"a":"\u0041","signer":""})",
                           R"({"a":"\/","signer":""})",
                           R"({"a":1,"signer":"",})",
                           R"({"a":1,/**/"signer":""})",
                           R"([{"a":1,"signer":""}])",
                           R"("signer")",
                           R"(1)",
                           R"(null)",
                           R"({)",
                           R"({"a":NaN,"signer":""})",
                           R"({"a":"\ud800","signer":""})",
                           R"({"a":1})",
                           R"({"a":1,"signer":null})",
                           R"({"a":1,"signer":1})",
                           ""}) {
    expect_refused(with_json(json));
  }
  expect_refused(with_json("{\"a\":\"\xFF\",\"signer\":\"\"}"));
  expect_refused(with_json("{\"a\":\"\x01\",\"signer\":\"\"}"));
  expect_refused(with_json(std::string("{\"a\":\"\0\",\"signer\":\"\"}", 21)));
  expect_refused(with_json("\xEF\xBB\xBF{\"a\":1,\"signer\":\"\"}"));
}

TEST(LogEnvelope, RefusesNestingBeforeItIsParsed) {
  const std::string deep = "{\"a\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + ",\"signer\":\"\"}";
  expect_refused(with_json(deep));
  EXPECT_NO_THROW(open_record("floor", with_json(R"({"a":[[[[[[[1]]]]]]],"signer":""})"), "name"));
  expect_refused(with_json(R"({"a":[[[[[[[[1]]]]]]]],"signer":""})"));
}

TEST(LogEnvelope, RefusesLinesThatAreNotItsOwn) {
  const std::string good = text_of(with_json(R"({"a":1,"signer":""})"));
  for (const std::string& text : {std::string(), std::string("\n"), good.substr(0, good.size() - 1), good + "\n",
                                  good + "x", good + good, "\n" + good, good + "signature \n"}) {
    expect_refused(bytes_of(text));
  }
  for (const char* body :
       {"sparsecast-log 1 floor\r\n{\"a\":1,\"signer\":\"\"}\n", "sparsecast-log  1 floor\n{\"a\":1,\"signer\":\"\"}\n",
        "sparsecast-log floor\n{\"a\":1,\"signer\":\"\"}\n", "sparsecast-log -1 floor\n{\"a\":1,\"signer\":\"\"}\n",
        "sparsecast-log 1 Floor\n{\"a\":1,\"signer\":\"\"}\n", "sparsecast-log 1\n{\"a\":1,\"signer\":\"\"}\n",
        "Sparsecast-log 1 floor\n{\"a\":1,\"signer\":\"\"}\n",
        "sparsecast-log 12345678901234567890 floor\n{\"a\":1,\"signer\":\"\"}\n"}) {
    expect_refused(with_hash(body));
  }
}

TEST(LogEnvelope, TellsNewerFormatsAndOtherKinds) {
  expect_refused(with_hash("sparsecast-log 2 floor\n{\"a\":1,\"signer\":\"\"}\n"), ErrorCode::kUnsupported);
  expect_refused(with_hash("sparsecast-log 01 floor\n{\"a\":1,\"signer\":\"\"}\n"), ErrorCode::kUnsupported);
  expect_refused(make_record("catalog", {{"a", 1}}, nullptr), ErrorCode::kReplayed);
}

TEST(LogEnvelope, RefusesARecordThatIsTooLarge) {
  const Bytes large(kMaxRecordBytes + 1, std::byte{'a'});
  expect_refused(large);
}

TEST(LogEnvelope, SignsEverythingBeforeTheSignature) {
  const auto key = fixed_key(1);
  const RecordParts good = RecordParts::of(make_record("floor", {{"a", 1}}, key.get()));
  EXPECT_NO_THROW(open_record("floor", good.record(), "name"));

  RecordParts value = good;
  value.fields["a"] = 2;
  value.rehash();
  expect_refused(value.record(), ErrorCode::kForeignKey);

  RecordParts another_signer = good;
  another_signer.fields["signer"] = to_string(fixed_key(2)->public_key());
  another_signer.rehash();
  expect_refused(another_signer.record(), ErrorCode::kForeignKey);

  RecordParts another_algorithm = good;
  another_algorithm.fields["signer"] = "rsa:" + good.fields["signer"].get<std::string>().substr(8);
  another_algorithm.rehash();
  expect_refused(another_algorithm.record(), ErrorCode::kUnsupported);

  RecordParts another_kind = good;
  another_kind.first = "sparsecast-log 1 lease";
  another_kind.rehash();
  expect_error(ErrorCode::kForeignKey, [&] { open_record("lease", another_kind.record(), "name"); });

  RecordParts cut = good;
  cut.signature.clear();
  expect_refused(cut.record(), ErrorCode::kUnsigned);

  RecordParts not_named = good;
  not_named.fields["signer"] = "";
  not_named.rehash();
  expect_refused(not_named.record());

  RecordParts of_another = good;
  of_another.signature = RecordParts::of(make_record("floor", {{"a", 1}}, fixed_key(2).get())).signature;
  expect_refused(of_another.record(), ErrorCode::kForeignKey);
}

TEST(LogEnvelope, RefusesWeakKeysWhoseSignaturesAnybodyCanMake) {
  // The identity of the curve: R = identity, S = 0 would "sign" every message.
  RecordParts parts = RecordParts::of(make_record("floor", {{"a", 1}}, nullptr));
  parts.fields["signer"] = "ed25519:01" + std::string(62, '0');
  parts.rehash();
  parts.signature = "01" + std::string(126, '0');
  expect_refused(parts.record(), ErrorCode::kForeignKey);
}

}  // namespace
}  // namespace sparsecast::test
