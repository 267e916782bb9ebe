// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Decodes one zstd frame in windows: the reader asks for as many bytes as its own table allows, and no more than that
/// is ever produced.
class ZstdReader {
 public:
  /// Requires `frame`, the whole zstd frame, to outlive the reader.
  explicit ZstdReader(ConstBytes frame);
  ~ZstdReader();

  /// Fills as much of `window` as there is; fewer bytes mean the end of the content. Throws Error{kCorrupt}.
  std::size_t read(std::span<std::byte> window);
  /// Reads exactly `window.size()` bytes. Throws Error{kCorrupt} when the frame holds fewer.
  void read_exact(std::span<std::byte> window);
  /// Throws Error{kCorrupt} unless the frame is complete, holds nothing more, and nothing follows it.
  void require_end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Encodes zstd frames from windows, one after the other, with their content's size in the frames' headers. What is
/// held is at most 32 MiB of content and as much output; both are used again for the next frame.
class ZstdWriter {
 public:
  /// Creates a writer that hands the compressed bytes to `sink`, piece by piece.
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
