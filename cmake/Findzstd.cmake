# SPDX-License-Identifier: Apache-2.0

# Finds zstd and defines the imported target zstd::zstd. Not every distribution ships a working CMake package of it.

find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(PC_zstd QUIET libzstd)
endif()

find_path(zstd_INCLUDE_DIR zstd.h HINTS ${PC_zstd_INCLUDE_DIRS})
find_library(zstd_LIBRARY zstd HINTS ${PC_zstd_LIBRARY_DIRS})
mark_as_advanced(zstd_INCLUDE_DIR zstd_LIBRARY)

if(zstd_INCLUDE_DIR)
  file(STRINGS "${zstd_INCLUDE_DIR}/zstd.h" version_lines REGEX "#define ZSTD_VERSION_(MAJOR|MINOR|RELEASE) ")
  string(REGEX REPLACE "[^0-9]+([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" zstd_VERSION
                       "${version_lines}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(zstd REQUIRED_VARS zstd_LIBRARY zstd_INCLUDE_DIR VERSION_VAR zstd_VERSION)

if(zstd_FOUND AND NOT TARGET zstd::zstd)
  add_library(zstd::zstd UNKNOWN IMPORTED)
  set_target_properties(zstd::zstd PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${zstd_INCLUDE_DIR}"
                                              IMPORTED_LOCATION "${zstd_LIBRARY}")
endif()
