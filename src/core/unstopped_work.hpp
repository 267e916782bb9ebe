// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device memory after work that could not be stopped. A collective whose abort does not return may still read and write
// its buffers, and cudaFree would wait for it without a deadline. So from then on, for the life of the process, the
// library frees neither device memory nor pinned memory: every owner of such memory asks here first.

namespace sparsecast {

/// Records that work on a device could not be stopped, so that from now on this process frees no device memory and no
/// pinned memory. Writes one line to stderr at the first call. Any thread may call it.
void keep_device_memory() noexcept;
/// Returns true when keep_device_memory() was called. Device memory and pinned memory must then be leaked, not freed.
bool device_memory_is_kept() noexcept;
/// Undoes keep_device_memory(), for tests whose devices are stand-ins and whose work has ended.
void free_device_memory_again() noexcept;

}  // namespace sparsecast
