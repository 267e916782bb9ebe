// SPDX-License-Identifier: Apache-2.0

// Transport of records over a control channel.
//
//     opening (512 bytes: count, total, first sizes) -> more sizes, if any -> the records, end to end, in pieces
//
// The source chooses the pieces; receivers accept pieces of any length until they have the announced total. Receivers
// allocate memory as bytes arrive. Any failure breaks the control channel, so that every rank learns of it.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>

#include "sparsecast/tcp_transport.hpp"
#include "transport/message_plan.hpp"

namespace sparsecast {
namespace {

class ControlTransport final : public Transport {
 public:
  ControlTransport(std::shared_ptr<ControlChannel> control, const TcpTransportOptions& options)
      : control_(std::move(control)) {
    limits_.max_records = options.max_records;
    limits_.max_bytes = options.max_bytes;
  }

  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override;
  ControlChannel& control() const noexcept override { return *control_; }

 private:
  template <class Body>
  auto guard(const char* phase, const Body& body);
  /// Returns the source's bytes on every rank.
  Bytes exchange(std::span<const std::byte> own, int source, Deadline deadline);
  void send(const std::vector<Bytes>& records, int source, Deadline deadline);
  std::vector<Bytes> receive(int source, Deadline deadline);

  std::shared_ptr<ControlChannel> control_;
  WireLimits limits_;
  std::optional<std::string> broken_;
};

template <class Body>
auto ControlTransport::guard(const char* phase, const Body& body) {
  const auto context = [&] { return fmt::format("tcp channel, rank {} of {}: {}", rank(), size(), phase); };
  if (broken_) {
    throw Error(ErrorCode::kPeerFailed, fmt::format("the channel is broken since an earlier failure ({})", *broken_),
                context());
  }
  try {
    return body();
  } catch (const Error& error) {
    broken_ = error.message();
    control_->abort(error.what());
    throw error.within(context());
  } catch (const std::exception& error) {
    broken_ = error.what();
    control_->abort(error.what());
    throw;
  }
}

Bytes ControlTransport::exchange(std::span<const std::byte> own, int source, Deadline deadline) {
  if (source == 0) return control_->broadcast(own, deadline);
  std::vector<Bytes> parts = control_->all_gather(own, deadline);
  return std::move(parts[static_cast<std::size_t>(source)]);
}

/// Gathers bytes until a piece is full.
class PieceCutter {
 public:
  PieceCutter(std::uint64_t piece_bytes, std::function<void(std::span<const std::byte>)> send)
      : piece_bytes_(static_cast<std::size_t>(piece_bytes)), send_(std::move(send)) {}

  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      // Whole pieces need no copy.
      if (piece_.empty() && bytes.size() >= piece_bytes_) {
        send_(bytes.first(piece_bytes_));
        bytes = bytes.subspan(piece_bytes_);
        continue;
      }
      const std::size_t part = std::min(piece_bytes_ - piece_.size(), bytes.size());
      piece_.insert(piece_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(part));
      bytes = bytes.subspan(part);
      if (piece_.size() == piece_bytes_) finish();
    }
  }
  void finish() {
    if (!piece_.empty()) send_(piece_);
    piece_.clear();
  }

 private:
  std::size_t piece_bytes_;
  std::function<void(std::span<const std::byte>)> send_;
  Bytes piece_;
};

void ControlTransport::send(const std::vector<Bytes>& records, int source, Deadline deadline) {
  std::vector<std::uint64_t> sizes;
  for (const Bytes& record : records) sizes.push_back(record.size());
  const Opening opening = pack_opening(sizes);
  exchange(std::as_bytes(std::span(opening)), source, deadline);
  PieceCutter pieces(std::max<std::uint64_t>(control_->max_blob_bytes(), 1),
                     [&](std::span<const std::byte> piece) { exchange(piece, source, deadline); });
  if (sizes.size() > kOpeningSizes) pieces.add(std::as_bytes(std::span(sizes).subspan(kOpeningSizes)));
  pieces.finish();
  for (const Bytes& record : records) pieces.add(record);
  pieces.finish();
}

std::vector<Bytes> ControlTransport::receive(int source, Deadline deadline) {
  /// Returns the next piece, which may have at most `left` bytes.
  const auto next = [&](std::uint64_t left) {
    Bytes piece = exchange({}, source, deadline);
    if (piece.empty() || piece.size() > left) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("rank {} sent a piece of {} bytes where {} are left", source, piece.size(), left));
    }
    return piece;
  };
  Opening opening;
  const Bytes first = exchange({}, source, deadline);
  if (first.size() != sizeof(opening)) {
    throw Error(ErrorCode::kCorrupt, fmt::format("rank {} opened a broadcast with {} bytes", source, first.size()));
  }
  std::memcpy(opening.data(), first.data(), sizeof(opening));
  std::vector<std::uint64_t> sizes = parse_opening(opening, limits_);
  if (sizes.size() > kOpeningSizes) {
    auto rest = std::as_writable_bytes(std::span(sizes).subspan(kOpeningSizes));
    while (!rest.empty()) {
      const Bytes piece = next(rest.size());
      std::memcpy(rest.data(), piece.data(), piece.size());
      rest = rest.subspan(piece.size());
    }
  }
  check_sizes(opening, sizes);
  std::vector<Bytes> records(sizes.size());
  std::size_t at = 0;
  for (std::uint64_t left = opening[2]; left != 0;) {
    const Bytes piece = next(left);
    left -= piece.size();
    std::span<const std::byte> bytes = piece;
    while (!bytes.empty()) {
      while (records[at].size() == sizes[at]) ++at;
      Bytes& record = records[at];
      const auto part = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(bytes.size(), sizes[at] - record.size()));
      record.insert(record.end(), bytes.begin(), bytes.begin() + part);
      bytes = bytes.subspan(static_cast<std::size_t>(part));
    }
  }
  return records;
}

void ControlTransport::broadcast(std::vector<Bytes>& records, int source, Deadline deadline) {
  if (source < 0 || source >= size()) {
    throw Error(ErrorCode::kUsage, fmt::format("source {} of {} ranks", source, size()), "tcp channel: broadcast");
  }
  guard("broadcast", [&] {
    if (size() == 1) return;
    if (rank() == source) {
      send(records, source, deadline);
    } else {
      std::vector<Bytes> arriving = receive(source, deadline);
      records.swap(arriving);
    }
  });
}

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(std::shared_ptr<ControlChannel> control,
                                              const TcpTransportOptions& options) {
  if (!control) throw Error(ErrorCode::kUsage, "a channel needs a control channel", "tcp channel");
  return std::make_unique<ControlTransport>(std::move(control), options);
}

}  // namespace sparsecast
