// SPDX-License-Identifier: Apache-2.0
#include "nccl_dropin/real_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <optional>

namespace sparsecast::dropin {
namespace {

/// Returns the file of the library that has this address.
Dl_info library_of(const void* address) {
  Dl_info found{};
  dladdr(address, &found);
  return found;
}

/// Throws for the drop-in's own file: its functions would look for the real library again.
void refuse_self(const std::string& path) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("is the drop-in itself; name the file of the real NCCL in {}", kRealVariable), path);
}

RealLibrary load() {
  const char* const named = std::getenv(kRealVariable);
  const NcclLibrary loaded = load_nccl(named == nullptr ? "" : named);
  const Dl_info real = library_of(reinterpret_cast<const void*>(loaded.functions.get_version));
  if (real.dli_fbase == library_of(reinterpret_cast<const void*>(&real_library)).dli_fbase) {
    refuse_self(loaded.info.path);
  }
  RealLibrary library;
  library.functions = loaded.functions;
  library.handle = dlopen(real.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library.handle == nullptr) throw Error(ErrorCode::kUnsupported, "cannot be opened again", loaded.info.path);
  library.bcast = reinterpret_cast<decltype(library.bcast)>(dlsym(library.handle, "ncclBcast"));
  library.comm_init_rank =
      reinterpret_cast<decltype(library.comm_init_rank)>(dlsym(library.handle, "ncclCommInitRank"));
  if (library.bcast == nullptr || library.comm_init_rank == nullptr) {
    throw Error(ErrorCode::kUnsupported, "lacks ncclBcast or ncclCommInitRank", loaded.info.path);
  }
  return library;
}

}  // namespace

const RealLibrary& real_library() {
  static std::mutex mutex;
  static std::optional<RealLibrary> library;
  static thread_local bool loading = false;
  if (loading) refuse_self(library_of(reinterpret_cast<const void*>(&real_library)).dli_fname);
  const std::lock_guard lock(mutex);
  if (library) return *library;
  loading = true;
  try {
    library = load();
  } catch (...) {
    loading = false;
    throw;
  }
  loading = false;
  return *library;
}

}  // namespace sparsecast::dropin
