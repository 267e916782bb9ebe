// SPDX-License-Identifier: Apache-2.0
#pragma once

// A signed log whose records are altered, and how the errors are checked.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "log/format/records.hpp"
#include "support/fault_fs.hpp"
#include "support/log_forge.hpp"
#include "support/log_scene.hpp"

namespace sparsecast::test {

using Json = nlohmann::json;
using Codes = std::vector<ErrorCode>;

/// Treatment of a record after a field was altered.
enum class Forgery { kNothingElse, kHashRemade, kSignatureCut, kSignedByStranger, kUnsigned };
constexpr Forgery kForgeries[] = {Forgery::kNothingElse, Forgery::kHashRemade, Forgery::kSignatureCut,
                                  Forgery::kSignedByStranger, Forgery::kUnsigned};

inline const char* name_of(Forgery forgery) {
  switch (forgery) {
    case Forgery::kNothingElse:
      return "nothing else";
    case Forgery::kHashRemade:
      return "hash remade, signature kept";
    case Forgery::kSignatureCut:
      return "hash remade, signature cut off";
    case Forgery::kSignedByStranger:
      return "signed by a stranger";
    case Forgery::kUnsigned:
      return "checksummed without a signature";
  }
  return "";
}

inline Bytes forged(RecordParts parts, Forgery forgery) {
  if (forgery == Forgery::kSignedByStranger) return parts.checksummed(fixed_key(99).get());
  if (forgery == Forgery::kUnsigned) return parts.checksummed(nullptr);
  if (forgery != Forgery::kNothingElse) parts.rehash();
  if (forgery == Forgery::kSignatureCut) parts.signature.clear();
  return parts.record();
}

/// Returns the errors that form and signature alone cause; empty if only the place in the log tells.
inline Codes codes_of(Forgery forgery) {
  switch (forgery) {
    case Forgery::kNothingElse:
      return {ErrorCode::kCorrupt};
    case Forgery::kHashRemade:
      return {ErrorCode::kForeignKey};
    case Forgery::kSignatureCut:
      return {ErrorCode::kUnsigned};
    default:
      return {};
  }
}

/// Another value of the same form.
inline Json altered(const std::string& field, const Json& value) {
  if (field == "kind") return "takeover";
  if (field == "keys") return Json::array({to_string(fixed_key(99)->public_key())});
  if (field == "keys_version") return value.get<std::uint64_t>() + 1;
  if (field == "changed") return value.get<std::uint64_t>() - 1;
  if (value.is_number()) return value.get<std::uint64_t>() + 1;
  if (value.is_array()) {
    Json list = value;
    const std::string hash(64, 'a');
    if (field == "files") {
      list[0][1] = list[0][1].get<std::uint64_t>() + 1;
    } else if (field == "deltas") {
      list.erase(0);
    } else {
      list.push_back(field == "anchors" ? Json::array({1, hash, 1}) : Json::array({0, 4, hash, 1}));
    }
    return list;
  }
  auto text = value.get<std::string>();
  if (text.size() == 32 || text.size() == 64) {
    text[5] = text[5] == '0' ? '1' : '0';
    return text;
  }
  return text + "x";
}

class LogAttacks : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kHead = 6;

  LogAttacks() {
    writer_.create(scene_.creation());
    for (std::uint64_t v = 1; v <= kHead; ++v) {
      const Bytes delta = scene_.delta(v - 1, v, v);
      commits_.push_back(writer_.publish(DeltaFile::over(delta, "delta"), "step"));
    }
    LogFloor floor;
    floor.stream = scene_.stream();
    floor.version = 0;
    store_->put(kFloorKey, pack(floor, key_.get()));
    anchor_.stream = scene_.stream();
    anchor_.version = 4;
    anchor_.commit = commits_[3].record_hash;
    anchor_.table_hash = scene_.table()->hash();
    anchor_.digest = scene_.digest(4);
    anchor_.files = {{"model.safetensors", 10, content_hash({})}};
    anchor_record_ = pack(anchor_, key_.get());
    anchor_ref_ = {4, anchor_.record_hash, anchor_.bytes()};
    put_anchor(anchor_ref_, anchor_record_);
  }

  static LogWriterOptions signing(std::shared_ptr<const SigningKey> key) {
    LogWriterOptions options;
    options.key = std::move(key);
    return options;
  }
  LogTrust trust() const { return {{key_->public_key()}, std::nullopt, std::chrono::milliseconds(0)}; }
  Bytes get(const std::string& key) { return *store_->get(key, kMaxRecordBytes); }
  void put_anchor(const AnchorRef& ref, const Bytes& record) { store_->put(anchor_directory(ref) + "/anchor", record); }

  /// Reads with `call`, and checks the error.
  template <class Call>
  void expect_refused(const Codes& codes, const std::string& what, const Call& call) {
    ++cases_;
    try {
      call();
      ADD_FAILURE() << what << ": not refused";
    } catch (const Error& error) {
      const bool named = std::find(codes.begin(), codes.end(), error.code()) != codes.end();
      EXPECT_TRUE(named) << what << ": " << to_string(error.code()) << ": " << error.what();
    }
  }

  /// Alters each field of the object at `key` in each way; `expected(field, forgery)` are the codes allowed.
  template <class Expected, class Call>
  void attack(const std::string& key, const Expected& expected, const Call& call) {
    const Bytes genuine = get(key);
    const RecordParts parts = RecordParts::of(genuine);
    for (const auto& [field, value] : parts.fields.items()) {
      if (field == "signer") continue;
      for (const Forgery forgery : kForgeries) {
        RecordParts lie = parts;
        lie.fields[field] = altered(field, value);
        ASSERT_NE(lie.fields[field], value);
        store_->put(key, forged(lie, forgery));
        const Codes strict = codes_of(forgery);
        expect_refused(strict.empty() ? expected(field, forgery) : strict, key + ": " + field + ", " + name_of(forgery),
                       call);
      }
    }
    store_->put(key, genuine);
  }

  FaultFileSystem fs_;
  std::shared_ptr<ObjectStore> store_ = open_directory_store(fs_, "log");
  std::shared_ptr<const SigningKey> key_ = fixed_key(1);
  LogScene scene_;
  LogReader writing_{store_};
  LogWriter writer_{writing_, signing(key_)};
  std::vector<LogCommit> commits_;
  LogAnchor anchor_;
  Bytes anchor_record_;
  AnchorRef anchor_ref_;
  int cases_ = 0;
};

}  // namespace sparsecast::test
