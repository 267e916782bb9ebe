// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory that the program's own allocator caches (torch keeps freed memory). Before an allocation of the library fails
// for lack of device memory, the library has the program return this cache to the device once, and tries again.

namespace sparsecast {

/// Sets the function that returns the cache to the device; null for none. Any thread may call it, several at once, with
/// the device that lacks memory as the current one.
void release_memory_by(void (*release)() noexcept) noexcept;
/// Calls the function that release_memory_by() has set. Returns false when there is none.
bool release_cached_memory() noexcept;

}  // namespace sparsecast
