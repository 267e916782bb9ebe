# SPDX-License-Identifier: Apache-2.0

# Installs to a prefix in the build tree, then configures, builds and runs a small program against it.

if(SPARSECAST_SANITIZE OR SPARSECAST_FUZZ)
  return()  # The program is built as a stranger would, without the sanitizer's run-time library.
endif()

add_test(
  NAME consumer
  COMMAND
    "${CMAKE_COMMAND}" "-DBUILD_DIRECTORY=${PROJECT_BINARY_DIR}" "-DSOURCE_DIRECTORY=${CMAKE_CURRENT_SOURCE_DIR}/consumer"
    "-DWORK_DIRECTORY=${PROJECT_BINARY_DIR}/consumer" "-DGENERATOR=${CMAKE_GENERATOR}"
    "-DCXX_COMPILER=${CMAKE_CXX_COMPILER}" "-DWITH_C=$<AND:$<BOOL:${SPARSECAST_WITH_EXAMPLES}>,$<BOOL:${SPARSECAST_WITH_RENDEZVOUS}>>"
    "-DC_COMPILER=${CMAKE_C_COMPILER}" "-DVERSION=${PROJECT_VERSION}" "-DCONFIGURATION=$<CONFIG>" -P
    "${CMAKE_CURRENT_SOURCE_DIR}/consumer/run.cmake")
set_tests_properties(consumer PROPERTIES LABELS consumer TIMEOUT 600)
