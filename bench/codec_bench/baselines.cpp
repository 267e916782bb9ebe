// SPDX-License-Identifier: Apache-2.0
#include "codec_bench/baselines.hpp"

#include <zstd.h>

#include <cstring>

#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::bench {
namespace {

enum class Positions { kIndex32, kGap16, kGap32 };

struct Form {
  Positions positions;
  bool xored;
  int zstd;  ///< Level; 0: not compressed.
};

template <class T>
void append(Bytes& out, T value) {
  out.resize(out.size() + sizeof(T));
  std::memcpy(out.data() + out.size() - sizeof(T), &value, sizeof(T));
}

/// Appends a stream after its length, compressed by zstd unless the level is 0.
void append_stream(Bytes& out, const Bytes& stream, int zstd) {
  if (zstd == 0) {
    append(out, static_cast<std::uint64_t>(stream.size()));
    out.insert(out.end(), stream.begin(), stream.end());
    return;
  }
  Bytes packed(ZSTD_compressBound(stream.size()));
  packed.resize(ZSTD_compress(packed.data(), packed.size(), stream.data(), stream.size(), zstd));
  append(out, static_cast<std::uint64_t>(packed.size()));
  out.insert(out.end(), packed.begin(), packed.end());
}

class StreamReader {
 public:
  explicit StreamReader(ConstBytes bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    if (bytes_.size() < sizeof(T)) throw Error(ErrorCode::kCorrupt, "a baseline's bytes are cut off");
    const T value = load_word<T>(bytes_.data());
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  Bytes stream(bool compressed) {
    const auto size = get<std::uint64_t>();
    if (size > bytes_.size()) throw Error(ErrorCode::kCorrupt, "a baseline's bytes are cut off");
    const ConstBytes stored = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    if (!compressed) return {stored.begin(), stored.end()};
    const unsigned long long raw = ZSTD_getFrameContentSize(stored.data(), stored.size());
    Bytes out(raw);
    if (ZSTD_decompress(out.data(), out.size(), stored.data(), stored.size()) != raw) {
      throw Error(ErrorCode::kCorrupt, "a baseline's zstd frame does not decode");
    }
    return out;
  }

 private:
  ConstBytes bytes_;
};

/// Lists the positions of a tensor's changes; returns true when a gap does not fit 16 bits.
template <class T>
bool list_changes(const Change& change, std::vector<std::uint32_t>& positions) {
  positions.clear();
  bool wide = false;
  std::uint32_t next = 0;
  const std::size_t elements = change.before.size() / sizeof(T);
  for (std::size_t i = 0; i < elements; ++i) {
    if (load_word<T>(change.before.data(), i) == load_word<T>(change.after.data(), i)) continue;
    const auto position = static_cast<std::uint32_t>(i);
    wide = wide || position - next > 0xFFFF;
    next = position + 1;
    positions.push_back(position);
  }
  return wide;
}

/// Writes a u32 count and the u8 width of a position for each tensor, then all positions, then all values.
Bytes encode_sparse(const std::vector<Change>& changes, const Form& form) {
  Bytes head;
  Bytes places;
  Bytes values;
  std::vector<std::uint32_t> positions;
  for (const Change& change : changes) {
    with_word(element_size(change.dtype), [&]<class T>() {
      const bool wide = list_changes<T>(change, positions) || form.positions != Positions::kGap16;
      append(head, static_cast<std::uint32_t>(positions.size()));
      append(head, static_cast<std::uint8_t>(wide ? 4 : 2));
      std::uint32_t next = 0;
      for (const std::uint32_t position : positions) {
        const std::uint32_t code = form.positions == Positions::kIndex32 ? position : position - next;
        if (wide) {
          append(places, code);
        } else {
          append(places, static_cast<std::uint16_t>(code));
        }
        next = position + 1;
        const T after = load_word<T>(change.after.data(), position);
        append(values, form.xored ? static_cast<T>(after ^ load_word<T>(change.before.data(), position)) : after);
      }
    });
  }
  Bytes out;
  append_stream(out, head, 0);
  append_stream(out, places, form.zstd);
  append_stream(out, values, form.zstd);
  return out;
}

void decode_sparse(ConstBytes bytes, const std::vector<DType>& dtypes, const std::vector<MutableBytes>& tensors,
                   const Form& form) {
  StreamReader reader(bytes);
  const Bytes head_bytes = reader.stream(false);
  const Bytes places_bytes = reader.stream(form.zstd != 0);
  const Bytes values_bytes = reader.stream(form.zstd != 0);
  StreamReader head(head_bytes);
  StreamReader places(places_bytes);
  StreamReader values(values_bytes);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    with_word(element_size(dtypes[t]), [&]<class T>() {
      const auto count = head.get<std::uint32_t>();
      const bool wide = head.get<std::uint8_t>() == 4;
      std::uint32_t next = 0;
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t code = wide ? places.get<std::uint32_t>() : places.get<std::uint16_t>();
        const std::uint32_t position = form.positions == Positions::kIndex32 ? code : next + code;
        if (position >= tensors[t].size() / sizeof(T))
          throw Error(ErrorCode::kCorrupt, "a baseline's position is too big");
        next = position + 1;
        const auto value = values.get<T>();
        const T before = load_word<T>(tensors[t].data(), position);
        store_word(tensors[t].data(), position, form.xored ? static_cast<T>(before ^ value) : value);
      }
    });
  }
}

Bytes encode_full_xor(const std::vector<Change>& changes) {
  Bytes all;
  for (const Change& change : changes) {
    const std::size_t begin = all.size();
    all.resize(begin + change.before.size());
    for (std::size_t i = 0; i < change.before.size(); ++i) all[begin + i] = change.before[i] ^ change.after[i];
  }
  Bytes out;
  append_stream(out, all, 1);
  return out;
}

void decode_full_xor(ConstBytes bytes, const std::vector<MutableBytes>& tensors) {
  const Bytes all = StreamReader(bytes).stream(true);
  std::size_t at = 0;
  for (const MutableBytes tensor : tensors) {
    if (tensor.size() > all.size() - at) throw Error(ErrorCode::kCorrupt, "a baseline's bytes are cut off");
    for (std::byte& b : tensor) b ^= all[at++];
  }
}

Baseline sparse(const std::string& name, Form form) {
  return {name, [form](const std::vector<Change>& changes) { return encode_sparse(changes, form); },
          [form](ConstBytes bytes, const std::vector<DType>& dtypes, const std::vector<MutableBytes>& tensors) {
            decode_sparse(bytes, dtypes, tensors, form);
          }};
}

}  // namespace

const std::vector<Baseline>& baselines() {
  static const std::vector<Baseline> all = {
      sparse("int32 + raw", {Positions::kIndex32, false, 0}),
      sparse("u16 gaps + raw", {Positions::kGap16, false, 0}),
      sparse("u16 gaps + raw, zstd -1", {Positions::kGap16, false, 1}),
      sparse("int32 gaps + raw, zstd -1", {Positions::kGap32, false, 1}),
      sparse("u16 gaps + xor, zstd -1", {Positions::kGap16, true, 1}),
      {"full xor, zstd -1", encode_full_xor,
       [](ConstBytes bytes, const std::vector<DType>&, const std::vector<MutableBytes>& tensors) {
         decode_full_xor(bytes, tensors);
       }},
  };
  return all;
}

const std::vector<Baseline>& trace_baselines() {
  static const std::vector<Baseline> all = [] {
    std::vector<Baseline> list = baselines();
    list.push_back(sparse("u16 gaps + xor, zstd -19", {Positions::kGap16, true, 19}));
    return list;
  }();
  return all;
}

}  // namespace sparsecast::bench
