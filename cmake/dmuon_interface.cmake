# What library and plug-ins must have in common, as one hash: the headers of the layers that plug-ins build on, private ones
# included, and the compiler. A plug-in with another one is refused at run time (src/core/plugin_file.cpp).
file(GLOB_RECURSE DMUON_INTERFACE_HEADERS CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
  include/dmuon/core/*.h include/dmuon/backend/*.h include/dmuon/comm/*.h src/core/*.h src/backend/*.h src/comm/*.h)
list(SORT DMUON_INTERFACE_HEADERS)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${DMUON_INTERFACE_HEADERS})
set(parts "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
foreach(header IN LISTS DMUON_INTERFACE_HEADERS)
  file(SHA256 ${CMAKE_SOURCE_DIR}/${header} hash)
  string(APPEND parts "\n${header} ${hash}")
endforeach()
string(SHA256 DMUON_INTERFACE "${parts}")
string(SUBSTRING ${DMUON_INTERFACE} 0 16 DMUON_INTERFACE)

# Defines DMUON_INTERFACE for one source of a target.
function(dmuon_stamp_interface target source)
  set_property(SOURCE ${source} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_DEFINITIONS DMUON_INTERFACE="${DMUON_INTERFACE}")
endfunction()
