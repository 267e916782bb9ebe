// SPDX-License-Identifier: Apache-2.0
#include "nccl_dropin/meeting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "sparsecast/digest.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "sparsecast/version.hpp"
#include "transport/tcp/unique_id.hpp"

namespace sparsecast::dropin {
namespace {

constexpr char kMagic[5] = "scDI";

/// The last 80 bytes of a unique id with a mark, little-endian.
struct Mark {
  char magic[4] = {};
  std::uint16_t port = 0;
  std::uint16_t zero = 0;
  Nonce secret{};
  char host[32] = {};  ///< Ends in zeros.
  std::uint64_t checksum = 0;
};
static_assert(sizeof(Mark) == 80 && sizeof(ncclUniqueId) == 128);
constexpr std::size_t kMarkBegin = sizeof(ncclUniqueId) - sizeof(Mark);

std::uint64_t checksum_of(const Mark& mark) {
  return xxh3_64(std::as_bytes(std::span(&mark, 1)).first(offsetof(Mark, checksum)));
}

/// Returns the id of our own rendezvous that the mark stands for; nullopt without a mark.
std::optional<UniqueId> marked(const ncclUniqueId& id) {
  Mark mark;
  std::memcpy(&mark, id.internal + kMarkBegin, sizeof mark);
  if (std::memcmp(mark.magic, kMagic, sizeof mark.magic) != 0 || mark.checksum != checksum_of(mark) ||
      mark.host[sizeof mark.host - 1] != 0) {
    return std::nullopt;
  }
  return pack_unique_id({0, mark.port, mark.secret, mark.host});
}

/// Version and settings of a rank, which all ranks exchange when they have met.
struct Introduction {
  std::uint64_t version = 0;  ///< Hash of the library's version: other versions may decide otherwise.
  std::uint64_t min_bytes = 0;
  std::uint64_t cache_bytes = 0;
};

}  // namespace

void mark(ncclUniqueId& id, const Settings& own) {
  if (std::any_of(id.internal + kMarkBegin, std::end(id.internal), [](char c) { return c != 0; })) return;
  try {
    const UniqueId made = make_unique_id({.interface = own.interface});
    const UniqueIdContent content = parse_unique_id(made);
    Mark mark;
    if (content.host.size() >= sizeof mark.host) {
      forget_unique_id(made);
      return;
    }
    std::memcpy(mark.magic, kMagic, sizeof mark.magic);
    mark.port = content.port;
    mark.secret = content.secret;
    content.host.copy(mark.host, sizeof mark.host - 1);
    mark.checksum = checksum_of(mark);
    std::memcpy(id.internal + kMarkBegin, &mark, sizeof mark);
  } catch (const Error& error) {
    fmt::print(stderr, "sparsecast: no port for the ranks to meet on: {}\n", error.what());
  }
}

Meeting meet(const ncclUniqueId& id, int rank, int size, const Settings& own) {
  Meeting meeting;
  const auto ours = marked(id);
  if (!ours) {
    meeting.why_dense = "the process that made the unique id does not have the drop-in";
    return meeting;
  }
  std::shared_ptr<ControlChannel> control;
  std::vector<Bytes> all;
  const Introduction self{xxh3_64(std::as_bytes(std::span(std::string_view(version_string())))), own.min_bytes,
                          own.cache_bytes};
  const Deadline deadline = std::chrono::steady_clock::now() + own.meet_timeout;
  try {
    // If any rank fails here, the gathering fails on all others, or has not begun.
    control = Rendezvous::meet(*ours, rank, size, own.meet_timeout);
    all = control->all_gather(std::as_bytes(std::span(&self, 1)), deadline + own.meet_timeout);
  } catch (const Error& error) {
    meeting.why_dense = error.what();
    return meeting;
  }
  meeting.cache_bytes = own.cache_bytes;
  for (std::size_t other = 0; other < all.size(); ++other) {
    Introduction said;
    if (all[other].size() == sizeof said) std::memcpy(&said, all[other].data(), sizeof said);
    if (said.version != self.version || said.min_bytes != self.min_bytes) {
      meeting.why_dense = fmt::format(
          "rank {} has another version of the drop-in than rank {}, or another SPARSECAST_NCCL_MIN_BYTES", other, rank);
    }
    meeting.cache_bytes = std::min(meeting.cache_bytes, said.cache_bytes);
  }
  // Differences are seen by all ranks, or by none: each compares all with itself.
  if (!meeting.why_dense.empty()) return meeting;
  control->agree(0, 0, deadline + 2 * own.meet_timeout);
  meeting.control = std::move(control);
  return meeting;
}

}  // namespace sparsecast::dropin
