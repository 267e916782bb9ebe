// SPDX-License-Identifier: Apache-2.0

// Counts NVLinks by NVML, which is loaded at run time: it comes with the driver, never with a toolkit.

#include <dlfcn.h>

#include "tools/doctor/doctor.hpp"

namespace sparsecast::tools {
namespace {

constexpr unsigned kMostLinks = 18;

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

int active_nvlinks() {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 0;
  const auto init = symbol<int (*)()>(library, "nvmlInit_v2");
  const auto shutdown = symbol<int (*)()>(library, "nvmlShutdown");
  const auto count_devices = symbol<int (*)(unsigned*)>(library, "nvmlDeviceGetCount_v2");
  const auto device_at = symbol<int (*)(unsigned, void**)>(library, "nvmlDeviceGetHandleByIndex_v2");
  const auto link_state = symbol<int (*)(void*, unsigned, unsigned*)>(library, "nvmlDeviceGetNvLinkState");
  int active = 0;
  if (init != nullptr && shutdown != nullptr && count_devices != nullptr && device_at != nullptr &&
      link_state != nullptr && init() == 0) {
    unsigned devices = 0;
    count_devices(&devices);
    for (unsigned d = 0; d < devices; ++d) {
      void* device = nullptr;
      if (device_at(d, &device) != 0) continue;
      for (unsigned link = 0; link < kMostLinks; ++link) {
        unsigned state = 0;
        if (link_state(device, link, &state) == 0 && state != 0) ++active;
      }
    }
    shutdown();
  }
  dlclose(library);
  return active;
}

}  // namespace sparsecast::tools
