# NCCL's communicator against a stand-in for NCCL; uses the stand-in of the runtime that the CUDA plug-in brings.
if(DMUON_NCCL_INCLUDE)
  file(GLOB DMUON_NCCL_ON_HOST_SOURCES CONFIGURE_DEPENDS nccl*.cpp ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.cpp)
  add_library(dmuon_nccl_on_host MODULE ${DMUON_NCCL_ON_HOST_SOURCES})
  target_include_directories(dmuon_nccl_on_host SYSTEM PRIVATE ${DMUON_NCCL_INCLUDE} ${DMUON_CUDA_INCLUDE})
  target_include_directories(dmuon_nccl_on_host PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(dmuon_nccl_on_host PRIVATE dmuon $<TARGET_FILE:dmuon_cuda_on_host> Threads::Threads ${CMAKE_DL_LIBS})
  add_dependencies(dmuon_nccl_on_host dmuon_cuda_on_host)
  dmuon_stamp_interface(dmuon_nccl_on_host ${CMAKE_SOURCE_DIR}/src/comm/nccl/plugin_entry.cpp)
  set_target_properties(dmuon_nccl_on_host PROPERTIES PREFIX "lib")
endif()

# Lets tests, by their CTest names, run on the stand-ins.
function(dmuon_on_cuda_host)
  foreach(test IN LISTS ARGN)
    if(TEST ${test})
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
        "DMUON_CUDA_PLUGIN=$<TARGET_FILE:dmuon_cuda_on_host>;DMUON_NCCL_PLUGIN=$<TARGET_FILE:dmuon_nccl_on_host>")
    endif()
  endforeach()
endfunction()

if(TARGET dmuon_nccl_on_host AND DMUON_HAVE_MPI)
  set(comm ${CMAKE_SOURCE_DIR}/tests/comm)
  dmuon_add_mpi_test(test_nccl RANKS 1 2 3 4 SOURCES test_nccl.cpp ${comm}/collective_matrix.cpp ${comm}/collective_groups.cpp ${comm}/vote_matrix.cpp
    TIMEOUT 120 LABELS distributed cuda_on_host)
  target_compile_definitions(test_nccl PRIVATE DMUON_CUDA_ON_HOST="$<TARGET_FILE:dmuon_cuda_on_host>")
  add_dependencies(test_nccl dmuon_cuda_on_host dmuon_nccl_on_host)
  dmuon_on_cuda_host(test_nccl_1 test_nccl_2 test_nccl_3 test_nccl_4)
endif()
