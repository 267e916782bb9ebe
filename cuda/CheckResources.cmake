# Compiles the kernels once more with ptxas's report and all warnings, for the build's architectures and the newest that
# this compiler knows of those we ship for, and prints what each kernel takes. Fails when one needs a stack or spills
# registers: kernels whose floor is the memory's bandwidth pay for that in bandwidth. Only apply, at the edge of what
# three blocks a multiprocessor leave, may spill a value or two on sm_100, outside of its loop over changes.
#   cmake -DNVCC=... -DARCHITECTURES=80,90 -DSOURCE_DIR=... -DBINARY_DIR=... -P CheckResources.cmake

string(REPLACE "," ";" architectures "${ARCHITECTURES}")
list(TRANSFORM architectures REPLACE "-.*" "")
execute_process(COMMAND "${NVCC}" --list-gpu-arch OUTPUT_VARIABLE known)
if("100" IN_LIST architectures OR known MATCHES "compute_100\n")
  list(APPEND architectures 100)
endif()
list(REMOVE_DUPLICATES architectures)

# That each is found says that the report is still read as it is meant.
set(missing detect encode_blocks assemble_frames decode_blocks check_new_values expand_blocks masked_copy digest_live)
file(GLOB sources "${SOURCE_DIR}/cuda/*.cu")
set(failures "")
foreach(architecture IN LISTS architectures)
  foreach(source IN LISTS sources)
    execute_process(
      COMMAND "${NVCC}" -std=c++20 --expt-relaxed-constexpr -O3 -DNDEBUG -Xcompiler=-Wall,-Wextra --Werror=all-warnings
              -Xptxas -v -cubin -o "${BINARY_DIR}/resources.cubin" -gencode
              "arch=compute_${architecture},code=sm_${architecture}" "-I${SOURCE_DIR}/include" "-I${SOURCE_DIR}/src"
              "-I${BINARY_DIR}/include" "${source}"
      RESULT_VARIABLE result OUTPUT_VARIABLE report ERROR_VARIABLE report)
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "${source} does not compile for sm_${architecture}:\n${report}")
    endif()
    string(REPLACE ";" " " report "${report}")
    string(REPLACE "\n" ";" report "${report}")
    foreach(line IN LISTS report)
      if(line MATCHES "Compiling entry function '([^']+)'")
        set(kernel "${CMAKE_MATCH_1}")
        foreach(name IN LISTS missing)
          if(kernel MATCHES "[0-9]${name}")
            list(REMOVE_ITEM missing ${name})
          endif()
        endforeach()
      elseif(line MATCHES "([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads")
        set(memory "stack ${CMAKE_MATCH_1}, spills ${CMAKE_MATCH_2} and ${CMAKE_MATCH_3}")
        set(allowed 0)
        if(architecture EQUAL 100 AND kernel MATCHES "decode_blocks.*Lb1E")
          set(allowed 8)
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
if(missing)
  message(FATAL_ERROR "ptxas reported nothing of: ${missing}")
endif()
if(failures)
  list(JOIN failures "\n  " failures)
  message(FATAL_ERROR "kernels that spill:\n  ${failures}")
endif()
