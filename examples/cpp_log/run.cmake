# SPDX-License-Identifier: Apache-2.0

# cmake -DPROGRAM=... -P run.cmake: the example on a new directory of its own.
string(RANDOM LENGTH 12 name)
set(log "$ENV{TMPDIR}")
if(NOT log)
  set(log /tmp)
endif()
set(log "${log}/sparsecast_example_${name}")
file(MAKE_DIRECTORY "${log}")
execute_process(COMMAND "${PROGRAM}" "${log}/log" RESULT_VARIABLE result)
file(REMOVE_RECURSE "${log}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the example ended with ${result}")
endif()
