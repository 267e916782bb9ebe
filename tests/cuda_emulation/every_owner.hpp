// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/graph.hpp"

namespace sparsecast::test {

/// One of each class of cuda/common that owns something of the runtime. Its destructor releases all, as that of an
/// object does which a garbage collector destroys in any thread.
struct EveryOwner {
  cuda::DeviceMemory memory{8};
  cuda::PinnedMemory pinned{8};
  cuda::Stream stream;
  cuda::Event event;
  cuda::Graph graph;

  EveryOwner() {
    graph.capture([&](cudaStream_t to) { cuda::check(cudaMemsetAsync(memory.as(), 0, 8, to), "cudaMemsetAsync"); });
  }
};

}  // namespace sparsecast::test
