// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Decodes one zstd frame in windows. It never produces more bytes than the caller asks for, so the caller's own table
/// bounds the memory.
class ZstdReader {
 public:
  /// Requires `frame`, the whole zstd frame, to outlive the reader.
  explicit ZstdReader(ConstBytes frame);
  ~ZstdReader();

  /// Fills `window` and returns the number of bytes read; fewer than its size mean the end of the content. Throws
  /// Error{kCorrupt}.
  std::size_t read(std::span<std::byte> window);
  /// Reads exactly `window.size()` bytes. Throws Error{kCorrupt} if the frame holds fewer.
  void read_exact(std::span<std::byte> window);
  /// Throws Error{kCorrupt} unless the frame is complete, holds nothing more, and nothing follows it.
  void require_end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Encodes zstd frames one after another, each from windows, with the content size in the frame header. Holds at most
/// 32 MiB of content and as much output in buffers, which it reuses for the next frame.
class ZstdWriter {
 public:
  /// Creates a writer that passes the compressed bytes to `sink`, piece by piece.
  ZstdWriter(int level, std::function<void(ConstBytes)> sink);
  ~ZstdWriter();

  void begin(std::uint64_t content_bytes);
  void append(ConstBytes window);
  /// Ends the frame. Throws Error{kUsage} unless exactly the announced bytes were appended.
  void finish();

 private:
  void push(ConstBytes window, bool last);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
