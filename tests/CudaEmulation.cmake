# SPDX-License-Identifier: Apache-2.0

# The device code as g++ compiles it over the emulation in tests/cuda_emulation, so that tests run the very kernels
# without a device; a program of its own, because the library may hold the same functions for a real one.

# Ranges are seen by a library that NVTX loads as it would a profiler.
if(SPARSECAST_WITH_NVTX)
  add_library(trace_recorder MODULE trace/recorder.cpp)
  target_link_libraries(trace_recorder PRIVATE sparsecast_test_settings NVTX::headers)
  target_compile_definitions(trace_recorder PRIVATE SPARSECAST_HAVE_NVTX=1)
  set_target_properties(trace_recorder PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib/test_modules")
endif()
function(sparsecast_record_traces program)
  if(SPARSECAST_WITH_NVTX)
    target_link_libraries(${program} PRIVATE NVTX::headers)
    target_compile_definitions(${program} PRIVATE SPARSECAST_HAVE_NVTX=1
                                                  SPARSECAST_TEST_RECORDER="$<TARGET_FILE:trace_recorder>")
    add_dependencies(${program} trace_recorder)
  endif()
endfunction()

file(GLOB_RECURSE cuda_launchers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cuda/*.cu" "${PROJECT_SOURCE_DIR}/cuda/*.cpp")
set_source_files_properties(${cuda_launchers} PROPERTIES LANGUAGE CXX)
file(GLOB emulated_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cpp"
     "${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulation/*_test.cpp")
file(GLOB emulation CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulation/*.cpp")
list(FILTER emulation EXCLUDE REGEX "(_test|/race_hooks)\\.cpp$")
# Device code of sparsecast_perf, on the emulated device.
if(TARGET sparsecast_perf_objects)
  list(APPEND cuda_launchers "${PROJECT_SOURCE_DIR}/bench/sparsecast_perf/device_weights.cpp"
       "${PROJECT_SOURCE_DIR}/bench/sparsecast_perf/synthetic.cpp")
else()
  list(FILTER emulated_sources EXCLUDE REGEX "/perf_[a-z_]*test\\.cpp$")
endif()

# Settings of everything that is compiled for the emulated device.
add_library(sparsecast_emulated_settings INTERFACE)
target_compile_definitions(sparsecast_emulated_settings INTERFACE SPARSECAST_CUDA_EMULATION)
if(SPARSECAST_SANITIZE STREQUAL "thread")
  # The fibers of a CTA run on one thread, whose stack of calls ThreadSanitizer would lose track of.
  target_compile_options(
    sparsecast_emulated_settings
    INTERFACE $<IF:$<CXX_COMPILER_ID:GNU>,--param=tsan-instrument-func-entry-exit=0,SHELL:-mllvm
              -tsan-instrument-func-entry-exit=0>)
endif()
target_include_directories(sparsecast_emulated_settings INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulation/toolkit")
set(emulated_libraries sparsecast_emulated_settings ${test_libraries})
if(TARGET bench_common)
  target_include_directories(sparsecast_emulated_settings INTERFACE "${PROJECT_SOURCE_DIR}/bench")
  list(APPEND emulated_libraries bench_common)
endif()

# Parts of the backend and of the emulation, for the programs below.
function(sparsecast_add_emulated_device name)
  add_library(${name} OBJECT ${ARGN})
  sparsecast_join_sources(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${emulated_libraries} GTest::gtest)
  sparsecast_record_traces(${name})
endfunction()
sparsecast_add_emulated_device(sparsecast_emulated_device ${cuda_launchers} ${emulation})

function(sparsecast_add_emulated_tests program prefix filter)
  add_executable(${program} ${ARGN})
  sparsecast_join_sources(${program} ${ARGN})
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  target_link_libraries(${program} PRIVATE ${emulated_libraries} GTest::gtest_main GTest::gmock)
  sparsecast_record_traces(${program})
  sparsecast_compile_quickly(${program})
  gtest_discover_tests(${program} TEST_PREFIX "${prefix}" TEST_FILTER "${filter}" DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS unit TIMEOUT 1800)
endfunction()

# Instruments every memory access, to find data races (cuda_emulation/races.hpp, orders.hpp): the hooks of the
# compiler without the library of the sanitizer. The checking code itself is not instrumented. The first random cases
# suffice, and those over NCCL are left out, because the fake NCCL copies device memory on the host.
if(NOT SPARSECAST_SANITIZE)
  set(watch -fsanitize=thread -g1 $<$<CXX_COMPILER_ID:GNU>:--param=tsan-instrument-func-entry-exit=0>)
  sparsecast_add_emulated_device(sparsecast_race_watch ${emulation} cuda_emulation/race_hooks.cpp)
  sparsecast_add_emulated_device(sparsecast_watched_device ${cuda_launchers})
  target_compile_options(sparsecast_watched_device PRIVATE ${watch})

  set(first_cases "-Random/*/1:Random/*/2:Random/*/3:Random/*/4:Random/*/5:Order/*/1:DeviceSync.*:CBufferOnDevice.*:*FrameRound*:ShardedMemory.*")
  # Cases that run the same code again, for longer.
  string(APPEND first_cases ":DeviceShardedMasters.*:*Byraw:*HostToDevice*:*DeviceToHost*:*AFullArena*")
  string(APPEND first_cases ":DeviceApplierGolden.*:*PerfDeviceWeights*:*AnEngineMayMove*:*HasForgottenEverything*")
  set(watched_tests ${emulated_sources})
  list(FILTER watched_tests EXCLUDE REGEX "/cuda_bench_test\\.cpp$")
  sparsecast_add_emulated_tests(
    sparsecast_race_tests "races." "${first_cases}" ${watched_tests} $<TARGET_OBJECTS:sparsecast_race_watch>
    $<TARGET_OBJECTS:sparsecast_watched_device>)
  target_compile_options(sparsecast_race_tests PRIVATE ${watch})
  foreach(target IN ITEMS sparsecast_race_watch sparsecast_watched_device sparsecast_race_tests)
    target_compile_definitions(${target} PRIVATE SPARSECAST_EMULATION_RACES)
  endforeach()
  target_link_options(sparsecast_race_tests PRIVATE -Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset,--wrap=memcmp)
endif()

# The benchmark too, but for its main(). CUB's device-wide algorithms have fakes in cuda_emulation/toolkit.
set(emulated_bench "")
if(TARGET bench_common)
  file(GLOB bench_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/cuda_bench/*.cu"
       "${PROJECT_SOURCE_DIR}/bench/cuda_bench/*.cpp")
  list(FILTER bench_sources EXCLUDE REGEX "/main\\.cpp$")
  set_source_files_properties(${bench_sources} PROPERTIES LANGUAGE CXX)
  sparsecast_add_emulated_device(sparsecast_emulated_bench ${bench_sources})
  set(emulated_bench $<TARGET_OBJECTS:sparsecast_emulated_bench>)
else()
  list(FILTER emulated_sources EXCLUDE REGEX "/cuda_bench_test\\.cpp$")
endif()
sparsecast_add_emulated_tests(sparsecast_cuda_tests "" "*" ${emulated_sources} ${emulated_bench}
                              $<TARGET_OBJECTS:sparsecast_emulated_device>)
include(EmulatedMachine.cmake)

# Runs the same tests on a real device; without one they are skipped.
if(SPARSECAST_WITH_CUDA)
  file(GLOB gpu_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cpp")
  if(NOT TARGET sparsecast_perf_objects)
    list(FILTER gpu_sources EXCLUDE REGEX "/perf_[a-z_]*test\\.cpp$")
  endif()
  add_executable(sparsecast_gpu_tests ${gpu_sources} $<TARGET_OBJECTS:sparsecast_cuda>)
  sparsecast_join_sources(sparsecast_gpu_tests ${gpu_sources})
  set_target_properties(sparsecast_gpu_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin"
                                                        LINKER_LANGUAGE CXX)
  target_link_libraries(sparsecast_gpu_tests PRIVATE ${test_libraries} GTest::gtest_main GTest::gmock
                                                     CUDA::cudart_static)
  sparsecast_record_traces(sparsecast_gpu_tests)
  sparsecast_compile_quickly(sparsecast_gpu_tests)
  if(TARGET sparsecast_perf_objects)
    target_link_libraries(sparsecast_gpu_tests PRIVATE sparsecast_perf_objects bench_common)
  endif()
  set(gpu_tests "${PROJECT_BINARY_DIR}/bin/sparsecast_gpu_tests")
  configure_file(GpuSuites.cmake.in gpu_suites.cmake @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${CMAKE_CURRENT_BINARY_DIR}/gpu_suites.cmake")
endif()
