# SPDX-License-Identifier: Apache-2.0

# Delta logs across a wide-area network of network namespaces: tests/wan/wan_test.py, skipped where there can be none.

if(NOT SPARSECAST_WITH_LOG OR NOT SPARSECAST_WITH_S3 OR NOT TARGET sparsecast_cli OR NOT SPARSECAST_S3_PYTHON)
  return()
endif()

# bench/wan.py uses it, too.
add_executable(wide_area_link wan/wide_area_link.cpp)
set_target_properties(wide_area_link PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
target_link_libraries(wide_area_link PRIVATE sparsecast_warnings)

add_library(shifted_clock MODULE wan/shifted_clock.cpp)
target_link_libraries(shifted_clock PRIVATE sparsecast_warnings)

add_test(NAME wan.log
         COMMAND "${SPARSECAST_S3_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/wan/wan_test.py" "$<TARGET_FILE:sparsecast_cli>"
                 "$<TARGET_FILE:wide_area_link>" "$<TARGET_FILE:shifted_clock>")
set_tests_properties(wan.log PROPERTIES LABELS wan TIMEOUT 300 SKIP_RETURN_CODE 77)
