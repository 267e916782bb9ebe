# SPDX-License-Identifier: Apache-2.0

# Finds the headers of NVTX 3 with extended payloads: in NVTX_ROOT (for the wheel of PyPI, its directory nvidia/nvtx), the
# CUDA toolkit or the system. Defines the imported target NVTX::headers; there is no library to link but the loader's.

find_path(NVTX_INCLUDE_DIR nvtx3/nvToolsExtPayload.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS /usr/local/cuda/include)
mark_as_advanced(NVTX_INCLUDE_DIR)
# The toolkit's directory comes first. Its headers, where they are too old to have payloads, do not go with newer ones.
foreach(directory IN LISTS CUDAToolkit_INCLUDE_DIRS)
  if(EXISTS "${directory}/nvtx3" AND NOT EXISTS "${directory}/nvtx3/nvToolsExtPayload.h")
    unset(NVTX_INCLUDE_DIR CACHE)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NVTX REQUIRED_VARS NVTX_INCLUDE_DIR)

if(NVTX_FOUND AND NOT TARGET NVTX::headers)
  add_library(NVTX::headers INTERFACE IMPORTED)
  set_target_properties(NVTX::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${NVTX_INCLUDE_DIR}"
                                                 INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
endif()
