# SPDX-License-Identifier: Apache-2.0

# Tests in Python: the decoder that was written from docs/wire-format.md alone, the command end to end, and what the
# documents name (doc_links_test.py).

# Not cached: the virtual environment may appear between two configurations.
find_program(SPARSECAST_TEST_PYTHON NAMES python3 PATHS "${PROJECT_SOURCE_DIR}/.venv/bin" NO_DEFAULT_PATH NO_CACHE)
if(NOT SPARSECAST_TEST_PYTHON)
  find_program(SPARSECAST_TEST_PYTHON NAMES python3 NO_CACHE)
endif()

if(SPARSECAST_TEST_PYTHON)
  execute_process(COMMAND "${SPARSECAST_TEST_PYTHON}" -c "import numpy" RESULT_VARIABLE numpy_missing OUTPUT_QUIET ERROR_QUIET)
else()
  set(numpy_missing 1)
endif()
if(numpy_missing)
  message(STATUS "sparsecast: the Python tests are left out: no python3 with numpy (tests/requirements.txt)")
  return()
endif()

set(decoder "${CMAKE_CURRENT_SOURCE_DIR}/independent_decoder.py")
if(EXISTS "${decoder}" AND EXISTS "${PROJECT_SOURCE_DIR}/testdata/golden/manifest.json")
  add_test(NAME independent_decoder COMMAND "${SPARSECAST_TEST_PYTHON}" "${decoder}" "${PROJECT_SOURCE_DIR}/testdata/golden")
  set_tests_properties(independent_decoder PROPERTIES LABELS python TIMEOUT 600)
endif()

# Tests of a program get its path.
set(program_of_cli_test sparsecast_cli)
set(program_of_file_system_test sparsecast_cli)
set(program_of_interop_test sparsecast_cli)
set(program_of_log_cli_test sparsecast_cli)
if(SPARSECAST_WITH_RENDEZVOUS)
  set(program_of_perf_launcher_test sparsecast_perf)
else()
  set(program_of_perf_launcher_test "(no launcher in this build)")
endif()

file(GLOB python_tests CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*_test.py")
if(NOT SPARSECAST_WITH_LOG)
  list(FILTER python_tests EXCLUDE REGEX "/(file_system|log_cli)_test\\.py$")
endif()
foreach(source IN LISTS python_tests)
  get_filename_component(name "${source}" NAME_WE)
  if(DEFINED program_of_${name})
    if(NOT TARGET ${program_of_${name}})
      continue()
    endif()
    add_test(NAME ${name} COMMAND "${SPARSECAST_TEST_PYTHON}" "${source}" "$<TARGET_FILE:${program_of_${name}}>")
  else()
    add_test(NAME ${name} COMMAND "${SPARSECAST_TEST_PYTHON}" "${source}")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS python TIMEOUT 900)
endforeach()

# What each kernel takes, against the record: of the default options, as it is shipped.
if(TARGET sparsecast_cuda AND "90" IN_LIST CMAKE_CUDA_ARCHITECTURES AND CMAKE_BUILD_TYPE STREQUAL "Release")
  add_test(NAME cuda.kernel_cost
           COMMAND "${SPARSECAST_TEST_PYTHON}" "${PROJECT_SOURCE_DIR}/scripts/kernel_cost.py" --run
                   --nvcc "${CMAKE_CUDA_COMPILER}" --compare "${PROJECT_SOURCE_DIR}/bench/results/kernel-cost-sm_90.json"
                   "$<TARGET_OBJECTS:sparsecast_cuda>"
           COMMAND_EXPAND_LISTS)
  set_tests_properties(cuda.kernel_cost PROPERTIES LABELS cuda_build SKIP_RETURN_CODE 77 TIMEOUT 300)
endif()

if(TARGET emulated_perf AND TARGET emulated_cli)
  set_tests_properties(gpu_box_test perf_launcher_test
                       PROPERTIES ENVIRONMENT "SPARSECAST_EMULATED_PROGRAMS=$<TARGET_FILE_DIR:emulated_cli>")
endif()

# Runs the same command on an S3 server.
if(SPARSECAST_WITH_LOG AND TARGET sparsecast_cli AND COMMAND sparsecast_add_s3_test)
  sparsecast_add_s3_test(s3.log_cli "${SPARSECAST_TEST_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/log_cli_test.py"
                         "$<TARGET_FILE:sparsecast_cli>" Bucket)
endif()
