# SPDX-License-Identifier: Apache-2.0

# Language level, warnings, sanitizers and the compiler cache, for every target of the project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_CXX_COMPILER_ID MATCHES "^(GNU|Clang|AppleClang)$"
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
   OR (CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14))
  message(FATAL_ERROR "sparsecast needs GCC 12 or Clang 14, or newer, not ${CMAKE_CXX_COMPILER_ID} \
${CMAKE_CXX_COMPILER_VERSION}: install g++-12 and configure with -DCMAKE_CXX_COMPILER=g++-12.")
endif()

find_program(SPARSECAST_CCACHE ccache)
mark_as_advanced(SPARSECAST_CCACHE)
if(SPARSECAST_CCACHE)
  foreach(language IN ITEMS CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER "${SPARSECAST_CCACHE}")
    endif()
  endforeach()
endif()

# Flags of our own sources: linked privately, so that nobody who uses the library inherits them.
add_library(sparsecast_warnings INTERFACE)
set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Two that GCC 12 raises about inlined parts of its own library, where nothing is wrong.
  list(APPEND warnings -Wno-restrict -Wno-maybe-uninitialized)
endif()
if(SPARSECAST_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A private type is one of the joined file, which the compiler takes for a header's.
  list(APPEND warnings -Wno-subobject-linkage)
endif()
if(SPARSECAST_WERROR)
  list(APPEND warnings -Werror)
endif()
target_compile_options(sparsecast_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")

if(SPARSECAST_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SPARSECAST_FUZZ needs clang: configure with --preset fuzz or CMAKE_CXX_COMPILER=clang++.")
  endif()
  set(sanitizer_flags -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(SPARSECAST_SANITIZE STREQUAL "address")
  set(sanitizer_flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(SPARSECAST_SANITIZE STREQUAL "thread")
  set(sanitizer_flags -fsanitize=thread -fno-omit-frame-pointer)
else()
  set(sanitizer_flags "")
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${sanitizer_flags}>")
add_link_options(${sanitizer_flags})

# sparsecast_join_sources(TARGET SOURCE...): with SPARSECAST_UNITY the compiler gets the sources of each directory as one
# file, or as few, so that it reads the headers that they share only once. CMake's own unity builds name the sources by
# absolute paths, which a compiler's cache does not know again in another checkout; these are relative.
function(sparsecast_join_sources target)
  if(NOT SPARSECAST_UNITY)
    return()
  endif()
  set(alone
      # Compiled once for each instruction set, or with CLI11.
      /codec/[a-z_]*kernels /core/digest_kernels /codec_bench/scan /options /common/parser /main
      # Replaced by the linker where tests run programs on another machine (tests/EmulatedMachine.cmake).
      /cuda_device_api /nccl_library /device_weights /synthetic /doctor_machine
      # Their private names, or headers, clash with those of a neighbour.
      /layout/expert_rules /layout/mesh_map
      /codec_bench/summary /sparsecast_perf/mpi_group /src/sharded /src/sync
      /support/random_layouts /core/safetensors_[a-z]+_test /core/tensor_table_test /interop/[a-z_]+_test /fanout/routes_test
      /layout/trainer_cuts_test /log/follower_trust_test /store/store_contract_test /log/log_publisher_test /sharded/[a-z_]+_test
      /cuda/c_buffer_test /cuda/device_sync_test /cuda/device_encoder_test /cuda/device_views_test /cuda/nan_masked_test /cuda_emulation/[a-z_]+
      /mpi_tests/sharded_elastic_test /mpi_tests/sharded_test)
  if(SPARSECAST_WITH_MPI)
    list(APPEND alone "/transport/mpi/[a-z_]+" /sharded/mpi_groups)
  endif()
  list(JOIN alone "|" alone)
  set(joined "${CMAKE_CURRENT_BINARY_DIR}/joined/${target}")
  set(groups "")
  foreach(source IN LISTS ARGN)
    if(source MATCHES "(${alone})\\.cpp$" OR NOT source MATCHES "^/.*\\.cpp$")
      continue()
    endif()
    if(source MATCHES "/layout/[a-z_]*json[a-z_]*\\.cpp$")
      set(directory layout_json)
    else()
      get_filename_component(directory "${source}" DIRECTORY)
      file(RELATIVE_PATH directory "${PROJECT_SOURCE_DIR}" "${directory}")
      string(REPLACE "/" "_" directory "${directory}")
    endif()
    if(NOT DEFINED count_${directory})
      set(count_${directory} 0)
    endif()
    math(EXPR part "${count_${directory}} / ${SPARSECAST_UNITY_FILES}")
    math(EXPR count_${directory} "${count_${directory}} + 1")
    set(group "${directory}_${part}")
    list(APPEND groups "${group}")
    file(RELATIVE_PATH included "${joined}" "${source}")
    string(APPEND text_${group} "#include \"${included}\"\n")
    # Belongs to the target still, but is compiled as a part of the joined file.
    set_source_files_properties("${source}" PROPERTIES HEADER_FILE_ONLY ON)
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    file(CONFIGURE OUTPUT "${joined}/${group}.cpp" CONTENT "${text_${group}}" @ONLY)
    target_sources(${target} PRIVATE "${joined}/${group}.cpp")
  endforeach()
endfunction()
