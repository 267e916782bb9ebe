# The device code as g++ compiles it over the emulation in tests/cuda_emulation, so that tests run the very kernels
# without a device; a program of its own, because the library may hold the same functions for a real one.

file(GLOB cuda_launchers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cuda/*.cu" "${PROJECT_SOURCE_DIR}/cuda/*.cpp")
file(GLOB emulated_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cpp"
     "${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulation/*.cpp")
set_source_files_properties(${cuda_launchers} PROPERTIES LANGUAGE CXX)

add_executable(sparsecast_cuda_tests ${emulated_sources} ${cuda_launchers})
set_target_properties(sparsecast_cuda_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
target_compile_definitions(sparsecast_cuda_tests PRIVATE SPARSECAST_CUDA_EMULATION)
target_include_directories(sparsecast_cuda_tests PRIVATE "${PROJECT_SOURCE_DIR}/cuda")
target_link_libraries(sparsecast_cuda_tests PRIVATE ${test_libraries} GTest::gtest_main GTest::gmock)
gtest_discover_tests(sparsecast_cuda_tests DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES LABELS unit
                     TIMEOUT 600)
