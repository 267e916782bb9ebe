# SPDX-License-Identifier: Apache-2.0

# One line that says what this build has.

foreach(part IN ITEMS MPI NCCL RENDEZVOUS LOG S3 CUDA NVTX TOOLS TESTS EXAMPLES BENCH)
  list(APPEND parts "${part} ${SPARSECAST_WITH_${part}}")
endforeach()
list(JOIN parts ", " parts)
if(SPARSECAST_SANITIZE)
  string(APPEND parts ", sanitizer ${SPARSECAST_SANITIZE}")
endif()
message(STATUS "sparsecast ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}: ${parts}")
unset(parts)
