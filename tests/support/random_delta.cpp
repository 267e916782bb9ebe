// SPDX-License-Identifier: Apache-2.0
#include "support/random_delta.hpp"

#include <algorithm>
#include <array>

#include "codec/context_model.hpp"

namespace sparsecast::test {
namespace {

constexpr std::array kDTypes = {DType::kBF16,       DType::kF16,    DType::kF32,   DType::kF64,  DType::kF8E4M3,
                                DType::kF8E5M2,     DType::kI8,     DType::kU8,    DType::kI16,  DType::kI32,
                                DType::kI64,        DType::kBool,   DType::kI4X2,  DType::kF4X2, DType::kF8E8M0,
                                DType::kU16,        DType::kU32,    DType::kU64,   DType::kC64,  DType::kF8E4M3Fnuz,
                                DType::kF8E5M2Fnuz, DType::kF6E2M3, DType::kF6E3M2};

/// Mantissa bits of the floating types; for the others a place to cut their special patterns at.
int mantissa_bits(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 7;
    case DType::kF16:
      return 10;
    case DType::kF32:
      return 23;
    case DType::kF64:
      return 52;
    case DType::kF8E4M3:
      return 3;
    default:
      return 2;
  }
}

std::uint64_t width_mask(std::size_t element_bytes) {
  return element_bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * element_bytes)) - 1;
}

/// Zeros, smallest and largest subnormals and normals, one, infinities, NaNs; of both signs.
std::uint64_t special_bits(Random& random, DType dtype) {
  const std::uint64_t mask = width_mask(element_size(dtype));
  const std::uint64_t sign = mask ^ (mask >> 1);
  const std::uint64_t unit = std::uint64_t{1} << mantissa_bits(dtype);
  const std::uint64_t infinity = (mask >> 1) & ~(unit - 1);
  const std::array magnitudes = {std::uint64_t{0}, std::uint64_t{1},    unit - 1,     unit,
                                 unit + 1,         infinity / 2,        infinity - 1, infinity,
                                 infinity + 1,     infinity | unit / 2, mask >> 1,    infinity | (unit - 1),
                                 infinity / 4,     std::uint64_t{2}};
  const std::uint64_t magnitude = random.pick(std::span<const std::uint64_t>(magnitudes));
  return (random.chance(0.5) ? magnitude | sign : magnitude) & mask;
}

/// How the values of a tensor look, before and after.
enum class Fill { kUniform, kSpecial, kNarrow, kZero };
enum class Change { kUniform, kStep, kFlipBit, kFlipSign, kSpecial, kCount };

std::uint64_t filled_bits(Random& random, DType dtype, Fill fill) {
  const std::uint64_t mask = width_mask(element_size(dtype));
  switch (fill) {
    case Fill::kUniform:
      return random.next() & mask;
    case Fill::kSpecial:
      return special_bits(random, dtype);
    case Fill::kNarrow:
      // One exponent or two, both signs, as weights have.
      return (mask / 4 + (random.next() & (mask >> 3)) + ((random.next() & 1) != 0 ? mask ^ (mask >> 1) : 0)) & mask;
    case Fill::kZero:
      break;
  }
  return 0;
}

std::uint64_t changed_bits(Random& random, DType dtype, Change change, std::uint64_t old_bits) {
  const std::size_t bytes = element_size(dtype);
  const std::uint64_t mask = width_mask(bytes);
  switch (change) {
    case Change::kStep: {
      const std::uint64_t distance = random.chance(0.9) ? 1 : 1 + (random.next() >> random.between(1, 63));
      return (random.chance(0.5) ? old_bits + distance : old_bits - distance) & mask;
    }
    case Change::kFlipBit:
      return old_bits ^ std::uint64_t{1} << random.below(8 * bytes);
    case Change::kFlipSign:
      return old_bits ^ (mask ^ (mask >> 1));
    case Change::kSpecial:
      return special_bits(random, dtype);
    default:
      return random.next() & mask;
  }
}

/// Calls touch(index) for the elements to change.
template <class Touch>
void choose_positions(Random& random, std::uint64_t elements, const Touch& touch) {
  switch (random.below(8)) {
    case 0:
      return;
    case 1:
      for (std::uint64_t i = 0; i < elements; ++i) touch(i);
      return;
    case 2:
      touch(random.chance(0.5) ? elements - 1 : 0);
      return;
    case 3:  // Spans: rows that move together.
      for (std::uint64_t spans = random.between(1, 4); spans > 0; --spans) {
        const std::uint64_t first = random.below(elements);
        const std::uint64_t length = random.between(1, std::max<std::uint64_t>(1, elements / 4));
        for (std::uint64_t i = first; i < std::min(elements, first + length); ++i) touch(i);
      }
      return;
    case 4: {  // Strides, and the ends of tiles.
      const std::uint64_t step = random.between(1, 300);
      for (std::uint64_t i = random.below(elements); i < elements; i += step) touch(i);
      for (std::uint64_t i = kTileElems - 1; i < elements; i += kTileElems) touch(i);
      return;
    }
    default: {
      const double density = random.log_uniform(1e-5, 1.0);
      const double skip = -1.0 / std::log1p(-std::min(density, 0.999));
      double at = -std::log(1 - random.unit()) * skip;
      while (at < static_cast<double>(elements)) {
        touch(static_cast<std::uint64_t>(at));
        at += 1 - std::log(1 - random.unit()) * skip;
      }
    }
  }
}

std::vector<std::uint64_t> random_shape(Random& random, const RandomLimits& limits) {
  const double kind = random.unit();
  if (kind < 0.04) return {};
  if (kind < 0.08) return random.chance(0.5) ? std::vector<std::uint64_t>{0} : std::vector<std::uint64_t>{3, 0, 7};
  std::uint64_t most = kind < 0.75 ? 64 : 600;
  if (random.chance(limits.large_chance)) {
    most = static_cast<std::uint64_t>(
        random.log_uniform(600, static_cast<double>(std::max<std::uint64_t>(601, limits.max_elements))));
  }
  const std::uint64_t elements = random.between(1, std::min(most, limits.max_elements));
  if (random.chance(0.6)) return {elements};
  const std::uint64_t rows = random.between(1, std::min<std::uint64_t>(elements, 40));
  if (random.chance(0.7)) return {rows, elements / rows};
  return {1, rows, elements / rows};
}

}  // namespace

TensorTable random_table(Random& random, const RandomLimits& limits) {
  std::vector<TensorSpec> specs;
  std::span<const DType> dtypes = kDTypes;
  if (!limits.all_dtypes)
    dtypes = dtypes.first(static_cast<std::size_t>(std::ranges::find(kDTypes, DType::kU16) - kDTypes.begin()));
  const std::size_t count = random.chance(0.01) ? 0 : random.between(1, limits.max_tensors);
  for (std::size_t t = 0; t < count; ++t) {
    TensorSpec spec;
    spec.name = std::string(1, static_cast<char>('a' + t % 26)) + std::to_string(t);
    spec.dtype = random.chance(0.3) ? DType::kBF16 : random.pick(dtypes);
    spec.shape = random_shape(random, limits);
    specs.push_back(std::move(spec));
  }
  return TensorTable(std::move(specs));
}

TensorState random_state(Random& random, const TensorTable& table) {
  TensorState state;
  for (const TensorSpec& spec : table) {
    Bytes& bits = state.emplace_back(spec.bytes());
    const auto fill = static_cast<Fill>(random.below(4));
    if (fill == Fill::kZero) continue;
    const std::size_t size = element_size(spec.dtype);
    for (std::uint64_t i = 0; i < spec.elements(); ++i) {
      write_element(bits.data(), size, i, filled_bits(random, spec.dtype, fill));
    }
  }
  return state;
}

void change_randomly(Random& random, const TensorTable& table, TensorState& state) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    const DType dtype = table[t].dtype;
    const std::size_t size = element_size(dtype);
    if (table[t].elements() == 0) continue;
    const auto change = static_cast<Change>(random.below(static_cast<std::uint64_t>(Change::kCount)));
    std::byte* bits = state[t].data();
    choose_positions(random, table[t].elements(), [&](std::uint64_t i) {
      write_element(bits, size, i, changed_bits(random, dtype, change, read_element(bits, size, i)));
    });
  }
}

void fill_with_weights(Random& random, const TensorTable& table, TensorState& state) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (!is_floating(table[t].dtype)) continue;
    const ExponentField field = exponent_field(table[t].dtype);
    const std::size_t size = element_size(table[t].dtype);
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      // Half of the weights have the largest exponent, a quarter the next, and so on, as those of a normal
      // distribution.
      const auto below = static_cast<std::uint32_t>(-std::log2(1 - random.unit()));
      const std::uint64_t sign = random.next() & 1;
      const std::uint64_t exponent = field.mask / 2 - std::min(below, field.mask / 2);
      const std::uint64_t mantissa = random.next() & ((std::uint64_t{1} << field.shift) - 1);
      write_element(state[t].data(), size, i, sign << (8 * size - 1) | exponent << field.shift | mantissa);
    }
  }
}

void step_as_an_optimizer(Random& random, const TensorTable& table, TensorState& state) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (!is_floating(table[t].dtype)) continue;
    const ExponentField field = exponent_field(table[t].dtype);
    const std::size_t size = element_size(table[t].dtype);
    const double share_of_largest = random.log_uniform(1e-3, 0.5);
    for (std::uint64_t i = 0; i < table[t].elements(); ++i) {
      const std::uint64_t old_bits = read_element(state[t].data(), size, i);
      const auto exponent = static_cast<std::uint32_t>(old_bits >> field.shift) & field.mask;
      const int below = static_cast<int>(field.mask / 2) - static_cast<int>(exponent);
      if (!random.chance(std::ldexp(share_of_largest, below))) continue;
      write_element(state[t].data(), size, i, changed_bits(random, table[t].dtype, Change::kStep, old_bits));
    }
  }
}

EncodeOptions random_options(Random& random, bool of_hosts) {
  EncodeOptions options;
  options.positions = static_cast<PositionMode>(random.chance(0.5) ? 0 : random.below(5));
  options.values = random.chance(0.5) ? ValueCodec::kUlp : static_cast<ValueCodec>(random.below(3));
  if (of_hosts) {
    if (options.values == ValueCodec::kUlp && random.chance(0.4)) options.positions = PositionMode::kContext;
    options.objective = random.chance(0.3) ? Objective::size() : Objective::speed();
    options.block_changes = random.chance(0.4) ? kLargeBlockChanges : kBlockChanges;
  }
  options.zstd_level = random.chance(0.02) ? static_cast<int>(random.between(1, 3)) : 0;
  options.frame_capacity = random.chance(0.5) ? kMinFrameCapacity : 16U << 20;
  return options;
}

namespace {

void train(Random& random, RandomDelta& delta) {
  fill_with_weights(random, *delta.table, delta.old_state);
  delta.new_state = delta.old_state;
  step_as_an_optimizer(random, *delta.table, delta.new_state);
}

}  // namespace

RandomDelta random_delta(Random& random, const RandomLimits& limits) {
  RandomDelta delta;
  delta.table = std::make_shared<const TensorTable>(random_table(random, limits));
  delta.old_state = random_state(random, *delta.table);
  delta.new_state = delta.old_state;
  change_randomly(random, *delta.table, delta.new_state);
  delta.options = random_options(random, limits.of_hosts);
  if (delta.options.positions == PositionMode::kContext && random.chance(0.7)) train(random, delta);
  return delta;
}

RandomDelta context_step(Random& random, const RandomLimits& limits) {
  RandomDelta delta = random_delta(random, limits);
  train(random, delta);
  delta.options.values = ValueCodec::kUlp;
  delta.options.positions = PositionMode::kContext;
  return delta;
}

}  // namespace sparsecast::test
