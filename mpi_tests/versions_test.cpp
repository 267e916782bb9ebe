// SPDX-License-Identifier: Apache-2.0

// Syncs in which nothing goes wrong.

#include "member.hpp"

namespace sparsecast::mpi_test {
namespace {

void train_versions(Case& running, Member& member, std::uint64_t versions) {
  for (std::uint64_t version = 1; version <= versions; ++version) {
    if (member.is_source()) member.model().train();
    expect_synchronised(running, member, member.sync(), version);
    running.expect(member.report().changed > 0, "something changed");
    running.expect(member.report().wire_bytes > 0, "something travelled");
  }
}

void several_versions(Case& running) {
  for (const ValueCodec values : {ValueCodec::kUlp, ValueCodec::kXor, ValueCodec::kRaw}) {
    MemberOptions options;
    options.encode.values = values;
    Member member(running, options);
    train_versions(running, member, 6);
  }
}
const Registration kSeveralVersions{"several_versions", several_versions};

void other_source(Case& running) {
  MemberOptions options;
  options.source = running.size() - 1;
  Member member(running, options);
  train_versions(running, member, 5);
}
const Registration kOtherSource{"other_source", other_source};

void empty_delta(Case& running) {
  Member member(running, {});
  expect_synchronised(running, member, member.sync(), 1);
  running.expect_equal(member.report().changed, 0U, "changed weights");
  if (member.is_source()) member.model().train();
  expect_synchronised(running, member, member.sync(), 2);
  expect_synchronised(running, member, member.sync(), 3);
  running.expect_equal(member.report().changed, 0U, "changed weights");
}
const Registration kEmptyDelta{"empty_delta", empty_delta};

void dense_jump(Case& running) {
  Member member(running, {});
  train_versions(running, member, 1);
  if (member.is_source()) member.model().jump();
  expect_synchronised(running, member, member.sync(), 2);
  running.expect_equal(member.report().changed, member.model().table()->elements(), "changed weights");
  const std::uint64_t dense = member.model().table()->bytes();
  running.expect(member.report().wire_bytes <= dense + dense / 100 + 1024,
                 fmt::format("at most {} bytes and 1 %, found {}", dense, member.report().wire_bytes));
}
const Registration kDenseJump{"dense_jump", dense_jump};

MemberOptions large_frames() {
  MemberOptions options;
  options.width = 700;
  options.encode.values = ValueCodec::kRaw;
  options.encode.frame_capacity = kMinFrameCapacity;
  return options;
}

void many_frames(Case& running) {
  Member member(running, large_frames());
  for (std::uint64_t version = 1; version <= 3; ++version) {
    if (member.is_source()) member.model().jump();
    expect_synchronised(running, member, member.sync(), version);
    running.expect(member.report().wire_bytes > 4 * std::uint64_t{kMinFrameCapacity},
                   "more than four frames travelled");
  }
}
const Registration kManyFrames{"many_frames", many_frames};

void small_pieces(Case& running) {
  for (const std::uint64_t piece : {std::uint64_t{1009}, std::uint64_t{300'000}}) {
    MemberOptions options = large_frames();
    options.width = piece < 10'000 ? 64 : 700;
    options.limits.piece_bytes = piece;
    Member member(running, options);
    for (std::uint64_t version = 1; version <= 2; ++version) {
      if (member.is_source()) member.model().jump();
      expect_synchronised(running, member, member.sync(), version);
      running.expect(member.report().wire_bytes > 2 * piece, "more than two pieces travelled");
    }
  }
}
const Registration kSmallPieces{"small_pieces", small_pieces};

/// Records of a size and content that every rank can compute.
std::vector<Bytes> known_records(std::uint64_t seed, std::size_t count) {
  test::Random random(seed);
  std::vector<Bytes> records(count);
  for (Bytes& record : records) {
    record.resize(random.below(random.chance(0.02) ? 2'000'000 : 300));
    for (std::byte& byte : record) byte = static_cast<std::byte>(random.next());
  }
  return records;
}

void many_records(Case& running) {
  const auto transport = make_mpi_transport();
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, kOpeningSizes, kOpeningSizes + 1, std::size_t{1000}}) {
    const int source = static_cast<int>(count) % running.size();
    const std::vector<Bytes> expected = known_records(running.seed() + count, count);
    std::vector<Bytes> records = running.rank() == source ? expected : std::vector<Bytes>{Bytes(7)};
    const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    transport->broadcast(records, source, deadline);
    running.expect(records == expected, fmt::format("{} records arrive as they were", count));
    running.expect_equal(transport->control().agree(running.rank(), 0, deadline), running.size() - 1, "worst status");
  }
}
const Registration kManyRecords{"many_records", many_records};

MPI_Comm split(Case& running, bool member) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, member ? 0 : MPI_UNDEFINED, running.rank(), &part);
  return part;
}

void shared_source_channels(Case& running) {
  // Rank 0 feeds two sets of receivers, each with tensors of its own, as expert-parallel engines need it.
  const bool odd = running.rank() % 2 == 1;
  const MPI_Comm parts[2] = {split(running, running.rank() == 0 || odd), split(running, running.rank() == 0 || !odd)};
  std::vector<std::unique_ptr<Member>> members(2);
  for (std::size_t i = 0; i < 2; ++i) {
    MemberOptions options;
    options.communicator = parts[i];
    options.width = 48 + 16 * i;
    if (parts[i] != MPI_COMM_NULL) members[i] = std::make_unique<Member>(running, options);
  }
  for (std::uint64_t version = 1; version <= 5; ++version) {
    for (const auto& member : members) {
      if (!member) continue;
      if (member->is_source()) member->model().train();
      expect_synchronised(running, *member, member->sync(), version);
    }
  }
}
const Registration kSharedSource{"shared_source_channels", shared_source_channels};

void disjoint_channels(Case& running) {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, running.rank() % 2, running.rank(), &half);
  MemberOptions options;
  options.communicator = half;
  options.source = running.rank() % 2;  // The first of the even ranks, the second of the odd ones.
  Member member(running, options);
  train_versions(running, member, running.rank() % 2 == 0 ? 5 : 8);
}
const Registration kDisjoint{"disjoint_channels", disjoint_channels};

void over_two_gib(Case& running) {
  const auto transport = make_mpi_transport();
  std::vector<Bytes> records;
  constexpr std::size_t kSize = (std::size_t{2} << 30) + (std::size_t{100} << 20) + 8;
  const auto word_at = [](std::size_t i) { return (i + 1) * 0x9E3779B97F4A7C15U; };
  if (running.rank() == 0) {
    records = {Bytes(128), Bytes(kSize), Bytes(96)};
    auto* const words = reinterpret_cast<std::uint64_t*>(records[1].data());
    for (std::size_t i = 0; i < kSize / 8; ++i) words[i] = word_at(i);
  }
  const auto start = std::chrono::steady_clock::now();
  transport->broadcast(records, 0, start + std::chrono::seconds(150));
  running.note(fmt::format("{} bytes in {:.2f} s", kSize,
                           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()));
  running.expect(records.size() == 3 && records[1].size() == kSize, "the record has its size");
  std::uint64_t wrong = 0;
  const auto* const words = reinterpret_cast<const std::uint64_t*>(records[1].data());
  for (std::size_t i = 0; i < kSize / 8; ++i) wrong += words[i] != word_at(i) ? 1 : 0;
  running.expect_equal(wrong, 0U, "wrong words");
}
const Registration kOverTwoGib{"over_two_gib", over_two_gib};

}  // namespace
}  // namespace sparsecast::mpi_test
