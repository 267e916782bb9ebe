# SPDX-License-Identifier: Apache-2.0

# Tests on a real S3 server, which tests/s3_server.py starts and stops: one program, one server for all of its tests.

if(NOT SPARSECAST_WITH_S3)
  return()
endif()

file(GLOB s3_test_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/s3/*_test.cpp")
if(NOT SPARSECAST_WITH_LOG)
  list(FILTER s3_test_sources EXCLUDE REGEX "/log_")
endif()
add_executable(sparsecast_s3_tests ${s3_test_sources} store/store_contract_test.cpp)
set_target_properties(sparsecast_s3_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
target_link_libraries(sparsecast_s3_tests PRIVATE ${test_libraries} sparsecast_no_device GTest::gtest_main)

# The server is in the virtual environment, whose Python finds it; another one may find it in the PATH.
find_program(SPARSECAST_S3_PYTHON NAMES python3 PATHS "${PROJECT_SOURCE_DIR}/.venv/bin" NO_DEFAULT_PATH NO_CACHE)
if(NOT SPARSECAST_S3_PYTHON)
  find_program(SPARSECAST_S3_PYTHON NAMES python3 NO_CACHE)
endif()
if(NOT SPARSECAST_S3_PYTHON)
  message(STATUS "sparsecast: the tests on an S3 server are left out: no python3")
  return()
endif()

# sparsecast_add_s3_test(NAME COMMAND...): the command finds a bucket in SPARSECAST_TEST_BUCKET and AWS_* to reach it.
function(sparsecast_add_s3_test name)
  add_test(NAME ${name} COMMAND "${SPARSECAST_S3_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/s3_server.py" ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS s3 TIMEOUT 300 SKIP_RETURN_CODE 77)
endfunction()

sparsecast_add_s3_test(s3.store "$<TARGET_FILE:sparsecast_s3_tests>")
