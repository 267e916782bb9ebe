// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device memory after work that could not be stopped. A collective whose abort does not come back may still read and
// write what it was given, and cudaFree would wait for it without a deadline. So from then on, for the life of the
// process, the library frees neither device memory nor pinned memory: all that owns some asks here first.

namespace sparsecast {

/// Says that work on a device could not be stopped. Writes one line to stderr when it is said for the first time. Any
/// thread may call it.
void keep_device_memory() noexcept;
/// Returns whether that was said: device memory and pinned memory must be left behind in place of being freed.
bool device_memory_is_kept() noexcept;
/// Takes it back, for tests whose devices are stand-ins and whose work has ended.
void free_device_memory_again() noexcept;

}  // namespace sparsecast
