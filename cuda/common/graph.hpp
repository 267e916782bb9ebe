// SPDX-License-Identifier: Apache-2.0
#pragma once

// Work that is enqueued again and again with the same arguments, captured once into a CUDA graph.

#include <functional>
#include <utility>

#include "cuda/common/streams.hpp"

namespace sparsecast::cuda {

/// Owns one executable CUDA graph, or none. Launches of the graph must not overlap. Not thread-safe.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { drop(); }

  bool captured() const noexcept { return executable_ != nullptr; }
  /// Calls enqueue(stream) and captures into a graph the work that it enqueues on that stream, and on streams that are
  /// forked from it and joined to it. The graph replaces the previous one. None of the work runs yet. Kernels keep the
  /// priority of their streams.
  void capture(const std::function<void(cudaStream_t)>& enqueue) {
    drop();
    device_ = current_device();
    const Stream stream;
    cudaGraph_t graph = nullptr;
    // In thread-local mode, other threads may meanwhile make calls that a capture forbids, such as allocations.
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
      enqueue(stream.get());
    } catch (...) {
      if (cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess) static_cast<void>(cudaGraphDestroy(graph));
      throw;
    }
    check(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
    // Without the flag, all kernels would get the priority of the stream that the graph is launched on.
    const cudaError_t error = cudaGraphInstantiate(&executable_, graph, cudaGraphInstantiateFlagUseNodePriority);
    static_cast<void>(cudaGraphDestroy(graph));
    check(error, "cudaGraphInstantiate");
  }
  /// Enqueues the captured work on `stream`; capture() must have been called.
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch"); }
  /// Destroys the captured graph, if there is one. A launch that is still running is not disturbed.
  void drop() noexcept {
    if (captured()) release_on(device_, [&] { return cudaGraphExecDestroy(std::exchange(executable_, nullptr)); });
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
  int device_ = 0;  ///< Device that was current when the graph was captured.
};

}  // namespace sparsecast::cuda
