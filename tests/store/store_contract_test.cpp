// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "store/store_contract.hpp"
#include "support/expect_error.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

void check_small_objects(ObjectStore& store) {
  EXPECT_EQ(store.get("a/one", 100), std::nullopt);
  EXPECT_EQ(store.size("a/one"), std::nullopt);
  store.put("a/one", bytes_of_text("first"));
  EXPECT_EQ(text_of(store.get("a/one", 5)), "first");
  EXPECT_EQ(store.size("a/one"), 5U);
  store.put("a/one", bytes_of_text("second"));
  EXPECT_EQ(text_of(store.get("a/one", 100)), "second");
  store.put("a/empty", {});
  EXPECT_EQ(text_of(store.get("a/empty", 0)), "");
  EXPECT_EQ(store.size("a/empty"), 0U);
  expect_error(ErrorCode::kCorrupt, [&] { store.get("a/one", 5); }, {"a/one", "6 bytes"});
}

void check_creation(ObjectStore& store) {
  EXPECT_TRUE(store.put_if_absent("a/new", bytes_of_text("mine")));
  EXPECT_FALSE(store.put_if_absent("a/new", bytes_of_text("other")));
  EXPECT_FALSE(store.put_if_absent("a/new", bytes_of_text("mine")));
  EXPECT_EQ(text_of(store.get("a/new", 100)), "mine");
  EXPECT_FALSE(store.put_if_absent("a/one", bytes_of_text("other")));
  EXPECT_EQ(text_of(store.get("a/one", 100)), "second");
}

void check_ranges(ObjectStore& store, std::uint64_t large_bytes) {
  const Bytes content = counting_bytes(large_bytes, 1);
  store.put("b/large", content);
  EXPECT_EQ(store.size("b/large"), content.size());
  EXPECT_TRUE(store.get("b/large", large_bytes) == content);
  for (const auto& [offset, length] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 1}, {0, large_bytes}, {1, large_bytes - 1}, {large_bytes - 1, 1}, {7, 100}, {large_bytes, 0}, {3, 0}}) {
    Bytes part(length);
    store.get_range("b/large", offset, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), content.begin() + static_cast<std::ptrdiff_t>(offset)))
        << offset << " " << length;
  }
  Bytes two(2);
  expect_error(ErrorCode::kCorrupt, [&] { store.get_range("b/large", large_bytes - 1, two); }, {"b/large"});
  expect_error(ErrorCode::kCorrupt, [&] { store.get_range("b/large", large_bytes + 100, two); }, {"b/large"});
  expect_error(ErrorCode::kCorrupt, [&] { store.get_range("b/large", ~std::uint64_t{0}, two); }, {"b/large"});
  expect_error(ErrorCode::kGone, [&] { store.get_range("b/none", 0, two); }, {"b/none"});
}

void check_uploads(ObjectStore& store, std::uint64_t large_bytes) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{10}, large_bytes}) {
    const Bytes content = counting_bytes(size, 2);
    {
      const auto upload = store.upload("b/uploaded", size / 3);
      for (std::uint64_t at = 0; at < size;) {
        const std::uint64_t step = std::min<std::uint64_t>(size - at, 1 + at / 2);
        upload->append(ConstBytes(content).subspan(at, step));
        at += step;
      }
      upload->commit();
      expect_error(ErrorCode::kUsage, [&] { upload->commit(); });
      expect_error(ErrorCode::kUsage, [&] { upload->append(bytes_of_text("x")); });
    }
    EXPECT_TRUE(store.get("b/uploaded", large_bytes) == content) << size;
  }
  {
    const auto dropped = store.upload("b/dropped", large_bytes);
    dropped->append(counting_bytes(large_bytes, 3));
  }
  EXPECT_EQ(store.size("b/dropped"), std::nullopt);
}

void check_listing_and_removal(ObjectStore& store, std::uint64_t large_bytes) {
  store.put("b/larger/inner", bytes_of_text("i"));
  const auto described = [&](const std::string& prefix) {
    std::string text;
    for (const StoredObject& object : store.list(prefix)) text += object.key + "=" + std::to_string(object.bytes) + " ";
    return text;
  };
  const std::string large = "b/large=" + std::to_string(large_bytes) + " b/larger/inner=1 ";
  const std::string uploaded = "b/uploaded=" + std::to_string(large_bytes) + " ";
  EXPECT_EQ(described(""), "a/empty=0 a/new=4 a/one=6 " + large + uploaded);
  EXPECT_EQ(described("a/"), "a/empty=0 a/new=4 a/one=6 ");
  EXPECT_EQ(described("b/large"), large);
  EXPECT_EQ(described("b/larger/"), "b/larger/inner=1 ");
  EXPECT_EQ(described("c"), "");
  const auto age = store.wall_now() - store.list("a/one").at(0).modified;
  EXPECT_LT(std::chrono::abs(age), std::chrono::hours(1));
  for (const StoredObject& object : store.list("")) store.remove(object.key);
  EXPECT_EQ(described(""), "");
  store.remove("a/one");
}

void check_hostile_keys(ObjectStore& store) {
  for (const std::string& key :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."), std::string(".."),
        std::string("../a"), std::string("a/../b"), std::string("a/./b"), std::string("a b"), std::string("a\\b"),
        std::string("a\0b", 3), std::string("a%2fb"), std::string("\xc3\xa4"), std::string("a?b"), std::string("a&b"),
        std::string(513, 'k')}) {
    SCOPED_TRACE(key);
    expect_error(ErrorCode::kUsage, [&] { store.put(key, {}); }, {"key"});
    expect_error(ErrorCode::kUsage, [&] { store.put_if_absent(key, {}); });
    expect_error(ErrorCode::kUsage, [&] { store.upload(key, 0); });
    expect_error(ErrorCode::kUsage, [&] { store.get(key, 1); });
    expect_error(ErrorCode::kUsage, [&] { store.size(key); });
    expect_error(ErrorCode::kUsage, [&] { store.get_range(key, 0, {}); });
    expect_error(ErrorCode::kUsage, [&] { store.remove(key); });
  }
}

}  // namespace

Bytes counting_bytes(std::uint64_t size, std::uint64_t seed) {
  Bytes bytes(size);
  Random random(seed);
  std::uint64_t word = 0;
  for (std::uint64_t i = 0; i < size; ++i) {
    if (i % 8 == 0) word = random.next();
    bytes[i] = static_cast<std::byte>(word >> (8 * (i % 8)));
  }
  return bytes;
}

void check_store_contract(ObjectStore& store, std::uint64_t large_bytes) {
  EXPECT_TRUE(store.list("").empty());
  check_small_objects(store);
  check_creation(store);
  check_ranges(store, large_bytes);
  check_uploads(store, large_bytes);
  check_listing_and_removal(store, large_bytes);
  check_hostile_keys(store);
  EXPECT_LT(std::chrono::abs(store.wall_now() - std::chrono::system_clock::now()), std::chrono::hours(1));
}

}  // namespace sparsecast::test
