# The CUDA backend: a plug-in with the static runtime, so that nothing needs a driver before a device is asked for.
string(REPLACE ";" "," DMUON_CUDA_ARCHITECTURE_LIST "${DMUON_CUDA_ARCHITECTURES}")  # as the plug-in knows it
if(DMUON_HAVE_CUDA)
  file(GLOB DMUON_CUDA_SOURCES CONFIGURE_DEPENDS src/backend/cuda/*.cpp src/backend/cuda/*.cu)
  add_library(dmuon_cuda MODULE ${DMUON_CUDA_SOURCES})
  # These passes round like the CPU's, product by product and sum by sum.
  set_source_files_properties(src/backend/cuda/optimizer.cu src/backend/cuda/optimizer_sums.cu
    src/backend/cuda/optimizer_norms.cu src/backend/cuda/signs.cu PROPERTIES COMPILE_OPTIONS -fmad=false)
  target_include_directories(dmuon_cuda SYSTEM PRIVATE ${DMUON_CUDA_INCLUDE})
  target_include_directories(dmuon_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(dmuon_cuda PRIVATE DMUON_CUDA_ARCHITECTURES="${DMUON_CUDA_ARCHITECTURE_LIST}")
  target_compile_options(dmuon_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--Werror=all-warnings;-Xptxas=-v;-Xptxas=-warn-spills;--expt-relaxed-constexpr>")
  dmuon_stamp_interface(dmuon_cuda ${CMAKE_SOURCE_DIR}/src/backend/cuda/plugin_entry.cpp)
  target_link_libraries(dmuon_cuda PRIVATE dmuon ${DMUON_CUBLASLT_LIBRARY} ${DMUON_CUDART_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS} rt)
  # By this name the NCCL plug-in finds it, opened from wherever.
  target_link_options(dmuon_cuda PRIVATE -Wl,-soname,libdmuon_cuda.so)
  set_target_properties(dmuon_cuda PROPERTIES PREFIX "lib" CUDA_ARCHITECTURES "${DMUON_CUDA_ARCHITECTURES}" CUDA_RUNTIME_LIBRARY None)
endif()
