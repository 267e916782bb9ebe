# SPDX-License-Identifier: Apache-2.0

# The drop-in for NCCL: processes that call it over a fake NCCL, and its exports against those of released libraries.

if(TARGET sparsecast_nccl)
  add_library(fake_libnccl MODULE nccl_dropin/fake_libnccl.cpp)
  target_link_libraries(fake_libnccl PRIVATE fmt::fmt NCCL::headers sparsecast_warnings)
  target_include_directories(fake_libnccl PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include"
                                                   "${PROJECT_BINARY_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_compile_definitions(fake_libnccl PRIVATE SPARSECAST_HAVE_NCCL=1)
  set_target_properties(fake_libnccl PROPERTIES CXX_VISIBILITY_PRESET default)
  target_link_options(fake_libnccl PRIVATE LINKER:-soname,libnccl.so.2)
  add_test(NAME nccl_dropin COMMAND "${SPARSECAST_TEST_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/nccl_dropin/dropin_test.py"
                                    "$<TARGET_FILE:sparsecast_nccl>" "$<TARGET_FILE:fake_libnccl>")
  set_tests_properties(nccl_dropin PROPERTIES LABELS unit TIMEOUT 500)
  add_test(NAME nccl_dropin.forward
           COMMAND "${SPARSECAST_TEST_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/nccl_dropin/forward_test.py"
                   "$<TARGET_FILE:sparsecast_nccl>" "${NCCL_INCLUDE_DIR}/nccl.h" "${CMAKE_CXX_COMPILER}")
  set_tests_properties(nccl_dropin.forward PROPERTIES LABELS unit TIMEOUT 300)
  # The released library, where the build has found one beside its header.
  set(nccl_library "")
  if(NCCL_LIBRARY)
    set(nccl_library "${NCCL_LIBRARY}")
  endif()
  add_test(NAME nccl_dropin.exports
           COMMAND "${SPARSECAST_TEST_PYTHON}" "${PROJECT_SOURCE_DIR}/scripts/nccl_functions.py" --check
                   "$<TARGET_FILE:sparsecast_nccl>" "${NCCL_INCLUDE_DIR}/nccl.h" ${nccl_library})
  set_tests_properties(nccl_dropin.exports PROPERTIES LABELS unit TIMEOUT 60)
  # What gpu_check.sh runs on a GPU, here with tensors on the CPU; skipped where Python has no torch.
  add_test(NAME nccl_dropin.gpu_ranks
           COMMAND "${SPARSECAST_TEST_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/nccl_dropin/gpu_ranks.py" ctypes
                   "$<TARGET_FILE:sparsecast_nccl>" "$<TARGET_FILE:fake_libnccl>")
  set_tests_properties(nccl_dropin.gpu_ranks PROPERTIES LABELS unit TIMEOUT 200 SKIP_RETURN_CODE 69)
endif()
