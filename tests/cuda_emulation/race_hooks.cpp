// SPDX-License-Identifier: Apache-2.0

// Hooks that code compiled with -fsanitize=thread calls, in place of the library of ThreadSanitizer.

#include <cstddef>

#include "cuda_emulation/orders.hpp"
#include "cuda_emulation/races.hpp"
#include "cuda_emulation/reports.hpp"

namespace {

using sparsecast::emulation::races::Access;

void seen(const void* at, std::size_t bytes, Access access, const void* place) {
  if (!sparsecast::emulation::is_watched()) return;
  const sparsecast::emulation::Unwatched looking;  // Which itself calls memcpy and the like.
  sparsecast::emulation::races::touch(at, bytes, access, place);
  sparsecast::emulation::orders::touch(at, bytes, access, place);
}

}  // namespace

#define SPARSECAST_PLACE __builtin_return_address(0)
#define SPARSECAST_HOOKS(bytes)                                                                       \
  void __tsan_read##bytes(void* at) { seen(at, bytes, Access::kRead, SPARSECAST_PLACE); }             \
  void __tsan_write##bytes(void* at) { seen(at, bytes, Access::kWrite, SPARSECAST_PLACE); }           \
  void __tsan_unaligned_read##bytes(void* at) { seen(at, bytes, Access::kRead, SPARSECAST_PLACE); }   \
  void __tsan_unaligned_write##bytes(void* at) { seen(at, bytes, Access::kWrite, SPARSECAST_PLACE); } \
  void __tsan_read##bytes##_pc(void* at, void* place) { seen(at, bytes, Access::kRead, place); }      \
  void __tsan_write##bytes##_pc(void* at, void* place) { seen(at, bytes, Access::kWrite, place); }

#define SPARSECAST_ATOMIC_HOOK(bits, Type, name)                                  \
  Type __tsan_atomic##bits##_##name(volatile Type* at, Type value, int) {         \
    seen(const_cast<Type*>(at), sizeof(Type), Access::kAtomic, SPARSECAST_PLACE); \
    return __atomic_##name(at, value, __ATOMIC_SEQ_CST);                          \
  }
#define SPARSECAST_COMPARE_HOOK(bits, Type, name, weak)                                                        \
  int __tsan_atomic##bits##_compare_exchange_##name(volatile Type* at, Type* expected, Type value, int, int) { \
    seen(const_cast<Type*>(at), sizeof(Type), Access::kAtomic, SPARSECAST_PLACE);                              \
    return __atomic_compare_exchange_n(at, expected, value, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ? 1 : 0; \
  }
#define SPARSECAST_ATOMIC_HOOKS(bits, Type)                                       \
  Type __tsan_atomic##bits##_load(const volatile Type* at, int) {                 \
    seen(const_cast<Type*>(at), sizeof(Type), Access::kAtomic, SPARSECAST_PLACE); \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                 \
  }                                                                               \
  void __tsan_atomic##bits##_store(volatile Type* at, Type value, int) {          \
    seen(const_cast<Type*>(at), sizeof(Type), Access::kAtomic, SPARSECAST_PLACE); \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                \
  }                                                                               \
  Type __tsan_atomic##bits##_exchange(volatile Type* at, Type value, int) {       \
    seen(const_cast<Type*>(at), sizeof(Type), Access::kAtomic, SPARSECAST_PLACE); \
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                      \
  }                                                                               \
  SPARSECAST_ATOMIC_HOOK(bits, Type, fetch_add)                                   \
  SPARSECAST_ATOMIC_HOOK(bits, Type, fetch_sub)                                   \
  SPARSECAST_ATOMIC_HOOK(bits, Type, fetch_and)                                   \
  SPARSECAST_ATOMIC_HOOK(bits, Type, fetch_or)                                    \
  SPARSECAST_COMPARE_HOOK(bits, Type, strong, false)                              \
  SPARSECAST_COMPARE_HOOK(bits, Type, weak, true)

// NOLINTBEGIN: the names are the compiler's.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
void __tsan_read_range(void* at, unsigned long bytes) { seen(at, bytes, Access::kRead, SPARSECAST_PLACE); }
void __tsan_write_range(void* at, unsigned long bytes) { seen(at, bytes, Access::kWrite, SPARSECAST_PLACE); }
SPARSECAST_HOOKS(1)
SPARSECAST_HOOKS(2)
SPARSECAST_HOOKS(4)
SPARSECAST_HOOKS(8)
SPARSECAST_HOOKS(16)
SPARSECAST_ATOMIC_HOOKS(8, unsigned char)
SPARSECAST_ATOMIC_HOOKS(16, unsigned short)
SPARSECAST_ATOMIC_HOOKS(32, unsigned)
SPARSECAST_ATOMIC_HOOKS(64, unsigned long)

// The linker's --wrap: calls of memcpy come here.
void* __real_memcpy(void* to, const void* from, std::size_t bytes);
void* __real_memmove(void* to, const void* from, std::size_t bytes);
void* __real_memset(void* at, int value, std::size_t bytes);
int __real_memcmp(const void* a, const void* b, std::size_t bytes);
void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
  seen(from, bytes, Access::kRead, SPARSECAST_PLACE);
  seen(to, bytes, Access::kWrite, SPARSECAST_PLACE);
  return __real_memcpy(to, from, bytes);
}
void* __wrap_memmove(void* to, const void* from, std::size_t bytes) {
  seen(from, bytes, Access::kRead, SPARSECAST_PLACE);
  seen(to, bytes, Access::kWrite, SPARSECAST_PLACE);
  return __real_memmove(to, from, bytes);
}
void* __wrap_memset(void* at, int value, std::size_t bytes) {
  seen(at, bytes, Access::kWrite, SPARSECAST_PLACE);
  return __real_memset(at, value, bytes);
}
int __wrap_memcmp(const void* a, const void* b, std::size_t bytes) {
  seen(a, bytes, Access::kRead, SPARSECAST_PLACE);
  seen(b, bytes, Access::kRead, SPARSECAST_PLACE);
  return __real_memcmp(a, b, bytes);
}
}
// NOLINTEND
