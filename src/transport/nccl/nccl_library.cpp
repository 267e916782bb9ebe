// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include "transport/nccl/nccl_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>

namespace sparsecast {
namespace {

constexpr const char* kCure =
    "install NCCL (the nvidia-nccl wheel, or libnccl2), or name the file in SPARSECAST_NCCL_LIBRARY";

std::string loader_words() {
  const char* const words = dlerror();
  return words == nullptr ? "no reason given" : words;
}

/// Opens the library, and sets `because` to why this one was chosen.
void* open_library(const std::string& requested, std::string& because) {
  // RTLD_LOCAL, because the process may have loaded another NCCL, whose symbols must not mix with these.
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
  if (!requested.empty()) {
    because = kNcclLibraryVariable;
    if (void* const handle = dlopen(requested.c_str(), kMode)) return handle;
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot be loaded: {}", loader_words()), requested);
  }
  because = "already loaded by this process";
  if (void* const handle = dlopen("libnccl.so.2", kMode | RTLD_NOLOAD)) return handle;
  because = "found by the loader";
  std::string tried;
  for (const char* name : {"libnccl.so.2", "libnccl.so"}) {
    if (void* const handle = dlopen(name, kMode)) return handle;
    tried += (tried.empty() ? "" : "; ") + loader_words();
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("no NCCL library: {}; {}", tried, kCure));
}

std::string file_of(const void* symbol, const std::string& requested) {
  Dl_info found{};
  return dladdr(symbol, &found) != 0 && found.dli_fname != nullptr ? found.dli_fname : requested;
}

/// Returns the number in an environment variable, or nullopt if it is not set.
std::optional<int> setting_of(const char* variable, int least, int most) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  const std::string_view digits(text);
  int value = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), value);
  if (error != std::errc{} || end != digits.end() || value < least || value > most) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is not a number from {} to {}", text, least, most), variable);
  }
  return value;
}

class SymbolResolver {
 public:
  explicit SymbolResolver(void* handle) : handle_(handle) {}

  template <class Function>
  void required(const char* name, Function& function) {
    if (!resolve(name, function)) missing_ += (missing_.empty() ? "" : ", ") + std::string(name);
  }
  template <class Function>
  void optional(const char* name, Function& function, NcclLibraryInfo& info) {
    (resolve(name, function) ? info.optional : info.absent).emplace_back(name);
  }
  const std::string& missing() const { return missing_; }

 private:
  template <class Function>
  bool resolve(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    return function != nullptr;
  }
  void* handle_;
  std::string missing_;
};

}  // namespace

NcclLibrary load_nccl(const std::string& requested) {
  NcclLibrary library;
  NcclFunctions& f = library.functions;
  NcclLibraryInfo& info = library.info;
  SymbolResolver resolver(open_library(requested, info.chosen_because));
  resolver.required("ncclGetVersion", f.get_version);
  if (f.get_version == nullptr) {
    throw Error(ErrorCode::kUnsupported, "is no NCCL library: it has no ncclGetVersion", requested);
  }
  info.path = file_of(reinterpret_cast<const void*>(f.get_version), requested);
  if (f.get_version(&f.version) != ncclSuccess || f.version < kOldestNccl) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("is NCCL {}; at least {} is needed", nccl_version_text(f.version), nccl_version_text(kOldestNccl)),
        info.path);
  }
  info.version = f.version;
  resolver.required("ncclGetUniqueId", f.get_unique_id);
  resolver.required("ncclCommInitRankConfig", f.comm_init_rank_config);
  resolver.required("ncclCommSplit", f.comm_split);
  resolver.required("ncclCommDestroy", f.comm_destroy);
  resolver.required("ncclCommFinalize", f.comm_finalize);
  resolver.required("ncclCommAbort", f.comm_abort);
  resolver.required("ncclCommGetAsyncError", f.comm_get_async_error);
  resolver.required("ncclGetErrorString", f.get_error_string);
  resolver.required("ncclGetLastError", f.get_last_error);
  resolver.required("ncclBroadcast", f.broadcast);
  resolver.required("ncclGroupStart", f.group_start);
  resolver.required("ncclGroupEnd", f.group_end);
  if (!resolver.missing().empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("says that it is NCCL {}, but lacks {}", nccl_version_text(f.version), resolver.missing()),
                info.path);
  }
  resolver.optional("ncclMemAlloc", f.mem_alloc, info);
  resolver.optional("ncclMemFree", f.mem_free, info);
  resolver.optional("ncclCommRegister", f.comm_register, info);
  resolver.optional("ncclCommDeregister", f.comm_deregister, info);
  resolver.optional("ncclCommInitRankScalable", f.comm_init_rank_scalable, info);
  resolver.optional("ncclCommShrink", f.comm_shrink, info);
  resolver.optional("ncclCommRevoke", f.comm_revoke, info);
  resolver.optional("ncclCommGrow", f.comm_grow, info);
  resolver.optional("ncclCommGetUniqueId", f.comm_get_unique_id, info);
  resolver.optional("ncclCommSuspend", f.comm_suspend, info);
  resolver.optional("ncclCommResume", f.comm_resume, info);
  resolver.optional("ncclBroadcastConfig", f.broadcast_config, info);
  return library;
}

NcclOptions with_environment(NcclOptions options) {
  if (const auto ctas = setting_of("SPARSECAST_NCCL_BROADCAST_CTAS", 1, 1024); ctas && options.broadcast_ctas == 0) {
    options.broadcast_ctas = *ctas;
  }
  if (setting_of("SPARSECAST_NCCL_SUSPEND", 0, 1) == 1) options.suspend_between_rounds = true;
  return options;
}

const NcclLibrary& process_nccl() {
  static std::mutex mutex;
  static std::optional<NcclLibrary> library;
  const std::lock_guard lock(mutex);
  // Tries again after a failure, because the process may have loaded an NCCL since.
  if (!library) {
    const char* const requested = std::getenv(kNcclLibraryVariable);
    library = load_nccl(requested == nullptr ? "" : requested);
  }
  return *library;
}

}  // namespace sparsecast

#endif
