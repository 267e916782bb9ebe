# SPDX-License-Identifier: Apache-2.0

# sparsecast_add_mpi_test(NAME RANKS PROGRAM [ARGUMENT...]): a ctest case under the MPI launcher.

if(NOT DEFINED SPARSECAST_MPIEXEC_FLAGS)
  execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE launcher_version ERROR_QUIET)
  if(launcher_version MATCHES "Open MPI|OpenRTE|PRTE")
    set(launcher_flags --oversubscribe)
  endif()
  set(SPARSECAST_MPIEXEC_FLAGS "${launcher_flags}" CACHE STRING "Flags of the MPI launcher in tests")
endif()

function(sparsecast_add_mpi_test name ranks)
  add_test(NAME ${name} COMMAND "${MPIEXEC_EXECUTABLE}" ${SPARSECAST_MPIEXEC_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
                                ${ARGN})
  # As in scripts/lib.sh: root must be allowed twice, one machine needs no remote shell, and containers often forbid the
  # kernel's cross-process copy. Leaks inside MPI are not ours to report.
  set_tests_properties(
    ${name}
    PROPERTIES LABELS mpi TIMEOUT 180 PROCESSORS ${ranks}
               ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_plm_rsh_agent=false;\
OMPI_MCA_btl_vader_single_copy_mechanism=none;ASAN_OPTIONS=detect_leaks=0")
endfunction()
