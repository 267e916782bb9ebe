# SPDX-License-Identifier: Apache-2.0

# Whole programs whose ranks are processes, over the fake NCCL on one emulated device that they share, or two: what
# scripts/gpu_check.sh runs on real ones.

if(SPARSECAST_WITH_NCCL AND SPARSECAST_WITH_RENDEZVOUS)
  # Gives the program an emulated machine (emulated_machine.cpp).
  function(sparsecast_add_emulated_program program)
    add_executable(${program} ${ARGN} emulated_machine/emulated_machine.cpp $<TARGET_OBJECTS:sparsecast_emulated_device>)
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
    target_link_libraries(${program} PRIVATE ${emulated_libraries} GTest::gtest)
    foreach(symbol IN ITEMS _ZN10sparsecast15cuda_device_apiEv _ZN10sparsecast12process_ncclEv
                            _ZN10sparsecast14survey_devicesEv)
      target_link_options(${program} PRIVATE "-Wl,--wrap=${symbol}")
    endforeach()
    sparsecast_record_traces(${program})
    sparsecast_compile_quickly(${program})
  endfunction()

  file(GLOB emulated_group_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/gpu_group/*.cpp")
  sparsecast_add_emulated_program(emulated_group_test ${emulated_group_sources})
  target_compile_definitions(emulated_group_test PRIVATE SPARSECAST_TEST_WITH_DEVICE)
  add_test(NAME emulated_group.syncs COMMAND emulated_group_test --kill 0 --width 64)
  add_test(NAME emulated_group.syncs_on_device COMMAND emulated_group_test --kill 0 --width 64 --memory device)
  add_test(NAME emulated_group.sharded_syncs COMMAND emulated_group_test --sharded 1 --kill 0)
  add_test(NAME emulated_group.a_rank_is_killed COMMAND emulated_group_test --versions 3 --width 64 --memory device)
  set_tests_properties(emulated_group.syncs emulated_group.syncs_on_device emulated_group.sharded_syncs
                       emulated_group.a_rank_is_killed PROPERTIES LABELS unit TIMEOUT 200)

  # The drop-in for NCCL without what loads the real library, in whose place the program has a fake.
  file(GLOB dropin_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/nccl_dropin/*.cpp"
       "${CMAKE_CURRENT_SOURCE_DIR}/nccl_dropin/emulated/*.cpp")
  list(FILTER dropin_sources EXCLUDE REGEX "/(forward|real_library)\\.cpp$")
  add_executable(emulated_dropin_test ${dropin_sources} $<TARGET_OBJECTS:sparsecast_emulated_device>)
  set_target_properties(emulated_dropin_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  target_link_libraries(emulated_dropin_test PRIVATE ${emulated_libraries} GTest::gtest)
  target_include_directories(emulated_dropin_test PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/nccl_dropin/emulated/toolkit")
  target_compile_definitions(emulated_dropin_test PRIVATE SPARSECAST_HAVE_CUDART=1)
  foreach(symbol IN ITEMS _ZN10sparsecast15cuda_device_apiEv _ZN10sparsecast14survey_devicesEv
                          _ZN10sparsecast6dropin13make_endpointERNS0_4SlotEmbi)
    target_link_options(emulated_dropin_test PRIVATE "-Wl,--wrap=${symbol}")
  endforeach()
  sparsecast_record_traces(emulated_dropin_test)
  sparsecast_compile_quickly(emulated_dropin_test)
  add_test(NAME emulated_dropin COMMAND emulated_dropin_test)
  set_tests_properties(emulated_dropin PROPERTIES LABELS unit TIMEOUT 200)

  if(TARGET sparsecast_commands)
    sparsecast_add_emulated_program(emulated_cli "${PROJECT_SOURCE_DIR}/tools/main.cpp")
    target_link_libraries(emulated_cli PRIVATE sparsecast_commands)
  endif()

  if(TARGET sparsecast_emulated_bench)
    sparsecast_add_emulated_program(emulated_bench "${PROJECT_SOURCE_DIR}/bench/cuda_bench/main.cpp"
                                    $<TARGET_OBJECTS:sparsecast_emulated_bench>)
    target_link_libraries(emulated_bench PRIVATE CLI11::CLI11)
  endif()

  if(TARGET sparsecast_perf_objects)
    # Its own objects but for those that use a device.
    sparsecast_add_emulated_program(
      emulated_perf "${PROJECT_SOURCE_DIR}/bench/sparsecast_perf/main.cpp"
      "$<FILTER:$<TARGET_OBJECTS:sparsecast_perf_objects>,EXCLUDE,/(device_weights|synthetic)\\.cpp>")
    target_link_libraries(emulated_perf PRIVATE CLI11::CLI11)
    foreach(detector IN ITEMS snapshot pinned fused)
      add_test(NAME emulated_perf.${detector}
               COMMAND emulated_perf --backend cuda --transport nccl --ranks 3 --share-gpu --detector ${detector}
                       --synthetic --steps 2 --layers 1 --width 64 --vocabulary 256)
      set_tests_properties(emulated_perf.${detector} PROPERTIES LABELS perf TIMEOUT 200)
    endforeach()
    add_test(NAME emulated_perf.a_device_a_rank
             COMMAND emulated_perf --backend cuda --transport nccl --ranks 2 --synthetic --steps 2 --layers 1 --width 64
                     --vocabulary 256)
    set_tests_properties(emulated_perf.a_device_a_rank PROPERTIES LABELS perf TIMEOUT 200 ENVIRONMENT
                                                                  SPARSECAST_EMULATED_DEVICES=2)
  endif()
endif()
