// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Decodes one zstd frame, window by window. It never produces more bytes than the caller asks for, so a frame cannot
/// make it use more memory than the caller expects.
class ZstdReader {
 public:
  /// Makes a reader of `frame`, one whole zstd frame, which must outlive the reader.
  explicit ZstdReader(ConstBytes frame);
  ~ZstdReader();

  /// Fills `window` with the next bytes of the content, and returns their number. A number smaller than the size of
  /// `window` means that the content has ended. Throws Error{kCorrupt} if the frame is damaged.
  std::size_t read(std::span<std::byte> window);
  /// Fills the whole `window` with the next bytes of the content. Throws Error{kCorrupt} if fewer bytes are left.
  void read_exact(std::span<std::byte> window);
  /// Throws Error{kCorrupt} unless all of the content has been read, the frame is complete, and no bytes follow it.
  void require_end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Encodes zstd frames one after another. The content of each frame is appended in windows, and its size is in the
/// frame header. The writer buffers at most 32 MiB of content and as much output; it uses the same buffers for all
/// frames.
class ZstdWriter {
 public:
  /// Makes a writer that compresses with zstd level `level`, and calls sink(bytes) with the compressed bytes, piece by
  /// piece.
  ZstdWriter(int level, std::function<void(ConstBytes)> sink);
  ~ZstdWriter();

  /// Begins a frame whose content will have `content_bytes` bytes.
  void begin(std::uint64_t content_bytes);
  /// Appends the bytes in `window` to the content of the frame. Throws Error{kUsage} if the content becomes longer than
  /// begin() has announced.
  void append(ConstBytes window);
  /// Ends the frame. Throws Error{kUsage} if fewer bytes have been appended than begin() has announced.
  void finish();

 private:
  void push(ConstBytes window, bool last);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
