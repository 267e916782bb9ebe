// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a program does when a device has too little memory: its own allocator may keep freed memory (torch's does), and
// can return it to the device. All that takes device memory asks for that once, and tries again.

namespace sparsecast {

/// Makes `release` what returns such memory; null for none. It is called in any thread, with the device in question
/// current there, and by several at once.
void release_memory_by(void (*release)() noexcept) noexcept;
/// Calls it. Returns false when there is none.
bool release_cached_memory() noexcept;

}  // namespace sparsecast
