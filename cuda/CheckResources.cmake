# SPDX-License-Identifier: Apache-2.0

# Checks the registers, stack and spills of the kernels of one .cu file. REPORT holds what ptxas printed when the build
# compiled the file (keep_report.sh) for the build's architectures. For every other architecture that is shipped and
# that this compiler knows, the file is compiled once more. Prints the resources of each kernel. With the nvcc of the
# record (bench/results/kernel-cost-sm_90.json) warnings are errors, and it fails when a kernel needs a stack or spills
# registers: kernels whose speed is bounded by memory bandwidth pay for that in bandwidth. Another nvcc allocates registers
# in its own way, which is only told.
#   cmake -DNVCC=... -DREPORT=x.cu.o.report -DSOURCE=x.cu -DSOURCE_DIR=... -DBINARY_DIR=... -P CheckResources.cmake

cmake_minimum_required(VERSION 3.25)

file(READ "${SOURCE_DIR}/bench/results/kernel-cost-sm_90.json" record)
string(JSON recorded_nvcc GET "${record}" nvcc)
execute_process(COMMAND "${NVCC}" --version OUTPUT_VARIABLE nvcc_version)
string(REGEX MATCH "V([0-9.]+)" nvcc_version "${nvcc_version}")
set(nvcc_version "${CMAKE_MATCH_1}")
set(strict "")
if(nvcc_version STREQUAL recorded_nvcc)
  set(strict --Werror=all-warnings)
endif()

set(failures "")
set(reported "")

# Prints the resources of each kernel in REPORT. Appends to `reported` (architectures) and `failures`.
function(read_report report)
  string(REPLACE ";" " " report "${report}")
  string(REPLACE "\n" ";" report "${report}")
  foreach(line IN LISTS report)
    if(line MATCHES "Compiling entry function '([^']+)' for 'sm_([0-9]+)[a-z]?'")
      set(kernel "sm_${CMAKE_MATCH_2} ${CMAKE_MATCH_1}")
      list(APPEND reported "${CMAKE_MATCH_2}")
    elseif(line MATCHES "([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads")
      set(stack "${CMAKE_MATCH_1}")
      set(memory "stack ${CMAKE_MATCH_1}, spills ${CMAKE_MATCH_2} and ${CMAKE_MATCH_3}")
      if(stack GREATER 0)
        list(APPEND failures "${kernel}: ${memory}")
      endif()
    elseif(line MATCHES "Used ([0-9]+) registers")
      message(STATUS "${kernel}: ${CMAKE_MATCH_1} registers, ${memory}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES reported)
  set(reported "${reported}" PARENT_SCOPE)
  set(failures "${failures}" PARENT_SCOPE)
endfunction()

file(READ "${REPORT}" report)
read_report("${report}")
if(NOT reported)
  message(FATAL_ERROR "${REPORT} has no output of ptxas")
endif()

get_filename_component(name "${SOURCE}" NAME_WE)
execute_process(COMMAND "${NVCC}" --list-gpu-arch OUTPUT_VARIABLE known)
foreach(architecture IN ITEMS 80 90 100)
  if(architecture IN_LIST reported OR NOT known MATCHES "compute_${architecture}\n")
    continue()
  endif()
  execute_process(
    COMMAND "${NVCC}" -std=c++20 --expt-relaxed-constexpr -O3 -DNDEBUG -Xcompiler=-Wall,-Wextra ${strict}
            -Xptxas -v -cubin -o "${BINARY_DIR}/${name}.${architecture}.cubin" -gencode
            "arch=compute_${architecture},code=sm_${architecture}" "-I${SOURCE_DIR}" "-I${SOURCE_DIR}/include" "-I${SOURCE_DIR}/src"
            "-I${BINARY_DIR}/include" "${SOURCE}"
    RESULT_VARIABLE result OUTPUT_VARIABLE report ERROR_VARIABLE report)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${SOURCE} does not compile for sm_${architecture}:\n${report}")
  endif()
  read_report("${report}")
  if(NOT architecture IN_LIST reported)
    message(FATAL_ERROR "ptxas reported no kernel of ${SOURCE} for sm_${architecture}")
  endif()
endforeach()
if(failures)
  list(JOIN failures "\n  " failures)
  if(NOT strict)
    message("not judged, because the record is of nvcc ${recorded_nvcc}, and this is ${nvcc_version}; kernels that spill:\n  ${failures}")
    return()
  endif()
  message(FATAL_ERROR "kernels that spill:\n  ${failures}")
endif()
