// SPDX-License-Identifier: Apache-2.0

// Captures of streams into graphs, and what a capture forbids to other calls.

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_emulation/runtime_state.hpp"

namespace {

using sparsecast::emulation::enter;
using sparsecast::emulation::enter_unsafe;
using sparsecast::emulation::kept;

struct Capture {
  CUgraph_st* graph = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalidated = false;
};

std::mutex captures_mutex;
std::vector<Capture> captures;  ///< All that have begun and not ended. Guarded by captures_mutex.
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

struct Launch {
  const CUgraph_st* graph = nullptr;
  cudaStream_t stream = nullptr;
};
thread_local Launch running;  ///< The graph that this thread is launching.

/// Returns the capture that has ended with this call.
Capture end(CUgraph_st* graph) {
  const std::lock_guard lock(captures_mutex);
  const auto found = std::ranges::find(captures, graph, &Capture::graph);
  const Capture ended = *found;
  captures.erase(found);
  return ended;
}

}  // namespace

namespace sparsecast::emulation {

bool capture(cudaStream_t stream, std::function<void(cudaStream_t)> operation) {
  if (!is_captured(stream)) return false;
  CUgraph_st& graph = *stream->graph;
  graph.operations.push_back([stream, of = graph.first, operation = std::move(operation)](cudaStream_t first) {
    operation(stream == of ? first : stream);
  });
  if (stream != graph.first) graph.behind[stream] = 0;
  return true;
}

int running_priority(cudaStream_t stream) {
  const bool of_launch = running.graph != nullptr && !running.graph->node_priorities;
  return priority_of(of_launch ? running.stream : stream);
}

cudaError_t enter_unsafe() {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool forbidden = false;
  const std::lock_guard lock(captures_mutex);
  for (Capture& capture : captures) {
    const bool own = capture.thread == std::this_thread::get_id();
    const bool is_global = capture.mode == cudaStreamCaptureModeGlobal && mode_of_thread == cudaStreamCaptureModeGlobal;
    if (own ? capture.mode == cudaStreamCaptureModeRelaxed : !is_global) continue;
    capture.invalidated = true;
    forbidden = true;
  }
  return forbidden ? kept(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

}  // namespace sparsecast::emulation

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  if (stream == nullptr || stream->graph != nullptr) return kept(cudaErrorStreamCaptureUnsupported);
  stream->graph = new CUgraph_st;
  stream->graph->first = stream;
  const std::lock_guard lock(captures_mutex);
  captures.push_back({stream->graph, mode, std::this_thread::get_id()});
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  *graph = std::exchange(stream->graph, nullptr);
  if (*graph == nullptr) return kept(cudaErrorStreamCaptureUnsupported);
  const Capture ended = end(*graph);
  for (const cudaStream_t joined : (*graph)->joined) joined->graph = nullptr;
  for (const cudaEvent_t event : (*graph)->events) event->graph = nullptr;
  const bool wrong_thread = ended.mode != cudaStreamCaptureModeRelaxed && ended.thread != std::this_thread::get_id();
  // Nothing has followed what the first stream has waited for.
  const bool unjoined = std::ranges::any_of((*graph)->behind, [](const auto& joined) { return joined.second == 0; });
  if (!ended.invalidated && !wrong_thread && !unjoined) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return kept(ended.invalidated ? cudaErrorStreamCaptureInvalidated
              : wrong_thread    ? cudaErrorStreamCaptureWrongThread
                                : cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  if (const cudaError_t error = enter_unsafe(); error != cudaSuccess) return error;
  *executable = new CUgraph_st(*graph);
  (*executable)->node_priorities = (flags & cudaGraphInstantiateFlagUseNodePriority) != 0;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  sparsecast::emulation::count(&sparsecast::emulation::RuntimeCounts::launches);
  running = {executable, stream};
  for (const auto& operation : executable->operations) operation(stream);
  running = {};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return enter();
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return enter_unsafe();
}
