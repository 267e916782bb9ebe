# Compiles the kernels once more with ptxas's report and prints what each takes. Fails when detect spills registers or
# needs a stack, which would cost memory traffic in the kernel whose floor is the memory's bandwidth, or when another
# spills more than a register or two.
#   cmake -DNVCC=... -DARCHITECTURES=80,90 -DSOURCE_DIR=... -DBINARY_DIR=... -P CheckResources.cmake

string(REPLACE "," ";" architectures "${ARCHITECTURES}")
file(GLOB sources "${SOURCE_DIR}/cuda/*.cu")
set(failures "")
set(hot 0)
foreach(architecture IN LISTS architectures)
  string(REGEX REPLACE "-.*" "" architecture "${architecture}")
  foreach(source IN LISTS sources)
    execute_process(
      COMMAND "${NVCC}" -std=c++20 --expt-relaxed-constexpr -O3 -DNDEBUG -Xptxas -v -cubin
              -o "${BINARY_DIR}/resources.cubin" -gencode "arch=compute_${architecture},code=sm_${architecture}" 
              "-I${SOURCE_DIR}/include" "-I${SOURCE_DIR}/src" "-I${BINARY_DIR}/include" "${source}"
      RESULT_VARIABLE result OUTPUT_VARIABLE report ERROR_VARIABLE report)
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "${source} does not compile for sm_${architecture}:\n${report}")
    endif()
    string(REPLACE ";" " " report "${report}")
    string(REPLACE "\n" ";" report "${report}")
    foreach(line IN LISTS report)
      if(line MATCHES "Compiling entry function '([^']+)'")
        set(kernel "${CMAKE_MATCH_1}")
      elseif(line MATCHES "([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads")
        set(memory "stack ${CMAKE_MATCH_1}, spills ${CMAKE_MATCH_2} and ${CMAKE_MATCH_3}")
        set(allowed 16)
        if(kernel MATCHES "cuda6detect")
          set(allowed 0)
          math(EXPR hot "${hot} + 1")
        endif()
        if(CMAKE_MATCH_1 GREATER allowed)
          list(APPEND failures "sm_${architecture} ${kernel}: ${memory}")
        endif()
      elseif(line MATCHES "Used ([0-9]+) registers")
        message(STATUS "sm_${architecture} ${kernel}: ${CMAKE_MATCH_1} registers, ${memory}")
      endif()
    endforeach()
  endforeach()
endforeach()
if(hot EQUAL 0)
  message(FATAL_ERROR "ptxas reported no detect kernel")
endif()
if(failures)
  list(JOIN failures "\n  " failures)
  message(FATAL_ERROR "kernels that spill:\n  ${failures}")
endif()
