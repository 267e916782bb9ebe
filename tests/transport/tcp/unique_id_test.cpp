// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/unique_id.hpp"

#include <gmock/gmock.h>

#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

class UniqueIdTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "built without libsodium";
  }
};

UniqueIdOptions on_loopback() {
  UniqueIdOptions options;
  options.interface = "lo";
  return options;
}

TEST_F(UniqueIdTest, AGroupMeetsOnAnIdOnce) {
  const UniqueId id = make_unique_id(on_loopback());
  std::vector<std::jthread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const auto group = Rendezvous::meet(id, r, 3, 20s);
      EXPECT_EQ(group->rank(), r);
      EXPECT_EQ(text_from(group->broadcast(bytes_from("hello"), in(20s))), "hello");
    });
  }
  threads.clear();
  expect_error(ErrorCode::kUsage, [&] { Rendezvous::meet(id, 0, 3, 1s); }, {"made the unique id"});
  EXPECT_FALSE(forget_unique_id(id));
}

TEST_F(UniqueIdTest, IdsAreDistinctAndAForgottenOneClosesItsPort) {
  const UniqueId a = make_unique_id(on_loopback());
  const UniqueId b = make_unique_id(on_loopback());
  EXPECT_NE(a, b);
  EXPECT_NE(parse_unique_id(a).secret, parse_unique_id(b).secret);
  EXPECT_TRUE(forget_unique_id(a));
  EXPECT_TRUE(forget_unique_id(b));
  expect_error(ErrorCode::kTimeout, [&] { Rendezvous::meet(a, 1, 2, 300ms); }, {"was not reached"});
}

TEST_F(UniqueIdTest, WithoutAnInterfaceItNamesOneOfThisMachine) {
  const UniqueId id = make_unique_id();
  EXPECT_FALSE(parse_unique_id(id).host.empty());
  EXPECT_NE(parse_unique_id(id).port, 0);
  forget_unique_id(id);
}

TEST_F(UniqueIdTest, TooManyOpenIdsAreRefused) {
  std::vector<UniqueId> ids;
  expect_error(ErrorCode::kUsage,
               [&] {
                 for (int i = 0; i < 1000; ++i) ids.push_back(make_unique_id(on_loopback()));
               },
               {"unique ids are open"});
  for (const UniqueId& id : ids) EXPECT_TRUE(forget_unique_id(id));
}

TEST(UniqueIdBytes, ComeBackAsTheyWere) {
  UniqueIdContent content;
  content.generation = 7;
  content.port = 29400;
  content.secret.fill(std::byte{0x5A});
  content.host = std::string(63, 'h');
  const UniqueIdContent again = parse_unique_id(pack_unique_id(content));
  EXPECT_EQ(again.generation, 7U);
  EXPECT_EQ(again.port, 29400);
  EXPECT_EQ(again.secret, content.secret);
  EXPECT_EQ(again.host, content.host);
  content.host += 'h';
  expect_error(ErrorCode::kUsage, [&] { pack_unique_id(content); }, {"does not fit"});
}

TEST(UniqueIdBytes, EveryFlippedBitIsRefused) {
  UniqueIdContent content;
  content.port = 1;
  content.host = "::1";
  const UniqueId id = pack_unique_id(content);
  for (std::size_t bit = 0; bit < 8 * id.bytes.size(); ++bit) {
    UniqueId damaged = id;
    damaged.bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    expect_error(ErrorCode::kCorrupt, [&] { parse_unique_id(damaged); });
  }
  expect_error(ErrorCode::kCorrupt, [&] { parse_unique_id(UniqueId{}); });
}

TEST(UniqueIdBytes, ContentThatNamesNothingIsRefused) {
  UniqueIdContent content;
  content.host = "::1";
  expect_error(ErrorCode::kCorrupt, [&] { parse_unique_id(pack_unique_id(content)); });  // Port 0.
  content.port = 1;
  content.host = "two words";
  expect_error(ErrorCode::kCorrupt, [&] { parse_unique_id(pack_unique_id(content)); });
  content.host = std::string("a\0b", 3);
  expect_error(ErrorCode::kCorrupt, [&] { parse_unique_id(pack_unique_id(content)); });
}

}  // namespace
}  // namespace sparsecast::test
