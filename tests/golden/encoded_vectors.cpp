// SPDX-License-Identifier: Apache-2.0

// Deltas as the encoder writes them: every position mode with every value codec, every dtype, and the odd shapes.

#include <bit>

#include "core/word.hpp"
#include "golden_vectors.hpp"
#include "support/random_delta.hpp"

namespace sparsecast::test {
namespace {

constexpr PositionMode kModes[] = {PositionMode::kAuto, PositionMode::kPacked, PositionMode::kGap16,
                                   PositionMode::kIndex32, PositionMode::kBitmap};
constexpr ValueCodec kCodecs[] = {ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp};
constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2,
                             DType::kI8,   DType::kU8,  DType::kI16, DType::kI32, DType::kI64,    DType::kBool};

struct States {
  std::string name;
  TensorTable table;
  TensorState base;
  TensorState result;
};

EncodeOptions options_of(PositionMode positions, ValueCodec values, int zstd_level = 0) {
  EncodeOptions options;
  options.positions = positions;
  options.values = values;
  options.objective = Objective::link(100e6);  // Of no rule of its own: neither context nor quick.
  options.zstd_level = zstd_level;
  return options;
}

States states_of(const std::string& name, std::vector<TensorSpec> specs) {
  States states{name, TensorTable(std::move(specs)), {}, {}};
  for (const TensorSpec& spec : states.table) states.base.emplace_back(spec.bytes());
  states.result = states.base;
  return states;
}

void set_result(States& states, std::size_t tensor, std::uint64_t index, std::uint64_t bits) {
  write_element(states.result[tensor].data(), element_size(states.table[tensor].dtype), index, bits);
}

/// Random bits in every tensor, and one element in `every` moved by one or a few of its lowest bits.
void small_steps(States& states, Random& random, std::uint64_t every) {
  for (std::size_t t = 0; t < states.table.size(); ++t) {
    const std::size_t size = element_size(states.table[t].dtype);
    for (std::uint64_t i = 0; i < states.table[t].elements(); ++i) {
      const std::uint64_t bits = random.next();
      write_element(states.base[t].data(), size, i, bits);
      const std::uint64_t distance = random.chance(0.9) ? 1 : random.between(2, 40);
      const std::uint64_t moved = random.chance(0.5) ? bits + distance : bits - distance;
      set_result(states, t, i, random.below(every) == 0 ? moved : bits);
    }
  }
}

States weights_states() {
  Random random(1);
  States states = states_of("weights", {{"weights", DType::kBF16, {130, 300}}});
  small_steps(states, random, 80);
  return states;
}

States half_states() {
  Random random(2);
  States states = states_of("half", {{"half", DType::kF32, {40, 50}}});
  small_steps(states, random, 2);
  return states;
}

States dtype_states() {
  Random random(3);
  std::vector<TensorSpec> specs;
  for (const DType dtype : kDTypes) specs.push_back({"t." + std::string(to_string(dtype)), dtype, {5, 60}});
  States states = states_of("dtypes", std::move(specs));
  small_steps(states, random, 9);
  return states;
}

/// Zeros, subnormals, normals, infinities and NaNs, each to each; every second element stays.
States special_states() {
  constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2};
  constexpr int kMantissa[] = {7, 10, 23, 52, 3, 2};
  std::vector<TensorSpec> specs;
  for (const DType dtype : kFloats) specs.push_back({std::string(to_string(dtype)), dtype, {22, 22, 2}});
  States states = states_of("special", std::move(specs));
  for (std::size_t t = 0; t < states.table.size(); ++t) {
    const std::size_t size = element_size(states.table[t].dtype);
    const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
    const std::uint64_t unit = std::uint64_t{1} << kMantissa[t];
    const std::uint64_t infinity = sign - unit;
    std::vector<std::uint64_t> patterns;
    for (const std::uint64_t magnitude : {std::uint64_t{0}, std::uint64_t{1}, unit - 1, unit, unit + 1, infinity / 2,
                                          infinity - 1, infinity, infinity + 1, infinity | unit / 2, sign - 1}) {
      patterns.insert(patterns.end(), {magnitude, magnitude | sign});
    }
    for (std::uint64_t i = 0; i < std::uint64_t{22} * 22 * 2; ++i) {
      const std::uint64_t from = patterns[i / 2 / 22];
      write_element(states.base[t].data(), size, i, from);
      set_result(states, t, i, i % 2 == 0 ? patterns[i / 2 % 22] : from);
    }
  }
  return states;
}

/// Half as many elements in each exponent down, twice as many of which change, and by more ULP where nearly all do: as
/// an optimizer's steps change weights.
States optimizer_states() {
  struct Float {
    DType dtype;
    std::uint64_t mantissa_bits;
    std::uint64_t exponent;
    std::uint64_t elements;
  };
  constexpr Float kFloats[] = {{DType::kBF16, 7, 122, 40'000}, {DType::kF16, 10, 14, 9'000},
                               {DType::kF32, 23, 122, 9'000},  {DType::kF64, 52, 1018, 6'000},
                               {DType::kF8E4M3, 3, 13, 9'000}, {DType::kF8E5M2, 2, 20, 9'000}};
  Random random(11);
  std::vector<TensorSpec> specs;
  for (const Float& f : kFloats) specs.push_back({std::string(to_string(f.dtype)), f.dtype, {f.elements}});
  States states = states_of("optimizer", std::move(specs));
  for (std::size_t t = 0; t < states.table.size(); ++t) {
    const Float& f = kFloats[t];
    const std::size_t size = element_size(f.dtype);
    for (std::uint64_t i = 0; i < f.elements; ++i) {
      std::uint64_t down = 0;
      while (down < 11 && random.below(2) == 0) ++down;
      const std::uint64_t mantissa = random.next() & ((std::uint64_t{1} << f.mantissa_bits) - 1);
      const std::uint64_t sign = random.below(2) << (8 * size - 1);
      const std::uint64_t bits = sign | (f.exponent - down) << f.mantissa_bits | mantissa;
      write_element(states.base[t].data(), size, i, bits);
      const std::uint64_t distance = 1 + (down > 7 ? random.below(std::uint64_t{1} << (down - 6)) : 0);
      const std::uint64_t moved = random.below(2) == 0 ? bits + distance : bits - distance;
      set_result(states, t, i, random.below(500) < std::min<std::uint64_t>(450, 2ULL << down) ? moved : bits);
    }
  }
  return states;
}

/// Distances from one ULP to most of the range, so that all parts of the ulp code are used.
States wide_states() {
  Random random(5);
  States states =
      states_of("wide", {{"f32", DType::kF32, {900}}, {"f64", DType::kF64, {900}}, {"i64", DType::kI64, {900}}});
  for (std::size_t t = 0; t < states.table.size(); ++t) {
    const std::size_t size = element_size(states.table[t].dtype);
    for (std::uint64_t i = 0; i < 900; ++i) {
      const std::uint64_t bits = random.next();
      write_element(states.base[t].data(), size, i, bits);
      const std::uint64_t distance = random.next() >> random.between(64 - 8 * size + (t == 0 ? 10 : 1), 63);
      set_result(states, t, i, i % 5 != 0 ? bits : random.chance(0.5) ? bits + distance : bits - distance);
    }
  }
  return states;
}

States dense_states() {
  Random random(6);
  States states = states_of("dense", {{"dense", DType::kI8, {17'001}}});
  for (std::byte& bits : states.base[0]) bits = static_cast<std::byte>(random.next());
  for (std::byte& bits : states.result[0]) bits = static_cast<std::byte>(random.next());
  return states;
}

/// Blocks of a quarter of their elements, one fewer and all; distances in ULP of which some take more bits than most.
States quick_states() {
  Random random(12);
  States states = states_of("quick", {{"bf16", DType::kBF16, {400}},
                                      {"f32", DType::kF32, {64}},
                                      {"i8", DType::kI8, {37}},
                                      {"f64", DType::kF64, {33}}});
  const std::uint64_t changes[] = {240, 16, 9, 33};
  for (std::size_t t = 0; t < states.table.size(); ++t) {
    with_word(element_size(states.table[t].dtype), [&]<class T>() {
      const std::uint64_t elements = states.table[t].elements();
      for (std::uint64_t i = 0; i < elements; ++i) {
        const T old_bits = static_cast<T>(random.next() >> 2);
        const bool far = random.chance(0.05);
        const T new_bits = static_cast<T>(old_bits + 1 + random.below(far ? 60 : 6));
        store_word(states.base[t].data(), i, old_bits);
        const bool changed = i * changes[t] / elements != (i + 1) * changes[t] / elements;
        store_word(states.result[t].data(), i, changed ? new_bits : old_bits);
      }
    });
  }
  return states;
}

/// Every way in which tiles become blocks, short of a section's end: full tiles, runs, gaps over 16 bits, a short tail.
States tile_states(const std::string& name, const std::vector<std::uint64_t>& changes_by_tile) {
  Random random(7);
  States states = states_of(name, {{"tiles", DType::kU8, {(changes_by_tile.size() - 1) * kTileElems + 700}}});
  for (std::size_t tile = 0; tile < changes_by_tile.size(); ++tile) {
    const std::uint64_t span = tile + 1 == changes_by_tile.size() ? 700 : kTileElems;
    for (std::uint64_t changed = 0; changed < changes_by_tile[tile];) {
      const std::uint64_t at = tile * kTileElems + random.below(span);
      if (states.result[0][at] != std::byte{0}) continue;
      states.result[0][at] = static_cast<std::byte>(random.between(1, 255));
      ++changed;
    }
  }
  return states;
}

/// A few rows touched, each at a fifth of its elements: short gaps between long ones, which are escaped.
States row_states() {
  Random random(9);
  States states = states_of("rows", {{"embedding", DType::kBF16, {320, 256}}});
  for (std::uint64_t row = 0; row < 320; row += random.between(9, 90)) {
    for (std::uint64_t i = row * 256; i < row * 256 + 256; ++i) {
      if (random.chance(0.2)) set_result(states, 0, i, random.between(1, 3));
    }
  }
  return states;
}

States shape_states() {
  States states = states_of("shapes", {{"scalar", DType::kF32, {}},
                                       {"empty", DType::kBF16, {0}},
                                       {"empty cube", DType::kI64, {3, 0, 7}},
                                       {"one", DType::kU8, {1, 1, 1, 1}},
                                       {"größe/重み", DType::kF64, {2}}});
  set_result(states, 0, 0, std::bit_cast<std::uint32_t>(1.5F));
  set_result(states, 3, 0, 255);
  set_result(states, 4, 1, std::bit_cast<std::uint64_t>(-2.0));
  return states;
}

/// Halves of bytes that went one step, as quantised weights do, and every pair of steps once.
States pair_states() {
  Random random(12);
  States states = states_of("pairs", {{"i4", DType::kI4X2, {64, 100}},
                                      {"i4.steps", DType::kI4X2, {16, 16}},
                                      {"f4", DType::kF4X2, {64, 100}},
                                      {"f4.steps", DType::kF4X2, {16, 16}},
                                      {"f4.scalar", DType::kF4X2, {}},
                                      {"scales", DType::kF8E4M3, {64, 12}}});
  small_steps(states, random, 30);
  for (std::size_t t = 0; t < 4; ++t) {
    const bool every = t % 2 == 1;
    for (std::uint64_t i = 0; i < states.table[t].elements(); ++i) {
      const std::uint64_t old_bits = read_element(states.base[t].data(), 1, i);
      std::uint64_t low = every ? i % 16 : 0;
      std::uint64_t high = every ? i / 16 : 0;
      if (!every && random.below(30) == 0) {
        std::uint64_t& half = random.chance(0.5) ? low : high;
        half = random.chance(0.5) ? 1 : 15;
        if (random.chance(0.05)) low = high = half;
      }
      set_result(states, t, i, ((old_bits + low) & 15) | (((old_bits & 0xF0) + (high << 4)) & 0xF0));
    }
  }
  return states;
}

/// Scales of fp8 blocks that are powers of two: an exponent went up or down by one, and to and from the NaN.
States exponent_states() {
  Random random(13);
  States states = states_of("exponents", {{"w", DType::kF8E4M3, {256, 64}}, {"w.scale", DType::kF8E8M0, {256, 16}}});
  small_steps(states, random, 30);
  for (std::uint64_t i = 0; i < states.table[1].elements(); ++i) {
    set_result(states, 1, i, i == 7 || i == 9 ? 255 : 120 + i % 16 + (random.below(20) == 0 ? 1 : 0));
  }
  return states;
}

/// Dtypes of which only the bits are moved.
States bit_states() {
  Random random(14);
  States states = states_of("bits", {{"u16", DType::kU16, {12, 50}},
                                     {"u32", DType::kU32, {600}},
                                     {"u64", DType::kU64, {200}},
                                     {"c64", DType::kC64, {10, 20}},
                                     {"e4m3fnuz", DType::kF8E4M3Fnuz, {600}},
                                     {"e5m2fnuz", DType::kF8E5M2Fnuz, {600}},
                                     {"e2m3", DType::kF6E2M3, {10, 48}},
                                     {"e3m2", DType::kF6E3M2, {300}}});
  small_steps(states, random, 20);
  return states;
}

States many_states() {
  Random random(8);
  std::vector<TensorSpec> specs;
  for (int layer = 0; layer < 40; ++layer) {
    specs.push_back({"model.layers." + std::to_string(layer) + ".mlp.weight", DType::kBF16, {4, 8}});
  }
  States states = states_of("many", std::move(specs));
  small_steps(states, random, 6);
  return states;
}

class Collection {
 public:
  void add(const std::string& name, const States& states, const EncodeOptions& options, const Step& step = {}) {
    const Bytes delta = encode_file(states.table, states.base, states.result, options, step);
    vectors_.push_back({name, states.name, states.table, states.base, states.result, delta, true});
  }
  void add_all_codecs(const States& states, PositionMode mode) {
    for (const ValueCodec values : kCodecs) {
      add(states.name + "_" + std::string(to_string(mode)) + "_" + std::string(to_string(values)), states,
          options_of(mode, values));
    }
  }
  std::vector<GoodVector> take() { return std::move(vectors_); }

 private:
  std::vector<GoodVector> vectors_;
};

}  // namespace

std::vector<GoodVector> encoded_vectors() {
  Collection all;
  const States weights = weights_states();
  for (const PositionMode mode : kModes) all.add_all_codecs(weights, mode);
  all.add_all_codecs(half_states(), PositionMode::kAuto);
  all.add_all_codecs(half_states(), PositionMode::kBitmap);
  all.add_all_codecs(dtype_states(), PositionMode::kAuto);
  all.add("dtypes_index32_ulp", dtype_states(), options_of(PositionMode::kIndex32, ValueCodec::kUlp));
  all.add("dtypes_gap16_raw", dtype_states(), options_of(PositionMode::kGap16, ValueCodec::kRaw));
  all.add_all_codecs(special_states(), PositionMode::kAuto);
  all.add("special_packed_ulp", special_states(), options_of(PositionMode::kPacked, ValueCodec::kUlp));
  all.add_all_codecs(wide_states(), PositionMode::kPacked);
  all.add_all_codecs(dense_states(), PositionMode::kAuto);
  all.add_all_codecs(tile_states("tiles", {511, 1, 512, 0, 30, 600, 200}), PositionMode::kAuto);
  all.add_all_codecs(tile_states("far", {2, 0, 0, 0, 0, 0, 1}), PositionMode::kGap16);
  all.add("far_packed_ulp", tile_states("far", {2, 0, 0, 0, 0, 0, 1}),
          options_of(PositionMode::kPacked, ValueCodec::kUlp));
  all.add_all_codecs(row_states(), PositionMode::kAuto);
  all.add_all_codecs(shape_states(), PositionMode::kAuto);
  const EncodeOptions context = options_of(PositionMode::kContext, ValueCodec::kUlp);
  all.add("weights_context_ulp", weights, context);
  all.add("dtypes_context_ulp", dtype_states(), context);
  all.add("special_context_ulp", special_states(), context);
  all.add("wide_context_ulp", wide_states(), context);
  all.add("tiles_context_ulp", tile_states("tiles", {511, 1, 512, 0, 30, 600, 200}), context);
  all.add("many_changes_context_ulp", tile_states("many_changes", {4000, 200, 0, 4096, 0, 30, 6000, 1}), context);
  all.add("rows_context_ulp", row_states(), context);
  all.add("optimizer_context_ulp", optimizer_states(), context);
  all.add("optimizer_packed_ulp", optimizer_states(), options_of(PositionMode::kPacked, ValueCodec::kUlp));
  all.add("many_tensors", many_states(), options_of(PositionMode::kAuto, ValueCodec::kUlp));

  States still = half_states();
  still.name = "still";
  still.result = still.base;
  all.add("no_change", still, options_of(PositionMode::kAuto, ValueCodec::kUlp));
  all.add("no_tensors", states_of("nothing", {}), options_of(PositionMode::kAuto, ValueCodec::kRaw));
  all.add("last_version", half_states(), options_of(PositionMode::kAuto, ValueCodec::kXor),
          {~std::uint64_t{0} - 1, ~std::uint64_t{0}});

  all.add("zstd_1_not_smaller", half_states(), options_of(PositionMode::kBitmap, ValueCodec::kRaw, 1));
  all.add("zstd_1_bitmap_raw", tile_states("far", {2, 0, 0, 0, 0, 0, 1}),
          options_of(PositionMode::kBitmap, ValueCodec::kRaw, 1));
  all.add("zstd_3_gap16_xor", weights, options_of(PositionMode::kGap16, ValueCodec::kXor, 3));
  all.add("zstd_19_index32_ulp", weights, options_of(PositionMode::kIndex32, ValueCodec::kUlp, 19));

  for (const ValueCodec values : {ValueCodec::kRaw, ValueCodec::kUlp}) {
    EncodeOptions quick = options_of(PositionMode::kAuto, values);
    quick.objective = Objective::speed();
    all.add("quick_auto_" + std::string(to_string(values)), quick_states(), quick);
  }
  all.add_all_codecs(pair_states(), PositionMode::kAuto);
  all.add("pairs_packed_ulp", pair_states(), options_of(PositionMode::kPacked, ValueCodec::kUlp));
  all.add("pairs_context_ulp", pair_states(), context);
  all.add("exponents_packed_ulp", exponent_states(), options_of(PositionMode::kPacked, ValueCodec::kUlp));
  all.add("exponents_packed_raw", exponent_states(), options_of(PositionMode::kPacked, ValueCodec::kRaw));
  all.add("exponents_packed_xor", exponent_states(), options_of(PositionMode::kPacked, ValueCodec::kXor));
  all.add("exponents_context_ulp", exponent_states(), context);
  all.add_all_codecs(bit_states(), PositionMode::kPacked);
  return all.take();
}

}  // namespace sparsecast::test
