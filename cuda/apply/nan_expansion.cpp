// SPDX-License-Identifier: Apache-2.0
#include "cuda/apply/nan_expansion.hpp"

#include <fmt/format.h>

#include <bit>

#include "core/masked_copy.hpp"
#include "core/trace.hpp"
#include "cuda/common/device_stream.hpp"

namespace sparsecast::cuda {
namespace {

std::string name_of(const TensorSpec& spec) { return fmt::format("tensor '{}'", spec.name); }

void require_nan_fillable_tensor(const TensorSpec& spec) {
  try {
    require_nan_fillable(spec.dtype);
  } catch (const Error& error) {
    throw error.within(name_of(spec));
  }
}

}  // namespace

void NanExpansion::load_kernels(const bool (&sizes)[4], const DeviceStream& loader) {
  const Received nothing{};
  launch_find_tensor_blocks(nothing, nullptr, loader);
  for (unsigned size = 0; size < 4; ++size) {
    if (!sizes[size]) continue;
    launch_check_new_values(size, nothing, Pass::kForward, nullptr, loader);
    launch_fill_elements(size, 0, nullptr, 0, loader);
    launch_expand_blocks(size, nothing, Pass::kForward, {}, nullptr, loader);
    MaskedCopyPlan plan;
    for (const bool contiguous : {true, false}) {
      plan.contiguous = contiguous;
      launch_masked_copy(size, plan, nullptr, nullptr, loader);
    }
  }
}

StateDigest NanExpansion::prepare(const TensorTable& table, const Received& received, const bool (&sizes)[4],
                                  Direction direction, const HostWait& host, const DeviceStream& device) {
  prepared_ = false;
  pass_ = direction == Direction::kForward ? Pass::kForward : Pass::kInverse;
  tensors_.clear();
  block_ranges_.assign(table.size(), {});
  const TraceRange<"device_expand.check"> range;
  prepared_ = received.block_count == 0;
  if (prepared_) return {};
  if (h_ranges_.bytes() == 0) {
    ranges_ = DeviceMemory(table.size() * sizeof(BlockRange));
    h_ranges_ = PinnedMemory(ranges_.bytes());
    control_ = DeviceMemory(sizeof(ExpansionControl));
    h_control_ = PinnedMemory(control_.bytes());
    h_received_ = PinnedMemory(sizeof(ReceiveControl));
  }
  *h_control_.as<ExpansionControl>() = ExpansionControl{};
  copy_async(control_.as(), h_control_.as(), control_.bytes(), cudaMemcpyHostToDevice, device.stream);
  check(cudaMemsetAsync(ranges_.as(), 0, ranges_.bytes(), device.stream), "cudaMemsetAsync");
  launch_find_tensor_blocks(received, ranges_.as<BlockRange>(), device);
  for (unsigned size = 0; size < 4; ++size) {
    if (sizes[size]) launch_check_new_values(size, received, pass_, control_.as<ExpansionControl>(), device);
  }
  read_decision(table, received, host, device);
  prepared_ = true;
  const auto& decision = *h_control_.as<ExpansionControl>();
  return {{decision.digest_lo, decision.digest_hi}};
}

void NanExpansion::read_decision(const TensorTable& table, const Received& received, const HostWait& host,
                                 const DeviceStream& device) {
  copy_async(h_ranges_.as(), ranges_.as(), ranges_.bytes(), cudaMemcpyDeviceToHost, device.stream);
  copy_async(h_control_.as(), control_.as(), control_.bytes(), cudaMemcpyDeviceToHost, device.stream);
  copy_async(h_received_.as(), received.control, sizeof(ReceiveControl), cudaMemcpyDeviceToHost, device.stream);
  host.wait(device.stream, "check the new values");
  if (h_received_.as<ReceiveControl>()->changed_input_error != kNoInputError) {
    throw Error(ErrorCode::kCorrupt, "the frames have changed since they were staged");
  }
  for (std::size_t t = 0; t < table.size(); ++t) {
    block_ranges_[t] = h_ranges_.as<BlockRange>()[t];
    if (block_ranges_[t].begin == block_ranges_[t].end) continue;
    require_nan_fillable_tensor(table[t]);
    tensors_.push_back(t);
  }
  const std::uint64_t input_error = h_control_.as<ExpansionControl>()->nan_input_error;
  if (input_error != kNoInputError) explain(table, received, input_error, host, device);
}

void NanExpansion::explain(const TensorTable& table, const Received& received, std::uint64_t input_error,
                           const HostWait& host, const DeviceStream& device) {
  const PinnedMemory h_block(sizeof(ReceivedBlock));
  copy_async(h_block.as(), received.blocks + (input_error >> 24), h_block.bytes(), cudaMemcpyDeviceToHost,
             device.stream);
  host.wait(device.stream, "hand back a block");
  const ReceivedBlock& block = *h_block.as<ReceivedBlock>();
  const std::uint64_t element = std::uint64_t{block.first_tile} * kTileElems + (input_error & 0xFFFFFF);
  throw Error(ErrorCode::kUnsupported,
              fmt::format("element {} becomes a NaN, which says 'unchanged' in a NaN-masked tensor", element),
              name_of(table[block.tensor]));
}

void NanExpansion::expand(const TensorTable& table, const Received& received, std::size_t tensor, void* d_out,
                          const DeviceStream& device) const {
  if (!prepared_) throw Error(ErrorCode::kUsage, "the staged delta has not been prepared for expansion");
  if (tensor >= table.size()) throw Error(ErrorCode::kUsage, fmt::format("tensor {} of {}", tensor, table.size()));
  const TensorSpec& spec = table[tensor];
  require_nan_fillable_tensor(spec);
  if (spec.elements() == 0) return;
  const std::size_t element_bytes = element_size(spec.dtype);
  if (d_out == nullptr || reinterpret_cast<std::uintptr_t>(d_out) % element_bytes != 0) {
    throw Error(ErrorCode::kUsage, "the output is null or not aligned to its elements", name_of(spec));
  }
  const auto size = static_cast<unsigned>(std::countr_zero(element_bytes));
  auto* const out = static_cast<std::byte*>(d_out);
  const TraceRange<"device_expand"> range({.bytes = spec.bytes()});
  launch_fill_elements(size, nan_pattern(spec.dtype).fill, out, spec.elements(), device);
  const BlockRange& blocks = block_ranges_[tensor];
  if (blocks.begin != blocks.end) launch_expand_blocks(size, received, pass_, blocks, out, device);
}

}  // namespace sparsecast::cuda
