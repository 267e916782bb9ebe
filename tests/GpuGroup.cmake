# SPDX-License-Identifier: Apache-2.0

# Several ranks on one GPU, each a process (tests/gpu_group). Over NCCL it is skipped without a device or NCCL; over the
# control channel alone it runs anywhere, so that the program itself is tested.

file(GLOB gpu_group_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/gpu_group/*.cpp")
if(NOT SPARSECAST_WITH_CUDA)
  list(FILTER gpu_group_sources EXCLUDE REGEX "/device_replica\\.cpp$")
endif()
add_executable(gpu_group_test ${gpu_group_sources})
set_target_properties(gpu_group_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
target_link_libraries(gpu_group_test PRIVATE ${test_libraries} sparsecast_device)
sparsecast_compile_quickly(gpu_group_test)
if(SPARSECAST_WITH_CUDA)
  target_compile_definitions(gpu_group_test PRIVATE SPARSECAST_TEST_WITH_DEVICE)
endif()

add_test(NAME gpu_group.over_control COMMAND gpu_group_test --over control --width 64)
add_test(NAME gpu_group.sharded_over_control COMMAND gpu_group_test --over control --sharded 1 --kill 0)
set_tests_properties(gpu_group.over_control gpu_group.sharded_over_control PROPERTIES LABELS unit TIMEOUT 200 SKIP_RETURN_CODE 77)
if(SPARSECAST_WITH_NCCL)
  add_test(NAME gpu_group.syncs COMMAND gpu_group_test --kill 0)
  add_test(NAME gpu_group.syncs_on_device COMMAND gpu_group_test --kill 0 --memory device)
  add_test(NAME gpu_group.sharded_syncs COMMAND gpu_group_test --sharded 1 --kill 0)
  add_test(NAME gpu_group.a_rank_is_killed COMMAND gpu_group_test --versions 3 --memory device)
  set_tests_properties(gpu_group.syncs gpu_group.syncs_on_device gpu_group.sharded_syncs gpu_group.a_rank_is_killed
                       PROPERTIES LABELS gpu TIMEOUT 200 RUN_SERIAL ON SKIP_RETURN_CODE 77)
  # A process finds torch's copy and the system's by itself, but not the one in the wheel that the build was made with.
  if(NCCL_LIBRARY)
    set_tests_properties(gpu_group.syncs gpu_group.syncs_on_device gpu_group.sharded_syncs gpu_group.a_rank_is_killed
                         PROPERTIES ENVIRONMENT "SPARSECAST_NCCL_LIBRARY=${NCCL_LIBRARY}")
  endif()
endif()
