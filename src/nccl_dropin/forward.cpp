// SPDX-License-Identifier: Apache-2.0

// The functions of NCCL that the drop-in passes on by name. Each is a jump through a table, so it needs no prototype,
// and functions that are newer than the headers of this build are passed on, too. Before the first call, the entries of
// the table lead to code that loads the real library and fills the table; an entry that the real library lacks then
// leads to a function that names it and returns ncclInvalidUsage, or a text where NCCL's function returns one.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "nccl_dropin/real_library.hpp"
#include "sparsecast/error.hpp"

namespace {

constexpr const char* kNames[] = {
#define SPARSECAST_FORWARD(name, number) #name,
#define SPARSECAST_FORWARD_COUNT(count)
#include "nccl_dropin/functions.inc"
#undef SPARSECAST_FORWARD
#undef SPARSECAST_FORWARD_COUNT
};

}  // namespace

extern "C" {

extern void* sparsecast_nccl_table[std::size(kNames)] __attribute__((visibility("hidden")));
void sparsecast_nccl_absent_entry() __attribute__((visibility("hidden")));
__attribute__((visibility("hidden"), used)) void sparsecast_nccl_resolve();
__attribute__((visibility("hidden"), used)) std::intptr_t sparsecast_nccl_absent(unsigned number);

void sparsecast_nccl_resolve() {
  try {
    const sparsecast::dropin::RealLibrary& real = sparsecast::dropin::real_library();
    for (std::size_t i = 0; i < std::size(kNames); ++i) {
      void* const found = dlsym(real.handle, kNames[i]);
      void* const entry = found != nullptr ? found : reinterpret_cast<void*>(&sparsecast_nccl_absent_entry);
      __atomic_store_n(&sparsecast_nccl_table[i], entry, __ATOMIC_RELEASE);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sparsecast: the real NCCL cannot be used: %s\n", error.what());
    for (void*& entry : sparsecast_nccl_table) entry = reinterpret_cast<void*>(&sparsecast_nccl_absent_entry);
  }
}

std::intptr_t sparsecast_nccl_absent(unsigned number) {
  std::fprintf(stderr, "sparsecast: the real NCCL has no %s: take a newer one, or another file in %s\n", kNames[number],
               sparsecast::dropin::kRealVariable);
  // Callers print these, also for the result of a call that has found no real library.
  const std::string_view name = kNames[number];
  if (name.ends_with("ncclGetErrorString") || name.ends_with("ncclGetLastError")) {
    return reinterpret_cast<std::intptr_t>("sparsecast has no real NCCL to ask; standard error has the reason");
  }
  return ncclInvalidUsage;
}

}  // extern "C"

asm(R"(
.hidden sparsecast_nccl_table
.hidden sparsecast_nccl_resolve
.hidden sparsecast_nccl_absent
.globl sparsecast_nccl_absent_entry
.hidden sparsecast_nccl_absent_entry
)");

// r10 and x17 hold the function's number: the ABI lets a jump between functions change them, and no function of NCCL
// has arguments in them. No function of NCCL has arguments in floating-point registers.
#if defined(__x86_64__)
#define SPARSECAST_JUMP(name, number)                                                          \
  ".globl " name "\n.type " name ",@function\n.p2align 4\n" name ":\n endbr64\n movl $" number \
  ", %r10d\n"                                                                                  \
  " jmp *sparsecast_nccl_table+8*" number "(%rip)\n.size " name ",.-" name "\n"
asm(R"(
.text
.type sparsecast_nccl_absent_entry,@function
sparsecast_nccl_absent_entry:
 endbr64
 movl %r10d, %edi
 jmp sparsecast_nccl_absent
.type sparsecast_nccl_resolve_entry,@function
sparsecast_nccl_resolve_entry:
 .cfi_startproc
 endbr64
 pushq %rdi
 pushq %rsi
 pushq %rdx
 pushq %rcx
 pushq %r8
 pushq %r9
 pushq %r10
 .cfi_adjust_cfa_offset 56
 call sparsecast_nccl_resolve
 popq %r10
 popq %r9
 popq %r8
 popq %rcx
 popq %rdx
 popq %rsi
 popq %rdi
 .cfi_adjust_cfa_offset -56
 leaq sparsecast_nccl_table(%rip), %r11
 jmp *(%r11,%r10,8)
 .cfi_endproc
.size sparsecast_nccl_resolve_entry,.-sparsecast_nccl_resolve_entry
)");
#elif defined(__aarch64__)
#define SPARSECAST_JUMP(name, number)                                                                            \
  ".globl " name "\n.type " name ",%function\n.p2align 4\n" name ":\n hint #34\n mov x17, #" number              \
  "\n"                                                                                                           \
  " adrp x16, sparsecast_nccl_table\n add x16, x16, :lo12:sparsecast_nccl_table\n ldr x16, [x16, x17, lsl #3]\n" \
  " br x16\n.size " name ",.-" name "\n"
asm(R"(
.text
.type sparsecast_nccl_absent_entry,%function
sparsecast_nccl_absent_entry:
 hint #34
 mov w0, w17
 b sparsecast_nccl_absent
.type sparsecast_nccl_resolve_entry,%function
sparsecast_nccl_resolve_entry:
 .cfi_startproc
 hint #34
 stp x29, x30, [sp, #-96]!
 .cfi_adjust_cfa_offset 96
 .cfi_rel_offset x29, 0
 .cfi_rel_offset x30, 8
 stp x0, x1, [sp, #16]
 stp x2, x3, [sp, #32]
 stp x4, x5, [sp, #48]
 stp x6, x7, [sp, #64]
 stp x8, x17, [sp, #80]
 bl sparsecast_nccl_resolve
 ldp x8, x17, [sp, #80]
 ldp x6, x7, [sp, #64]
 ldp x4, x5, [sp, #48]
 ldp x2, x3, [sp, #32]
 ldp x0, x1, [sp, #16]
 ldp x29, x30, [sp], #96
 .cfi_adjust_cfa_offset -96
 adrp x16, sparsecast_nccl_table
 add x16, x16, :lo12:sparsecast_nccl_table
 ldr x16, [x16, x17, lsl #3]
 br x16
 .cfi_endproc
.size sparsecast_nccl_resolve_entry,.-sparsecast_nccl_resolve_entry
)");
#else
#error "the drop-in has jumps for x86-64 and aarch64 alone"
#endif

#define SPARSECAST_FORWARD(name, number) asm(SPARSECAST_JUMP(#name, #number));
#define SPARSECAST_FORWARD_COUNT(count)
#include "nccl_dropin/functions.inc"
#undef SPARSECAST_FORWARD
#undef SPARSECAST_FORWARD_COUNT

// The table begins with one and the same entry everywhere.
asm(R"(
.section .data.rel.local,"aw"
.p2align 3
.globl sparsecast_nccl_table
sparsecast_nccl_table:
)");
#define SPARSECAST_FORWARD(name, number)
#define SPARSECAST_FORWARD_COUNT(count) asm(".rept " #count "\n .quad sparsecast_nccl_resolve_entry\n.endr\n.text\n");
#include "nccl_dropin/functions.inc"
#undef SPARSECAST_FORWARD
#undef SPARSECAST_FORWARD_COUNT
