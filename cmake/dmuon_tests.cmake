# One way to start every test. Catch2's v2 main is compiled once, unsanitized, for all programs.
#   dmuon_add_test(name LABELS unit SOURCES a.cpp b.cpp [TIMEOUT seconds])
#   dmuon_add_mpi_test(name RANKS 1 2 3 4 SOURCES a.cpp [TIMEOUT seconds] [LABELS distributed])
#   dmuon_test_on_cuda(name [RANKS 1 2] [TIMEOUT seconds])
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
# Open MPI unloads the modules that leaked before the leak check runs: such reports name "<unknown module>", which no
# suppression can match. So leaks are looked for wherever a test starts no MPI job: everything of ours runs there as well.
set(DMUON_ADDRESS_OPTIONS allocator_may_return_null=1)
function(dmuon_test_environment out labels ranks)
  set(options ASAN_OPTIONS=${DMUON_ADDRESS_OPTIONS})
  if(ranks GREATER 1 OR labels MATCHES "end_to_end|distributed")
    string(APPEND options ":detect_leaks=0")
  endif()
  set(${out} "${DMUON_TEST_ENVIRONMENT};${options}" PARENT_SCOPE)
endfunction()

# Plug-ins under the address sanitizer inside a build without one: its library, to be loaded before the program's.
set(DMUON_ADDRESS_LIBRARY "")
set(DMUON_ADDRESS_COMPILE_OPTIONS -fsanitize=address -fno-omit-frame-pointer -O1 -g1)
if(NOT DMUON_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libasan.so OUTPUT_VARIABLE DMUON_ADDRESS_LIBRARY OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT IS_ABSOLUTE "${DMUON_ADDRESS_LIBRARY}")
    set(DMUON_ADDRESS_LIBRARY "")
  endif()
endif()

function(dmuon_test_program name)
  if(NOT TARGET dmuon_test_main)
    add_library(dmuon_test_main STATIC ${CMAKE_SOURCE_DIR}/tests/support/test_main.cpp ${CMAKE_SOURCE_DIR}/tests/support/paths.cpp
      ${CMAKE_SOURCE_DIR}/tests/support/test_device.cpp)
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
  dmuon_test_environment(environment "${A_LABELS}" 1)
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} ENVIRONMENT "${environment}")
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
    dmuon_test_environment(environment "" ${ranks})
    set_tests_properties(${name}_${ranks} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} PROCESSORS 2
      ENVIRONMENT "${environment};OMP_NUM_THREADS=1")
  endforeach()
endfunction()

# The same on a real device, as `<name>_gpu` with label gpu; of a program of several ranks only its run on one.
if(DMUON_GPU_TESTS)
  if(NOT DMUON_HAVE_CUDA)
    message(FATAL_ERROR "DMUON_GPU_TESTS=ON needs the CUDA backend. ${DMUON_CUDA_PROBLEM}")
  endif()
  add_custom_target(gpu_tests)
endif()
function(dmuon_test_on_gpu name timeout ranks)
  add_dependencies(gpu_tests ${name})
  add_dependencies(${name} dmuon_cuda)
  if(ranks)
    add_test(NAME ${name}_gpu COMMAND ${name})
  else()
    add_test(NAME ${name}_gpu COMMAND ${name} "[device]")
  endif()
  set_tests_properties(${name}_gpu PROPERTIES LABELS gpu TIMEOUT ${timeout} RUN_SERIAL ON
    ENVIRONMENT "DMUON_TEST_DEVICE=cuda;DMUON_CUDA_PLUGIN=$<TARGET_FILE:dmuon_cuda>")
endfunction()

# `<name>_cuda_address`: two ranks whose plug-ins are under the address sanitizer, every tensor between red zones of its own.
function(dmuon_test_on_cuda_address name)
  if(NOT DMUON_ADDRESS_LIBRARY OR NOT DMUON_HAVE_MPI OR NOT DMUON_HAVE_CUDA_ON_HOST OR NOT DMUON_NCCL_INCLUDE OR DMUON_GPU_TESTS)
    return()
  endif()
  add_dependencies(${name} dmuon_cuda_on_host_address dmuon_nccl_on_host_address)
  add_test(NAME ${name}_cuda_address COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none -np 2
    env LD_PRELOAD=${DMUON_ADDRESS_LIBRARY} $<TARGET_FILE:${name}>)
  dmuon_test_environment(environment "" 2)
  set_tests_properties(${name}_cuda_address PROPERTIES LABELS cuda_on_host TIMEOUT 300 PROCESSORS 2
    ENVIRONMENT "${environment};DMUON_TEST_DEVICE=cuda;DMUON_TEST_GUARDED=1;DMUON_CUDA_PLUGIN=$<TARGET_FILE:dmuon_cuda_on_host_address>;\
DMUON_NCCL_PLUGIN=$<TARGET_FILE:dmuon_nccl_on_host_address>;OMP_NUM_THREADS=1")
endfunction()

# Runs a test once more on the CUDA backend, its kernels executed on the host by tests/cuda_on_host/, as `<name>_cuda` with label
# cuda_on_host: the cases tagged [device] of a Catch2 program, the whole of a program of several ranks (RANKS, one run each). Such
# tests make their backend by tests/support/test_device.h. Left out without DMUON_HAVE_CUDA_ON_HOST, which the configuration prints.
function(dmuon_test_on_cuda name)
  cmake_parse_arguments(A "" "TIMEOUT" "RANKS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  if(DMUON_GPU_TESTS)
    dmuon_test_on_gpu(${name} ${A_TIMEOUT} "${A_RANKS}")
    return()
  endif()
  if(NOT DMUON_HAVE_CUDA_ON_HOST)
    return()
  endif()
  add_dependencies(${name} dmuon_cuda_on_host)
  set(device "DMUON_TEST_DEVICE=cuda;DMUON_CUDA_PLUGIN=$<TARGET_FILE:dmuon_cuda_on_host>;OMP_NUM_THREADS=1")
  if(NOT A_RANKS)
    add_test(NAME ${name}_cuda COMMAND ${name} "[device]")
    dmuon_test_environment(environment "" 1)
    set_tests_properties(${name}_cuda PROPERTIES LABELS cuda_on_host TIMEOUT ${A_TIMEOUT} ENVIRONMENT "${environment};${device}")
  endif()
  # Several ranks meet through the stand-in of NCCL.
  if(A_RANKS AND DMUON_NCCL_INCLUDE)
    add_dependencies(${name} dmuon_nccl_on_host)
    string(APPEND device ";DMUON_NCCL_PLUGIN=$<TARGET_FILE:dmuon_nccl_on_host>")
  endif()
  foreach(ranks IN LISTS A_RANKS)
    if(ranks EQUAL 1)
      add_test(NAME ${name}_cuda_1 COMMAND ${name})
    elseif(DMUON_HAVE_MPI AND DMUON_NCCL_INCLUDE)
      add_test(NAME ${name}_cuda_${ranks}
        COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none -np ${ranks} $<TARGET_FILE:${name}>)
    else()
      continue()
    endif()
    dmuon_test_environment(environment "" ${ranks})
    set_tests_properties(${name}_cuda_${ranks} PROPERTIES LABELS cuda_on_host TIMEOUT ${A_TIMEOUT} PROCESSORS 2
      ENVIRONMENT "${environment};${device}")
  endforeach()
endfunction()

# Libraries <name>_version, <name>_size and <name>_interface of one source: plug-ins that must be refused, each for that reason.
function(dmuon_add_planted_plugins name source)
  foreach(wrong version size interface)
    add_library(${name}_${wrong} MODULE ${source})
    target_link_libraries(${name}_${wrong} PRIVATE dmuon)
    set(stamp ${DMUON_INTERFACE})
    if(wrong STREQUAL "interface")
      set(stamp fedcba9876543210)
    endif()
    target_compile_definitions(${name}_${wrong} PRIVATE DMUON_INTERFACE="${stamp}"
      ADDED_VERSION=$<IF:$<STREQUAL:${wrong},version>,41,0> ADDED_SIZE=$<IF:$<STREQUAL:${wrong},size>,8,0>)
  endforeach()
endfunction()
