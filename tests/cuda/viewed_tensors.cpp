// SPDX-License-Identifier: Apache-2.0
#include "cuda/viewed_tensors.hpp"

#include "core/digest_common.hpp"
#include "core/word.hpp"

namespace sparsecast::test {
namespace {

constexpr std::byte kPattern{0x5A};

std::vector<std::uint64_t> random_shape(Random& random) {
  if (random.chance(0.03)) return {};
  if (random.chance(0.03)) return {4, 0, 2};
  std::uint64_t left = static_cast<std::uint64_t>(random.log_uniform(1, random.chance(0.35) ? 60'000 : 600));
  std::vector<std::uint64_t> shape(random.between(1, 4));
  for (std::size_t d = shape.size(); d > 0; --d) {
    std::uint64_t extent = d == 1 ? left : random.between(1, std::max<std::uint64_t>(1, std::min(left, left / 4 + 2)));
    if (d == shape.size() && random.chance(0.6)) extent = (extent + 15) / 16 * 16;
    shape[d - 1] = std::max<std::uint64_t>(extent, 1);
    left /= shape[d - 1];
  }
  return shape;
}

/// In order, with room behind some dimensions: whole vectors or any number of elements.
Placement pitched_placement(Random& random, const std::vector<std::uint64_t>& shape) {
  Placement place{shape, std::vector<std::int64_t>(shape.size()), 1};
  for (std::size_t d = shape.size(); d > 0; --d) {
    place.strides[d - 1] = static_cast<std::int64_t>(place.elements);
    place.elements *= std::max<std::uint64_t>(shape[d - 1], 1);
    if (random.chance(0.6)) place.elements += random.chance(0.7) ? 16 * random.between(1, 3) : random.between(1, 9);
  }
  return place;
}

DigestOrigin random_origin(Random& random, const TensorTable& table, std::size_t t) {
  if (random.chance(0.2)) return table.digest_origin(t);
  DigestOrigin origin{{random.next(), random.next()}, random.next() >> random.between(18, 63), {}};
  if (random.chance(0.3)) return origin;
  if (random.chance(0.7)) {
    origin.strides = pitched_placement(random, table[t].shape).strides;
  } else {
    for (std::size_t d = 0; d < table[t].shape.size(); ++d) {
      origin.strides.push_back(static_cast<std::int64_t>(random.below(std::uint64_t{1} << 20)));
    }
  }
  return origin;
}

}  // namespace

BoxedDelta random_boxes(Random& random, bool origins) {
  constexpr DType kDTypes[] = {DType::kBF16, DType::kBF16, DType::kF8E4M3, DType::kI16,
                               DType::kF32,  DType::kI32,  DType::kF64,    DType::kU8};
  std::vector<TensorSpec> specs;
  for (std::size_t t = 0, count = random.between(1, 4); t < count; ++t) {
    specs.push_back({"t" + std::to_string(t), random.pick(std::span<const DType>(kDTypes)), random_shape(random)});
  }
  BoxedDelta out;
  out.plain = std::make_shared<const TensorTable>(specs);
  std::vector<DigestOrigin> its_origins;
  for (std::size_t t = 0; t < specs.size(); ++t) its_origins.push_back(random_origin(random, *out.plain, t));
  out.delta.table = origins ? std::make_shared<const TensorTable>(specs, std::move(its_origins)) : out.plain;
  out.delta.old_state = random_state(random, *out.plain);
  out.delta.new_state = out.delta.old_state;
  change_randomly(random, *out.plain, out.delta.new_state);
  out.delta.options = random_options(random);
  out.delta.options.zstd_level = 0;
  return out;
}

StateDigest digest_by_element(const TensorTable& table, std::size_t tensor, const Bytes& bits) {
  __extension__ using Wide = unsigned __int128;
  const TensorSpec& spec = table[tensor];
  const DigestOrigin& origin = table.digest_origin(tensor);
  StateDigest digest;
  for (std::uint64_t i = 0; i < spec.elements(); ++i) {
    std::uint64_t index = origin.first + (origin.strides.empty() ? i : 0);
    std::uint64_t left = i;
    for (std::size_t d = origin.strides.size(); d > 0; --d) {
      index += left % spec.shape[d - 1] * static_cast<std::uint64_t>(origin.strides[d - 1]);
      left /= spec.shape[d - 1];
    }
    const std::uint64_t word = with_word(element_size(spec.dtype), [&]<class T>() {
      return digest_word(static_cast<T>(read_element(bits.data(), sizeof(T), i)));
    });
    const Wide product = Wide{digest_weight(origin.key.lo, origin.key.hi, index)} * word;
    digest += StateDigest{{static_cast<std::uint64_t>(product), static_cast<std::uint64_t>(product >> 64)}};
  }
  return digest;
}

StateDigest digest_by_element(const TensorTable& table, const TensorState& state) {
  StateDigest digest;
  for (std::size_t t = 0; t < table.size(); ++t) digest += digest_by_element(table, t, state[t]);
  return digest;
}

ViewedTensors::ViewedTensors(const TensorTable& table, const TensorState& state, Random& random, bool views)
    : table_(table) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    const TensorSpec& spec = table[t];
    const bool view = views && random.chance(0.8);
    Placement place{{spec.elements()}, {1}, spec.elements()};
    if (view) place = random.chance(0.6) ? pitched_placement(random, spec.shape) : random_placement(random, spec.shape);
    places_.push_back(place);
    skews_.push_back(random.chance(0.7) ? 0 : random.between(1, 9));
    const std::size_t size = element_size(spec.dtype);
    memory_.emplace_back(allocate_shared((skews_[t] + place.elements) * size));
    tensors_.push_back(
        ref_to(table[t], memory_[t].get() + skews_[t] * size, 0, view ? place.strides : std::vector<std::int64_t>{}));
  }
  write(state);
}

Bytes ViewedTensors::image(std::size_t t, const Bytes& bits) const {
  const std::size_t size = element_size(table_[t].dtype);
  Bytes memory((skews_[t] + places_[t].elements) * size, kPattern);
  scatter(places_[t], size, bits, memory.data() + skews_[t] * size);
  return memory;
}

void ViewedTensors::write(const TensorState& state) {
  for (std::size_t t = 0; t < table_.size(); ++t) std::ranges::copy(image(t, state[t]), memory_[t].get());
}

void ViewedTensors::expect_holds(const TensorState& state, const char* what) const {
  for (std::size_t t = 0; t < table_.size(); ++t) {
    const Bytes expected = image(t, state[t]);
    EXPECT_TRUE(read_device(memory_[t].get(), expected.size(), nullptr) == expected)
        << what << ", tensor " << t << ", or what lies around it";
  }
}

}  // namespace sparsecast::test
