// SPDX-License-Identifier: Apache-2.0

// The table of attacks of docs/delta-log.md, against every field of every record that readers believe: somebody who may
// write to the store, and has no key, or a foreign or retired one, is refused by the attack's name.

#include <set>

#include "log/attack_fixture.hpp"

namespace sparsecast::test {
namespace {

ErrorCode by_signature(Forgery forgery) {
  return forgery == Forgery::kUnsigned ? ErrorCode::kUnsigned : ErrorCode::kForeignKey;
}

TEST_F(LogAttacks, OnTheHeadAreRefusedAtFirstContact) {
  attack(
      commit_key(kHead),
      [](const std::string& field, Forgery forgery) -> Codes {
        if (field == "version") return {ErrorCode::kReplayed};
        // These fields may be refused because they do not fit the previous commit.
        const std::set<std::string> chained = {"stream", "epoch", "publisher",   "kind",        "previous",
                                               "table",  "keys",  "base_digest", "keys_version"};
        if (chained.contains(field)) {
          return {by_signature(forgery), ErrorCode::kMixed, ErrorCode::kReplayed, ErrorCode::kRolledBack};
        }
        return {by_signature(forgery)};
      },
      [&] { LogReader(store_, trust()).head(); });
  EXPECT_EQ(cases_, 17 * 5);
}

TEST_F(LogAttacks, OnTheHeadAreRefusedByWhoHasSeenIt) {
  attack(
      commit_key(kHead),
      [](const std::string& field, Forgery) -> Codes {
        if (field == "version" || field == "stream") return {ErrorCode::kReplayed};
        return {ErrorCode::kRolledBack};
      },
      [&] {
        LogReader reader(store_, trust());
        reader.remember(commits_.back());
        reader.head();
      });
  EXPECT_EQ(cases_, 17 * 5);
}

TEST_F(LogAttacks, OnACommitInTheMiddleAreRefused) {
  attack(
      commit_key(3),
      [](const std::string& field, Forgery forgery) -> Codes {
        if (field == "version" || field == "stream") return {ErrorCode::kReplayed};
        return {by_signature(forgery), ErrorCode::kMixed};
      },
      [&] {
        LogReader reader(store_, trust());
        reader.head();
        reader.commit(3);
        reader.commit(4);
      });
  EXPECT_EQ(cases_, 17 * 5);
}

TEST_F(LogAttacks, OnTheGenesisAreRefusedThroughTheChain) {
  attack(
      commit_key(0),
      [](const std::string& field, Forgery forgery) -> Codes {
        if (field == "version" || field == "stream") return {ErrorCode::kReplayed};
        return {by_signature(forgery), ErrorCode::kMixed, ErrorCode::kCorrupt};
      },
      [&] {
        LogReader reader(store_, trust());
        reader.head();
        for (std::uint64_t v = kHead; v-- > 0;) reader.commit(v);
      });
}

TEST_F(LogAttacks, OnTheFloorAreRefused) {
  attack(
      kFloorKey,
      [](const std::string& field, Forgery forgery) -> Codes {
        if (field == "stream") return {ErrorCode::kReplayed};
        return {by_signature(forgery)};
      },
      [&] { LogReader(store_, trust()).floor(); });
  EXPECT_EQ(cases_, 2 * 5);
}

TEST_F(LogAttacks, OnTheCatalogAreRefusedOrMakeItUnusable) {
  attack(
      kCatalogKey,
      [](const std::string& field, Forgery forgery) -> Codes {
        if (field == "stream") return {ErrorCode::kReplayed};
        return {by_signature(forgery)};
      },
      [&] {
        LogReader reader(store_, trust());
        reader.remember(commits_.back());
        // A torn catalog is none; readers then go by commits alone.
        if (!reader.catalog()) throw Error(ErrorCode::kCorrupt, "none");
      });
  EXPECT_EQ(cases_, 5 * 5);
}

TEST_F(LogAttacks, OnAnAnchorAreRefusedUnderItsName) {
  attack(
      anchor_directory(anchor_ref_) + "/anchor",
      [](const std::string&, Forgery) -> Codes { return {ErrorCode::kMixed}; },
      [&] {
        LogReader reader(store_, trust());
        reader.head();
        reader.anchor(anchor_ref_);
      });
  EXPECT_EQ(cases_, 6 * 5);
}

TEST_F(LogAttacks, OnAnAnchorAreRefusedUnderANameOfTheirOwn) {
  const RecordParts parts = RecordParts::of(anchor_record_);
  for (const auto& [field, value] : parts.fields.items()) {
    if (field == "signer" || field == "files") continue;
    for (const Forgery forgery : {Forgery::kSignedByStranger, Forgery::kUnsigned}) {
      RecordParts lie = parts;
      lie.fields[field] = altered(field, value);
      const Bytes record = forged(lie, forgery);
      const AnchorRef ref{4, parse_log_anchor(record, "anchor").record_hash, 10};
      put_anchor(ref, record);
      expect_refused({by_signature(forgery), ErrorCode::kMixed, ErrorCode::kReplayed}, field, [&] {
        LogReader reader(store_, trust());
        reader.head();
        reader.anchor(ref);
      });
    }
  }
  EXPECT_EQ(cases_, 5 * 2);
}

}  // namespace
}  // namespace sparsecast::test
