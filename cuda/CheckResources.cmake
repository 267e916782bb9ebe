# Compiles one file of kernels once more with ptxas's report and all warnings, for the build's architectures and the
# newest that this compiler knows of those we ship for, and prints what each kernel takes. Fails when one needs a stack or
# spills registers: kernels whose floor is the memory's bandwidth pay for that in bandwidth.
#   cmake -DNVCC=... -DARCHITECTURES=80,90 -DSOURCE=x.cu -DSOURCE_DIR=... -DBINARY_DIR=... -P CheckResources.cmake

cmake_minimum_required(VERSION 3.25)

string(REPLACE "," ";" architectures "${ARCHITECTURES}")
list(TRANSFORM architectures REPLACE "-.*" "")
execute_process(COMMAND "${NVCC}" --list-gpu-arch OUTPUT_VARIABLE known)
if(known MATCHES "compute_100\n")
  list(APPEND architectures 100)
endif()
list(REMOVE_DUPLICATES architectures)

get_filename_component(name "${SOURCE}" NAME_WE)
set(failures "")
foreach(architecture IN LISTS architectures)
  execute_process(
    COMMAND "${NVCC}" -std=c++20 --expt-relaxed-constexpr -O3 -DNDEBUG -Xcompiler=-Wall,-Wextra --Werror=all-warnings
            -Xptxas -v -cubin -o "${BINARY_DIR}/${name}.${architecture}.cubin" -gencode
            "arch=compute_${architecture},code=sm_${architecture}" "-I${SOURCE_DIR}/include" "-I${SOURCE_DIR}/src"
            "-I${BINARY_DIR}/include" "${SOURCE}"
    RESULT_VARIABLE result OUTPUT_VARIABLE report ERROR_VARIABLE report)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${SOURCE} does not compile for sm_${architecture}:\n${report}")
  endif()
  set(kernels 0)
  string(REPLACE ";" " " report "${report}")
  string(REPLACE "\n" ";" report "${report}")
  foreach(line IN LISTS report)
    if(line MATCHES "Compiling entry function '([^']+)'")
      set(kernel "${CMAKE_MATCH_1}")
    elseif(line MATCHES "([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads")
      set(stack "${CMAKE_MATCH_1}")
      set(memory "stack ${CMAKE_MATCH_1}, spills ${CMAKE_MATCH_2} and ${CMAKE_MATCH_3}")
      if(stack GREATER 0)
        list(APPEND failures "sm_${architecture} ${kernel}: ${memory}")
      endif()
    elseif(line MATCHES "Used ([0-9]+) registers")
      message(STATUS "sm_${architecture} ${kernel}: ${CMAKE_MATCH_1} registers, ${memory}")
      math(EXPR kernels "${kernels} + 1")
    endif()
  endforeach()
  if(kernels EQUAL 0)
    message(FATAL_ERROR "ptxas reported no kernel of ${SOURCE} for sm_${architecture}")
  endif()
endforeach()
if(failures)
  list(JOIN failures "\n  " failures)
  message(FATAL_ERROR "kernels that spill:\n  ${failures}")
endif()
