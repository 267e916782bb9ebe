# SPDX-License-Identifier: Apache-2.0

# Writes OUTPUT, the definitions of common/build_info.hpp. A script that runs at every build, so that a commit changes
# one small source and not the configuration:
#   cmake -DSOURCE=DIR -DBUILD_TYPE=TYPE -DOUTPUT=FILE -P build_info.cmake

set(commit "")
find_program(git git)
if(git)
  # A source tree that was unpacked inside another repository is no commit of that one.
  execute_process(COMMAND "${git}" rev-parse --show-toplevel WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE top
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(source "${SOURCE}" REALPATH)
  if(top STREQUAL source)
    execute_process(COMMAND "${git}" describe --always --dirty WORKING_DIRECTORY "${SOURCE}" OUTPUT_VARIABLE commit
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
# For sources that were copied without their history.
if(NOT commit)
  set(commit "$ENV{SPARSECAST_COMMIT}")
endif()
if(NOT commit MATCHES "^[-+./_a-zA-Z0-9]+$")
  set(commit unknown)
endif()

# In scripts/gpu_check.sh: find cuda -type f | LC_ALL=C sort | xargs sha256sum | sha256sum
file(GLOB_RECURSE files RELATIVE "${SOURCE}" "${SOURCE}/cuda/*")
list(SORT files)
set(sums "")
foreach(file IN LISTS files)
  file(SHA256 "${SOURCE}/${file}" sum)
  string(APPEND sums "${sum}  ${file}\n")
endforeach()
string(SHA256 cuda_hash "${sums}")

set(text "#include \"common/build_info.hpp\"

namespace sparsecast::bench {

std::string_view build_commit() noexcept { return \"${commit}\"; }
std::string_view build_cuda_hash() noexcept { return \"${cuda_hash}\"; }
std::string_view build_type() noexcept { return \"${BUILD_TYPE}\"; }

}  // namespace sparsecast::bench
")
set(before "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" before)
endif()
if(NOT text STREQUAL before)
  file(WRITE "${OUTPUT}" "${text}")
endif()
