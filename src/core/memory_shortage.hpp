// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory that the program's own allocator caches (torch keeps freed memory). Before an allocation of the library fails
// for lack of device memory, the library has the program return this cache to the device once, and tries again.

namespace sparsecast {

/// Sets the function that gives the program's cached device memory back to the device; null: none. Any thread may call
/// the function, several at once, with the device that lacks memory as the current one.
void release_memory_by(void (*release)() noexcept) noexcept;
/// Calls the function that release_memory_by() has set, and returns true. Returns false when none is set.
bool release_cached_memory() noexcept;

}  // namespace sparsecast
