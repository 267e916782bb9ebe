# SPDX-License-Identifier: Apache-2.0

# Finds hwy and defines the imported target hwy::hwy. Not every distribution ships a working CMake package of it.

find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(PC_hwy QUIET libhwy)
endif()

find_path(hwy_INCLUDE_DIR hwy/highway.h HINTS ${PC_hwy_INCLUDE_DIRS})
find_library(hwy_LIBRARY hwy HINTS ${PC_hwy_LIBRARY_DIRS})
mark_as_advanced(hwy_INCLUDE_DIR hwy_LIBRARY)

set(version_lines "")
if(hwy_INCLUDE_DIR)
  # The version macros moved from highway.h to base.h in 1.0.7.
  foreach(header IN ITEMS base.h highway.h)
    if(EXISTS "${hwy_INCLUDE_DIR}/hwy/${header}" AND NOT version_lines)
      file(STRINGS "${hwy_INCLUDE_DIR}/hwy/${header}" version_lines REGEX "#define HWY_(MAJOR|MINOR|PATCH) ")
    endif()
  endforeach()
  string(REGEX REPLACE "[^0-9]+([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" hwy_VERSION "${version_lines}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(hwy REQUIRED_VARS hwy_LIBRARY hwy_INCLUDE_DIR VERSION_VAR hwy_VERSION)

if(hwy_FOUND AND NOT TARGET hwy::hwy)
  add_library(hwy::hwy UNKNOWN IMPORTED)
  set_target_properties(hwy::hwy PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${hwy_INCLUDE_DIR}"
                                            IMPORTED_LOCATION "${hwy_LIBRARY}")
  if(NOT hwy_LIBRARY MATCHES "\\.a$")
    set_target_properties(hwy::hwy PROPERTIES INTERFACE_COMPILE_DEFINITIONS HWY_SHARED_DEFINE)
  endif()
endif()
