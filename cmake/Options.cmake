# SPDX-License-Identifier: Apache-2.0

# Options. A tri-state is AUTO (use it when it is found), ON (fail when it is missing) or OFF.

function(sparsecast_tristate name description)
  set(${name} AUTO CACHE STRING "${description} (AUTO, ON or OFF)")
  set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
  if(NOT "${${name}}" MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${name} is '${${name}}'; it must be AUTO, ON or OFF.")
  endif()
endfunction()

sparsecast_tristate(SPARSECAST_MPI "MPI transport and its tests")
sparsecast_tristate(SPARSECAST_CUDA "Device code")
sparsecast_tristate(SPARSECAST_NCCL "NCCL transport (headers at build time, the library at run time)")
sparsecast_tristate(SPARSECAST_NVTX "Ranges for profilers (NVTX headers)")
sparsecast_tristate(SPARSECAST_RENDEZVOUS "Meeting over TCP with a shared secret")
sparsecast_tristate(SPARSECAST_LOG "Delta logs (libsodium)")
sparsecast_tristate(SPARSECAST_S3 "Delta logs on S3 and HTTP notifications (libcurl)")
sparsecast_tristate(SPARSECAST_TOOLS "The sparsecast command")
sparsecast_tristate(SPARSECAST_TESTS "Tests and soak programs")
sparsecast_tristate(SPARSECAST_EXAMPLES "The examples in C, and the test that sparsecast.h is C")
sparsecast_tristate(SPARSECAST_BENCH "sparsecast_perf and codec_bench")

option(BUILD_SHARED_LIBS "Build the shared library, else the static one" ON)
option(SPARSECAST_PYTHON "The Python module (nanobind of the Python that CMake finds)" OFF)
option(SPARSECAST_FUZZ "libFuzzer targets (needs clang)" OFF)
option(SPARSECAST_PERF_ONLY
       "Build nothing but sparsecast_perf, in the least processor time: of the library only what it links, joined" OFF)
option(SPARSECAST_UNITY "Compile the sources of a directory together: less processor time, but more after an edit" OFF)
set(SPARSECAST_UNITY_FILES 12 CACHE STRING "With SPARSECAST_UNITY: at most so many sources of a directory together")
mark_as_advanced(SPARSECAST_UNITY_FILES)
option(SPARSECAST_WERROR "Treat warnings as errors" OFF)

if(SPARSECAST_PERF_ONLY)
  set(SPARSECAST_UNITY ON)
  set(SPARSECAST_UNITY_FILES 1000)
  foreach(part IN ITEMS LOG S3 TOOLS TESTS EXAMPLES PYTHON FUZZ)
    set(SPARSECAST_${part} OFF)
  endforeach()
endif()

set(SPARSECAST_WHEEL_LICENSES "" CACHE FILEPATH "Notices of what is linked statically, to go into a wheel (scripts/wheel.sh)")
set(SPARSECAST_NCCL_PYTHON "" CACHE FILEPATH "A Python whose nvidia-nccl wheel has nccl.h, if the toolkit has none")

set(SPARSECAST_SANITIZE "" CACHE STRING "Sanitizer of the whole build: empty, address (with undefined) or thread")
set_property(CACHE SPARSECAST_SANITIZE PROPERTY STRINGS "" address thread)
if(NOT "${SPARSECAST_SANITIZE}" MATCHES "^(|address|thread)$")
  message(FATAL_ERROR "SPARSECAST_SANITIZE is '${SPARSECAST_SANITIZE}'; it must be empty, address or thread.")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()
