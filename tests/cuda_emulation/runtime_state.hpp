// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the files of the emulated runtime share; tests use runtime.hpp.

#include <cstddef>
#include <functional>

#include "cuda_emulation/orders.hpp"
#include "cuda_emulation/races.hpp"
#include "cuda_emulation/runtime.hpp"

struct CUstream_st {
  sparsecast::emulation::orders::Agent agent = sparsecast::emulation::orders::make_agent();
  CUgraph_st* graph = nullptr;  ///< Into which it is being captured.
  int device = 0;
  int priority = 0;  ///< Lower numbers go first.
};

namespace sparsecast::emulation {

/// Notes an error as the last one of this thread, and returns it.
cudaError_t kept(cudaError_t error);
/// Makes a context on the current device, as every call does that needs one. Returns why the call fails, if it does.
cudaError_t enter();
/// The same for a call that is potentially unsafe while streams are captured: one that a capture of this thread, or one
/// in global mode of any other, forbids in the mode of this thread. It invalidates those captures.
cudaError_t enter_unsafe();

/// Adds `more` to a count of the program and of the thread.
void count(std::size_t RuntimeCounts::*what, std::size_t more = 1);
/// Returns whether the memory is pinned.
bool is_pinned(const void* at);

orders::Agent& agent_of(cudaStream_t stream);
/// Returns the device of a stream; for the default stream the current one.
int device_of(cudaStream_t stream);
inline int priority_of(cudaStream_t stream) { return stream != nullptr ? stream->priority : 0; }
/// Returns the priority at which a kernel of the stream runs, which a graph that is being launched may decide.
int running_priority(cudaStream_t stream);
inline bool is_captured(cudaStream_t stream) { return stream != nullptr && stream->graph != nullptr; }
/// Adds an operation of the stream to the graph into which it is captured. Returns false if it is not.
bool capture(cudaStream_t stream, std::function<void(cudaStream_t)> operation);

}  // namespace sparsecast::emulation
