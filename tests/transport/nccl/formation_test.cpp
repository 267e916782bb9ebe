// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/formation.hpp"
#include "sync/frame_channel.hpp"

#include <gmock/gmock.h>

#include "tests/support/expect_error.hpp"
#include "transport/nccl/count_table.hpp"

namespace sparsecast::test {
namespace {

using testing::ElementsAre;

std::vector<NcclRankInfo> fresh(int size) {
  std::vector<NcclRankInfo> rank_infos(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    NcclRankInfo& p = rank_infos[static_cast<std::size_t>(r)];
    p.nccl_version = 22902;
    p.staging_bytes = 1 << 20;
    p.can_register = p.can_init_scalable = p.can_grow = 1;
    set_text(p.device, "GPU-" + std::to_string(r));
  }
  return rank_infos;
}

std::vector<NcclRankInfo> of_old_ranks(const std::vector<int>& old_ranks, int old_size) {
  std::vector<NcclRankInfo> rank_infos = fresh(static_cast<int>(old_ranks.size()));
  for (std::size_t i = 0; i < old_ranks.size(); ++i) {
    rank_infos[i].old_rank = old_ranks[i];
    rank_infos[i].old_channel = old_ranks[i] < 0 ? 0 : 42;
    rank_infos[i].old_size = old_ranks[i] < 0 ? 0 : old_size;
    rank_infos[i].can_shrink = old_ranks[i] < 0 ? 0 : 1;
  }
  return rank_infos;
}

TEST(Formation, NewRanksInitAndManyOfThemWithSeveralRoots) {
  EXPECT_EQ(plan_formation(fresh(8)).formation, Formation::kInit);
  const FormationPlan large = plan_formation(fresh(512));
  EXPECT_EQ(large.formation, Formation::kInitScalable);
  EXPECT_THAT(large.roots, ElementsAre(0, 128, 256, 384));
  auto one_lacks_it = fresh(512);
  one_lacks_it[77].can_init_scalable = 0;
  EXPECT_EQ(plan_formation(one_lacks_it).formation, Formation::kInit);
}

TEST(Formation, SurvivorsInTheirOrderShrink) {
  const FormationPlan plan = plan_formation(of_old_ranks({0, 2, 3, 6}, 8));
  EXPECT_EQ(plan.formation, Formation::kShrink);
  EXPECT_THAT(plan.lost, ElementsAre(1, 4, 5, 7));
}

TEST(Formation, AnythingElseThanSurvivorsInOrderIsMadeAnew) {
  EXPECT_EQ(plan_formation(of_old_ranks({2, 0, 3}, 4)).formation, Formation::kInit);
  EXPECT_EQ(plan_formation(of_old_ranks({0, 1, 2}, 3)).formation, Formation::kInit);
  EXPECT_EQ(plan_formation(of_old_ranks({0, 0}, 3)).formation, Formation::kInit);
  EXPECT_EQ(plan_formation(of_old_ranks({0, 5}, 3)).formation, Formation::kInit);
  auto another = of_old_ranks({0, 2}, 3);
  another[1].old_channel = 43;
  EXPECT_EQ(plan_formation(another).formation, Formation::kInit);
  auto aborted = of_old_ranks({0, 2}, 3);
  aborted[1].can_shrink = 0;
  EXPECT_EQ(plan_formation(aborted).formation, Formation::kInit);
}

TEST(Formation, AWholeChannelAndJoinersGrow) {
  EXPECT_EQ(plan_formation(of_old_ranks({0, 1, -1, -1}, 2)).formation, Formation::kGrow);
  EXPECT_EQ(plan_formation(of_old_ranks({0, 2, -1}, 3)).formation, Formation::kInit);
  EXPECT_EQ(plan_formation(of_old_ranks({-1, 0, 1}, 2)).formation, Formation::kInit);
  auto broken = of_old_ranks({0, 1, -1}, 2);
  broken[0].can_grow = 0;
  EXPECT_EQ(plan_formation(broken).formation, Formation::kInit);
}

TEST(Formation, WhatDiffersIsNamedWithBothRanks) {
  auto rank_infos = fresh(3);
  rank_infos[2].nccl_version = 22703;
  expect_error(ErrorCode::kGroupMismatch, [&] { check_rank_infos(rank_infos); },
               {"NCCL library", "rank 2 has 2.27.3", "rank 0 has 2.29.2"});
  rank_infos = fresh(3);
  set_text(rank_infos[1].settings, "NCCL_CUMEM_ENABLE=0\n");
  expect_error(ErrorCode::kGroupMismatch, [&] { check_rank_infos(rank_infos); },
               {"environment", "rank 1 has NCCL_CUMEM_ENABLE=0", "rank 0 has none"});
}

TEST(Formation, RanksShareAGpuOnlyWhereNcclAllowsIt) {
  auto rank_infos = fresh(2);
  set_text(rank_infos[1].device, "GPU-0");
  expect_error(ErrorCode::kGroupMismatch, [&] { check_rank_infos(rank_infos); }, {"ranks 0 and 1"});
  set_text(rank_infos[0].host_id, "r0");
  set_text(rank_infos[1].host_id, "r1");
  EXPECT_NO_THROW(check_rank_infos(rank_infos));
  set_text(rank_infos[0].host_id, "");
  EXPECT_NO_THROW(check_rank_infos(rank_infos));
  rank_infos = fresh(2);
  set_text(rank_infos[1].device, "GPU-0");
  for (NcclRankInfo& p : rank_infos) set_text(p.settings, "NCCL_MULTI_RANK_GPU_ENABLE=1\n");
  expect_error(ErrorCode::kGroupMismatch, [&] { check_rank_infos(rank_infos); });
  for (NcclRankInfo& p : rank_infos) p.nccl_version = 23007;
  EXPECT_NO_THROW(check_rank_infos(rank_infos));
}

constexpr TableLimits kLimits{5000, 1 << 20};

TEST(CountTable, SizesComeBackAndAddUp) {
  const std::vector<std::uint64_t> sizes = {3, 0, 1000};
  const CountTable table = make_table(7, sizes);
  EXPECT_NO_THROW(check_table(table, TableKind::kHostRecords, 7, kLimits));
  EXPECT_EQ(sizes_of(table), sizes);
  EXPECT_NO_THROW(check_sizes(table, sizes));
  for (const std::vector<std::uint64_t>& wrong :
       std::vector<std::vector<std::uint64_t>>{{3, 0, 999}, {3, 1, 1000}, {~std::uint64_t{0}, 4, 1000}, {1004, 0, 0}}) {
    expect_error(ErrorCode::kCorrupt, [&] { check_sizes(table, wrong); });
  }
}

TEST(CountTable, AHeadComesBackAndItsRestIsChecked) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, kTableHeadBytes, kTableHeadBytes + 3}) {
    const Bytes head(size, std::byte{9});
    const CountTable table = make_head_table(4, head, 12345);
    check_table(table, TableKind::kFrames, 4, {FrameTransfer::kMaxHeadBytes, 1 << 20});
    EXPECT_EQ(table.total, 12345U);
    Bytes back = head_of(table);
    ASSERT_EQ(back.size(), size);
    if (size > kTableHeadBytes) {
      expect_error(ErrorCode::kCorrupt, [&] { check_head(table, back); }, {"head of the frames is damaged"});
    }
    for (std::size_t i = kTableHeadBytes; i < size; ++i) back[i] = head[i];
    EXPECT_NO_THROW(check_head(table, back));
    EXPECT_EQ(back, head);
  }
}

TEST(CountTable, AnErrorAnnouncesNothingElse) {
  const CountTable table = make_error_table(4, static_cast<std::uint32_t>(ErrorCode::kDevice));
  EXPECT_NO_THROW(check_table(table, TableKind::kFrames, 4, kLimits));
  expect_error(ErrorCode::kGroupMismatch, [&] { check_table(table, TableKind::kHostRecords, 4, kLimits); });
}

TEST(CountTable, EveryDamagedByteIsNoticed) {
  const std::vector<std::uint64_t> sizes = {3, 0, 1000};
  CountTable table = make_table(7, sizes);
  auto bytes = std::as_writable_bytes(std::span(&table, 1));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x20};
    expect_error(ErrorCode::kCorrupt, [&] { check_table(table, TableKind::kHostRecords, 7, kLimits); });
    bytes[i] ^= std::byte{0x20};
  }
}

TEST(CountTable, AnotherStepAndTooMuchAreRefused) {
  const std::vector<std::uint64_t> sizes(5001, 1);
  const CountTable many = make_table(1, sizes);
  expect_error(ErrorCode::kCorrupt, [&] { check_table(many, TableKind::kHostRecords, 1, kLimits); }, {"5001"});
  const CountTable some = make_table(1, std::span(sizes).first(5));
  expect_error(ErrorCode::kGroupMismatch, [&] { check_table(some, TableKind::kHostRecords, 2, kLimits); });
  expect_error(ErrorCode::kGroupMismatch, [&] { check_table(some, TableKind::kFrames, 1, kLimits); });
}

}  // namespace
}  // namespace sparsecast::test

#endif
