# SPDX-License-Identifier: Apache-2.0

# Finds libsodium and defines the imported target sodium::sodium. It ships no CMake package.

find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(PC_sodium QUIET libsodium)
endif()

find_path(sodium_INCLUDE_DIR sodium.h HINTS ${PC_sodium_INCLUDE_DIRS})
find_library(sodium_LIBRARY sodium HINTS ${PC_sodium_LIBRARY_DIRS})
mark_as_advanced(sodium_INCLUDE_DIR sodium_LIBRARY)

if(sodium_INCLUDE_DIR)
  file(STRINGS "${sodium_INCLUDE_DIR}/sodium/version.h" version_line REGEX "#define SODIUM_VERSION_STRING")
  string(REGEX REPLACE ".*\"([^\"]+)\".*" "\\1" sodium_VERSION "${version_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(sodium REQUIRED_VARS sodium_LIBRARY sodium_INCLUDE_DIR VERSION_VAR sodium_VERSION)

if(sodium_FOUND AND NOT TARGET sodium::sodium)
  add_library(sodium::sodium UNKNOWN IMPORTED)
  set_target_properties(sodium::sodium PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${sodium_INCLUDE_DIR}"
                                                  IMPORTED_LOCATION "${sodium_LIBRARY}")
endif()
