#pragma once

// Receiving a delta whose frames lie in device memory.

#include <functional>
#include <string>
#include <vector>

#include "cuda/apply/device_applier.hpp"
#include "cuda/encode/device_encoder.hpp"
#include "cuda_bench/workbench.hpp"

namespace sparsecast::bench {

struct ApplyCase {
  const TensorTable& table;
  std::vector<std::byte*> d_live;  ///< By tensor.
  const DeltaHeader& header;
  const cuda::DeviceFrames& frames;
  std::string what;
  double percent = 0;
  std::uint64_t bytes = 0;      ///< Of all weights.
  std::uint64_t sectors = 0;    ///< 32-byte ones that change; 0: not known.
  std::function<void()> reset;  ///< Makes the live weights the old version, on the bench's stream.
};

/// Rows for stage, apply and digest; afterwards the live weights have been applied to, and their digest's change
/// compared with the encoder's.
void run_apply(Workbench& bench, const ApplyCase& apply);

/// For encoders whose steps `steps` times.
cuda::DeviceEncoderOptions encoder_options(const Workbench& bench, StepTimer& steps);
/// Times whole deltas, from start() to the end of finish(); `frames` become those of the last.
Times time_encoder(Workbench& bench, cuda::DeviceEncoder& encoder, const DeltaHeader& header,
                   const std::function<void()>& reset, StepTimer& steps, cuda::DeviceFrames& frames);
/// A header of version 2 over version 1.
DeltaHeader bench_header(const TensorTable& table, const EncodeOptions& options);
/// A row "phase/step" for each step of `whole`, with bytes where the step moves them all.
void add_steps(Workbench& bench, const StepTimer& steps, const Row& whole, std::uint64_t copied);

}  // namespace sparsecast::bench
