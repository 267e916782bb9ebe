// SPDX-License-Identifier: Apache-2.0
#include "interop/formats/zstd_stream.hpp"

#include <fmt/format.h>
#include <zstd.h>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::size_t good(std::size_t code, ErrorCode error, const char* what) {
  if (ZSTD_isError(code) != 0) throw Error(error, fmt::format("{}: {}", what, ZSTD_getErrorName(code)));
  return code;
}

}  // namespace

constexpr std::uint64_t kAtOnceBytes = std::uint64_t{32} << 20;

struct ZstdReader::State {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  ZSTD_inBuffer input{};
  bool ended = false;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { ZSTD_freeDCtx(context); }
};

ZstdReader::ZstdReader(ConstBytes frame) : state_(std::make_unique<State>()) {
  if (state_->context == nullptr) throw std::bad_alloc();
  state_->input = {frame.data(), frame.size(), 0};
}

ZstdReader::~ZstdReader() = default;

std::size_t ZstdReader::read(std::span<std::byte> window) {
  ZSTD_outBuffer output{window.data(), window.size(), 0};
  while (output.pos < output.size && !state_->ended) {
    const std::size_t read_before = state_->input.pos;
    const std::size_t written_before = output.pos;
    const std::size_t left = good(ZSTD_decompressStream(state_->context, &output, &state_->input), ErrorCode::kCorrupt,
                                  "the zstd frame cannot be decoded");
    state_->ended = left == 0;
    if (!state_->ended && state_->input.pos == read_before && output.pos == written_before) {
      throw Error(ErrorCode::kCorrupt, "the zstd frame ends too early");
    }
  }
  return output.pos;
}

void ZstdReader::read_exact(std::span<std::byte> window) {
  const std::size_t got = read(window);
  if (got != window.size()) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the zstd frame ends {} bytes before what it announces", window.size() - got));
  }
}

void ZstdReader::require_end() {
  std::byte more;
  if (read({&more, 1}) != 0) throw Error(ErrorCode::kCorrupt, "the zstd frame holds more than the tensor has room for");
  if (!state_->ended || state_->input.pos != state_->input.size) {
    throw Error(ErrorCode::kCorrupt, "bytes follow the zstd frame");
  }
}

struct ZstdWriter::State {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  std::function<void(ConstBytes)> sink;
  Bytes window;  ///< Buffer for compressed output.
  Bytes content;
  bool at_once = false;  ///< True if all content is gathered before it is compressed, which is faster in zstd.
  std::uint64_t left = 0;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { ZSTD_freeCCtx(context); }
};

ZstdWriter::ZstdWriter(int level, std::function<void(ConstBytes)> sink) : state_(std::make_unique<State>()) {
  if (state_->context == nullptr) throw std::bad_alloc();
  state_->sink = std::move(sink);
  good(ZSTD_CCtx_setParameter(state_->context, ZSTD_c_compressionLevel, level), ErrorCode::kUsage,
       "zstd refuses the level");
}

void ZstdWriter::begin(std::uint64_t content_bytes) {
  good(ZSTD_CCtx_reset(state_->context, ZSTD_reset_session_only), ErrorCode::kUsage, "zstd cannot begin");
  good(ZSTD_CCtx_setPledgedSrcSize(state_->context, content_bytes), ErrorCode::kUsage, "zstd refuses the size");
  state_->left = content_bytes;
  state_->at_once = content_bytes <= kAtOnceBytes;
  state_->content.clear();
  const std::size_t wanted = state_->at_once ? ZSTD_compressBound(content_bytes) : ZSTD_CStreamOutSize();
  if (state_->window.size() < wanted) state_->window.resize(wanted);
}

ZstdWriter::~ZstdWriter() = default;

void ZstdWriter::append(ConstBytes window) {
  if (window.size() > state_->left) throw Error(ErrorCode::kUsage, "more content than was announced");
  state_->left -= window.size();
  if (state_->at_once) {
    state_->content.insert(state_->content.end(), window.begin(), window.end());
  } else {
    push(window, false);
  }
}

void ZstdWriter::finish() {
  if (state_->left != 0) throw Error(ErrorCode::kUsage, "less content than was announced");
  push(state_->content, true);
}

void ZstdWriter::push(ConstBytes window, bool last) {
  ZSTD_inBuffer input{window.data(), window.size(), 0};
  bool done = false;
  while (!done) {
    ZSTD_outBuffer output{state_->window.data(), state_->window.size(), 0};
    const std::size_t left =
        good(ZSTD_compressStream2(state_->context, &output, &input, last ? ZSTD_e_end : ZSTD_e_continue),
             ErrorCode::kUsage, "zstd cannot compress");
    if (output.pos != 0) state_->sink({state_->window.data(), output.pos});
    done = last ? left == 0 : input.pos == input.size;
  }
}

}  // namespace sparsecast
