# SPDX-License-Identifier: Apache-2.0

# Install rules, the CMake package that find_package(sparsecast) reads, and a pkg-config file.

include(CMakePackageConfigHelpers)

set(package_directory "${CMAKE_INSTALL_LIBDIR}/cmake/sparsecast")

install(
  TARGETS sparsecast
  EXPORT sparsecast-targets
  RUNTIME COMPONENT runtime
  LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE COMPONENT development)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/sparsecast" "${PROJECT_BINARY_DIR}/include/sparsecast"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT sparsecast-targets NAMESPACE sparsecast:: DESTINATION "${package_directory}" COMPONENT development)
if(TARGET sparsecast_cli)
  install(TARGETS sparsecast_cli RUNTIME COMPONENT tools)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/layouts" DESTINATION "${CMAKE_INSTALL_DATADIR}/sparsecast" COMPONENT runtime
        FILES_MATCHING PATTERN "*.json")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT runtime)

# A shared library brings its dependencies along; whoever links the static one must find them.
if(BUILD_SHARED_LIBS)
  set(package_dependencies "")
else()
  set(package_dependencies
      "include(CMakeFindDependencyMacro)
list(PREPEND CMAKE_MODULE_PATH \"\${CMAKE_CURRENT_LIST_DIR}\")
find_dependency(Threads)
find_dependency(xxHash)
find_dependency(zstd)
find_dependency(hwy)
find_dependency(fmt CONFIG)
find_dependency(nlohmann_json CONFIG)
")
  if(SPARSECAST_WITH_MPI)
    string(APPEND package_dependencies "set(MPI_CXX_SKIP_MPICXX ON)\nfind_dependency(MPI COMPONENTS CXX)\n")
  endif()
  if(SPARSECAST_WITH_CUDA OR SPARSECAST_WITH_CUDART)
    # As in Dependencies.cmake.
    string(APPEND package_dependencies "set(sparsecast_minimum_cmake \"\${CMAKE_MINIMUM_REQUIRED_VERSION}\")
set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
find_dependency(CUDAToolkit)
set(CMAKE_MINIMUM_REQUIRED_VERSION \"\${sparsecast_minimum_cmake}\")
")
  endif()
  if(SPARSECAST_WITH_RENDEZVOUS OR SPARSECAST_WITH_LOG OR SPARSECAST_WITH_S3)
    string(APPEND package_dependencies "find_dependency(sodium)\n")
  endif()
  if(SPARSECAST_WITH_S3)
    string(APPEND package_dependencies "find_dependency(CURL)\n")
  endif()
  string(APPEND package_dependencies "list(REMOVE_AT CMAKE_MODULE_PATH 0)")
  install(FILES cmake/FindxxHash.cmake cmake/Findzstd.cmake cmake/Findhwy.cmake cmake/Findsodium.cmake DESTINATION "${package_directory}"
          COMPONENT development)
endif()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/sparsecast-config.cmake.in" "${PROJECT_BINARY_DIR}/sparsecast-config.cmake"
  INSTALL_DESTINATION "${package_directory}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/sparsecast-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/sparsecast-config.cmake" "${PROJECT_BINARY_DIR}/sparsecast-config-version.cmake"
        DESTINATION "${package_directory}" COMPONENT development)

if(BUILD_SHARED_LIBS)
  set(pc_requires_private "")
  set(pc_libs_private "")
  set(pc_cflags "")
else()
  set(pc_requires_private "libzstd fmt libhwy")
  if(SPARSECAST_WITH_RENDEZVOUS OR SPARSECAST_WITH_LOG OR SPARSECAST_WITH_S3)
    string(APPEND pc_requires_private " libsodium")
  endif()
  if(SPARSECAST_WITH_S3)
    string(APPEND pc_requires_private " libcurl")
  endif()
  if(SPARSECAST_WITH_MPI)
    list(JOIN MPI_CXX_LIBRARIES " " pc_libs_private)
  endif()
  if(SPARSECAST_WITH_CUDA)
    string(APPEND pc_libs_private " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
  endif()
  string(APPEND pc_libs_private " -lstdc++ -pthread")
  set(pc_cflags "-DSPARSECAST_STATIC")
endif()
# The two may be absolute; joining keeps an absolute second part as it is.
cmake_path(APPEND pc_libdir "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND pc_includedir "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")
# From the file's own place to the prefix, so that an installed tree can be moved.
file(RELATIVE_PATH pc_prefix "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/sparsecast.pc.in" "${PROJECT_BINARY_DIR}/sparsecast.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/sparsecast.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
        COMPONENT development)
