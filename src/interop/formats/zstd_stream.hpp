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

  /// Fills `window` with the next bytes of the content, and returns their number; fewer than the size of `window` mean
  /// the end of the content. Throws Error{kCorrupt}.
  std::size_t read(std::span<std::byte> window);
  /// Fills the whole `window` with the next bytes of the content. Throws Error{kCorrupt} if there are fewer.
  void read_exact(std::span<std::byte> window);
  /// Throws Error{kCorrupt} unless all content has been read, the frame is complete, and nothing follows it.
  void require_end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Encodes zstd frames one after another, each from windows of its content, with the content size in the frame header.
/// Holds at most 32 MiB of content and as much output in buffers, which it reuses for the next frame.
class ZstdWriter {
 public:
  /// Makes a writer that compresses with `level` and calls sink(bytes) with the compressed bytes, piece by piece.
  ZstdWriter(int level, std::function<void(ConstBytes)> sink);
  ~ZstdWriter();

  /// Begins a frame whose content has `content_bytes` bytes.
  void begin(std::uint64_t content_bytes);
  /// Appends bytes to the content of the frame.
  void append(ConstBytes window);
  /// Ends the frame. Throws Error{kUsage} unless exactly as many bytes were appended as begin() has announced.
  void finish();

 private:
  void push(ConstBytes window, bool last);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
