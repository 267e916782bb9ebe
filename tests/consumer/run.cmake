# SPDX-License-Identifier: Apache-2.0

# Run by ctest (tests/ConsumerTest.cmake): install, configure, build and run the consumer.

function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result)
    message(FATAL_ERROR "consumer: ${what} failed (${result}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(run program)
  step("run of ${program}" "${program}")
  if(NOT output MATCHES "sparsecast ${VERSION}: version 1")
    message(FATAL_ERROR "consumer: unexpected output of ${program}:\n${output}")
  endif()
endfunction()

set(prefix "${WORK_DIRECTORY}/prefix")
set(build "${WORK_DIRECTORY}/build")
file(REMOVE_RECURSE "${WORK_DIRECTORY}")

foreach(component IN ITEMS runtime development)
  step("install of ${component}" "${CMAKE_COMMAND}" --install "${BUILD_DIRECTORY}" --config "${CONFIGURATION}"
       --prefix "${prefix}" --component ${component})
endforeach()
step("configure" "${CMAKE_COMMAND}" -S "${SOURCE_DIRECTORY}" -B "${build}" -G "${GENERATOR}"
     "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_BUILD_TYPE=${CONFIGURATION}"
     "-DCMAKE_C_COMPILER=${C_COMPILER}" "-DWITH_C=${WITH_C}" "-DEXPECTED_VERSION=${VERSION}")
step("build" "${CMAKE_COMMAND}" --build "${build}")
run("${build}/consumer")
if(WITH_C)
  run("${build}/consumer_in_c")
endif()

find_program(pkg_config pkg-config)
if(pkg_config)
  file(GLOB_RECURSE description "${prefix}/*/sparsecast.pc")
  step("pkg-config" "${pkg_config}" --cflags --libs --static "${description}")
  separate_arguments(flags UNIX_COMMAND "${output}")
  file(GLOB_RECURSE library "${prefix}/*/libsparsecast.*")
  list(GET library 0 library)
  get_filename_component(library_directory "${library}" DIRECTORY)
  step("build with pkg-config" "${CXX_COMPILER}" -std=c++20 "${SOURCE_DIRECTORY}/main.cpp" ${flags}
       "-Wl,-rpath,${library_directory}" -o "${build}/consumer_by_pkg_config")
  run("${build}/consumer_by_pkg_config")
endif()

file(GLOB layouts "${prefix}/share/sparsecast/layouts/*.json")
if(NOT layouts)
  message(FATAL_ERROR "consumer: no layout files are installed")
endif()

file(GLOB_RECURSE installed "${prefix}/*.hpp" "${prefix}/*.cmake")
foreach(file IN LISTS installed)
  file(READ "${file}" text)
  string(FIND "${text}" "${BUILD_DIRECTORY}" leak)
  if(NOT leak EQUAL -1)
    message(FATAL_ERROR "consumer: ${file} names the build tree at byte ${leak}")
  endif()
endforeach()
message(STATUS "consumer: installed, found, built and run")
