# SPDX-License-Identifier: Apache-2.0

# Chooses nvcc, its host compiler and the device architectures, before CMake tries the compiler. What would leave device
# code out without a word, or end deep in a compiler's output, is said in one sentence: an error with SPARSECAST_CUDA=ON,
# else a warning.

# sparsecast_without_device_code(REASON)
function(sparsecast_without_device_code reason)
  if(SPARSECAST_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPARSECAST_CUDA is ON, but ${reason}.")
  endif()
  message(WARNING "sparsecast: device code is left out: ${reason}.")
  set(SPARSECAST_CUDA OFF PARENT_SCOPE)
endfunction()

# CMAKE_CUDA_COMPILER=NOTFOUND: the toolkit's headers and runtime, with NCCL's transport, but no device code.
if(DEFINED CMAKE_CUDA_COMPILER AND NOT CMAKE_CUDA_COMPILER)
  return()
endif()

# nvcc is often installed and not on the PATH. `nvcc` becomes its path.
if(CMAKE_CUDA_COMPILER)
  set(nvcc "${CMAKE_CUDA_COMPILER}")
elseif(DEFINED ENV{CUDACXX})
  find_program(nvcc "$ENV{CUDACXX}" NO_CACHE)
  if(NOT nvcc)
    sparsecast_without_device_code("CUDACXX names '$ENV{CUDACXX}', which is no program")
    return()
  endif()
else()
  find_program(nvcc nvcc NO_CMAKE_SYSTEM_PATH NO_CACHE)
  if(NOT nvcc)
    find_program(nvcc nvcc PATHS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin NO_DEFAULT_PATH NO_CACHE)
    if(NOT nvcc)
      return()  # sparsecast_resolve() tells that.
    endif()
    message(STATUS "sparsecast: nvcc is not on the PATH, and taken from ${nvcc}")
    set(ENV{CUDACXX} "${nvcc}")
  endif()
endif()
# Headers and the runtime come from the same toolkit, not from that of another nvcc on the PATH.
cmake_path(GET nvcc PARENT_PATH toolkit)
cmake_path(GET toolkit PARENT_PATH toolkit)
if(NOT DEFINED CUDAToolkit_ROOT AND EXISTS "${toolkit}/include/cuda_runtime.h")
  set(CUDAToolkit_ROOT "${toolkit}")
endif()

execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE nvcc_release ERROR_QUIET)
if(NOT nvcc_release MATCHES "release ([0-9]+\\.[0-9]+)")
  return()  # Another compiler, such as clang.
endif()
set(nvcc_release "${CMAKE_MATCH_1}")
if(nvcc_release VERSION_LESS 12.0)
  sparsecast_without_device_code("${nvcc} is of CUDA ${nvcc_release}, and its C++20 needs CUDA 12 or newer")
  return()
endif()

# Host code is compiled by the gcc of the PATH, unless somebody has chosen: that may be older than the compiler of
# everything else.
set(host_compiler "${CMAKE_CUDA_HOST_COMPILER}")
if(NOT host_compiler)
  set(host_compiler "$ENV{CUDAHOSTCXX}")
endif()
if(NOT host_compiler)
  set(host_compiler gcc)
endif()
execute_process(COMMAND "${host_compiler}" -dumpfullversion OUTPUT_VARIABLE host_version OUTPUT_STRIP_TRAILING_WHITESPACE
                ERROR_QUIET)
if(host_compiler STREQUAL "gcc" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT host_version VERSION_EQUAL
                                                                                 CMAKE_CXX_COMPILER_VERSION)
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}" CACHE FILEPATH "nvcc's compiler of host code")
  set(host_compiler "${CMAKE_CXX_COMPILER}")
  set(host_version "${CMAKE_CXX_COMPILER_VERSION}")
endif()
# The toolkit itself says which is the newest that it takes.
cmake_path(GET nvcc PARENT_PATH toolkit)
file(GLOB host_config "${toolkit}/../include/crt/host_config.h" "${toolkit}/../targets/*/include/crt/host_config.h"
     /usr/local/cuda-${nvcc_release}/include/crt/host_config.h)
if(host_config AND host_version)
  list(GET host_config 0 host_config)
  file(STRINGS "${host_config}" newest REGEX "gcc versions later than [0-9]+ are not supported")
  string(REGEX REPLACE ".*gcc versions later than ([0-9]+) .*" "\\1" newest "${newest}")
  if(newest AND host_version VERSION_GREATER_EQUAL "${newest}.99")
    sparsecast_without_device_code(
      "CUDA ${nvcc_release} takes GCC ${newest} at most, and ${host_compiler} is GCC ${host_version}: \
install g++-${newest} and configure with -DCMAKE_CXX_COMPILER=g++-${newest} -DCMAKE_CUDA_HOST_COMPILER=g++-${newest}")
    return()
  endif()
endif()

# Architectures: those of the GPUs here, if nobody has chosen.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE here ERROR_QUIET
                  TIMEOUT 30)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" here "${here}")
  list(TRANSFORM here REPLACE "\\." "")
  list(FILTER here EXCLUDE REGEX "^([0-7]?[0-9])$")
  list(SORT here COMPARE NATURAL)
  list(REMOVE_DUPLICATES here)
  if(NOT here)
    set(here 80 90)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${here}" CACHE STRING "Device architectures")
endif()
execute_process(COMMAND "${nvcc}" --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
  string(REGEX MATCH "^[0-9]+" number "${architecture}")
  if(NOT number)
    continue()  # "native", "all"
  elseif(number LESS 80)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES has ${number}, and device code needs sm_80 or newer.")
  elseif(known AND NOT known MATCHES "compute_${number}\n")
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES has ${number}, which nvcc of CUDA ${nvcc_release} does not know \
(sm_100 and sm_120 need 12.8 or newer): take a newer toolkit, or ask for 90, whose code the driver compiles at first use.")
  endif()
endforeach()
