# One way to start every test. Catch2's v2 main is compiled once, unsanitized, for all programs.
#   dmuon_add_test(name LABELS unit SOURCES a.cpp b.cpp [TIMEOUT seconds])
#   dmuon_add_mpi_test(name RANKS 1 2 3 4 SOURCES a.cpp [TIMEOUT seconds] [LABELS distributed])
find_package(Catch2 QUIET)

# What every test runs under. The sanitizers' suppressions name Open MPI only.
set(DMUON_TEST_ENVIRONMENT OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
if(DMUON_SANITIZE)
  set(support ${CMAKE_SOURCE_DIR}/tests/support)
  list(APPEND DMUON_TEST_ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${support}/leak.suppressions:print_suppressions=0"
    "UBSAN_OPTIONS=suppressions=${support}/undefined.suppressions:print_stacktrace=1"
    "TSAN_OPTIONS=suppressions=${support}/thread.suppressions:second_deadlock_stack=1")
endif()

function(dmuon_test_program name)
  if(NOT TARGET dmuon_test_main)
    add_library(dmuon_test_main STATIC ${CMAKE_SOURCE_DIR}/tests/support/test_main.cpp ${CMAKE_SOURCE_DIR}/tests/support/paths.cpp)
    set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/support/paths.cpp TARGET_DIRECTORY dmuon_test_main PROPERTIES
      COMPILE_DEFINITIONS "DMUON_SOURCE_DIRECTORY=\"${CMAKE_SOURCE_DIR}\";DMUON_BINARY_DIRECTORY=\"${CMAKE_BINARY_DIR}\"")
    target_include_directories(dmuon_test_main PUBLIC ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
    target_compile_options(dmuon_test_main PRIVATE -fno-sanitize=all -O1 -Wno-error)
    target_link_libraries(dmuon_test_main PUBLIC dmuon)
  endif()
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE dmuon dmuon_test_main Threads::Threads)
endfunction()

function(dmuon_add_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "LABELS;SOURCES" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  dmuon_test_program(${name} ${A_SOURCES})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} ENVIRONMENT "${DMUON_TEST_ENVIRONMENT}")
endfunction()

function(dmuon_add_mpi_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "RANKS;LABELS;SOURCES" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  if(NOT A_LABELS)
    set(A_LABELS distributed)
  endif()
  dmuon_test_program(${name} ${A_SOURCES})
  foreach(ranks IN LISTS A_RANKS)
    if(ranks EQUAL 1)
      add_test(NAME ${name}_1 COMMAND ${name})
    elseif(DMUON_HAVE_MPI)
      add_test(NAME ${name}_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none -np ${ranks} $<TARGET_FILE:${name}>)
    else()
      continue()
    endif()
    set_tests_properties(${name}_${ranks} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} PROCESSORS 2
      ENVIRONMENT "${DMUON_TEST_ENVIRONMENT};OMP_NUM_THREADS=1")
  endforeach()
endfunction()
