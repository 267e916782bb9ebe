// SPDX-License-Identifier: Apache-2.0
#pragma once

// Times what a receiver does with a delta whose frames lie in device memory.

#include <functional>
#include <string>
#include <vector>

#include "cuda/apply/device_applier.hpp"
#include "cuda/encode/device_encoder.hpp"
#include "cuda_bench/workbench.hpp"

namespace sparsecast::bench {

/// A delta, and the live weights that it is applied to.
struct ApplyCase {
  const TensorTable& table;
  std::vector<std::byte*> d_live;  ///< Where each tensor of the table begins, in device memory.
  const DeltaHeader& header;
  const cuda::DeviceFrames& frames;
  std::string what;
  double percent = 0;
  std::uint64_t bytes = 0;      ///< Size of all weights.
  std::uint64_t sectors = 0;    ///< 32-byte sectors with a change; 0 when not known.
  std::function<void()> reset;  ///< Sets the live weights to the old version, on the bench's stream.
};

/// Times stage, apply and digest and adds a row for each. Leaves the live weights at the new version, and requires the
/// change of their digest to equal the encoder's.
void run_apply(Workbench& bench, const ApplyCase& apply);
/// Times stage and apply with the entries of the delta kept, and without.
void run_apply_variants(Workbench& bench, const ApplyCase& apply);

using MakeEncoder = std::function<cuda::DeviceEncoder(const cuda::DeviceEncoderOptions&)>;

/// Returns options with the bench's chunk size.
cuda::DeviceEncoderOptions encoder_options(const Workbench& bench);
/// Times the encoding of whole deltas, from start() to the end of finish(), and stores the frames of the last one.
/// `reset` restores the old weights before each round. `steps`, if given, measures the rounds that count.
Times time_encoder(Workbench& bench, cuda::DeviceEncoder& encoder, const DeltaHeader& header,
                   const std::function<void()>& reset, cuda::DeviceFrames& frames, StepTimer* steps = nullptr);
/// Adds a row for each step of an encoder that takes them one after another, without a graph: `whole` is the row of the
/// same encoder as it is used.
void add_encoder_steps(Workbench& bench, const MakeEncoder& make, const DeltaHeader& header,
                       const std::function<void()>& reset, const ResultLine& whole, std::uint64_t copied);
/// Returns a header of version 2 over version 1.
DeltaHeader bench_header(const TensorTable& table, const EncodeOptions& options);
/// Adds a row "phase/step" for each step of `whole`, with a number of bytes if the step moves all of them.
void add_steps(Workbench& bench, const StepTimer& steps, const ResultLine& whole, std::uint64_t copied);

}  // namespace sparsecast::bench
