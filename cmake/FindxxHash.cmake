# SPDX-License-Identifier: Apache-2.0

# Finds xxHash and defines the imported target xxHash::xxhash. Not every distribution ships a working CMake package of it.

find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(PC_xxHash QUIET libxxhash)
endif()

find_path(xxHash_INCLUDE_DIR xxhash.h HINTS ${PC_xxHash_INCLUDE_DIRS})
mark_as_advanced(xxHash_INCLUDE_DIR)

if(xxHash_INCLUDE_DIR)
  file(STRINGS "${xxHash_INCLUDE_DIR}/xxhash.h" version_lines REGEX "#define XXH_VERSION_(MAJOR|MINOR|RELEASE)")
  string(REGEX REPLACE "[^0-9]+([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" xxHash_VERSION
                       "${version_lines}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xxHash REQUIRED_VARS xxHash_INCLUDE_DIR VERSION_VAR xxHash_VERSION)

# Only the header: the library is compiled inline.
if(xxHash_FOUND AND NOT TARGET xxHash::xxhash)
  add_library(xxHash::xxhash INTERFACE IMPORTED)
  set_target_properties(xxHash::xxhash PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${xxHash_INCLUDE_DIR}")
endif()
