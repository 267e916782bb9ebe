#pragma once

#include <functional>

#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast {

/// Receives equally long windows of a tensor: its bytes before and after a patch.
using WindowSink = std::function<void(ConstBytes before, ConstBytes after)>;

/// Walks the whole of `base`'s tensor in windows of at most 1 MiB, and lets go of what was passed.
void for_each_window(const Checkpoint& base, const TensorPatch& patch, const WindowSink& sink);

}  // namespace sparsecast
