# cmake --install: library, tools, headers, configurations and the package that find_package(dmuon) finds. Relocatable.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set_target_properties(dmuon PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS dmuon EXPORT dmuonTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Plug-ins are looked for beside the library; CUDA's libraries where they were linked.
foreach(plugin dmuon_cuda dmuon_nccl)
  if(TARGET ${plugin})
    set_target_properties(${plugin} PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS ${plugin} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
foreach(tool IN LISTS DMUON_TOOL_TARGETS)
  set_target_properties(${tool} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endforeach()
install(DIRECTORY include/dmuon DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/dmuon FILES_MATCHING PATTERN "*.json")
install(FILES docs/config.schema.json DESTINATION ${CMAKE_INSTALL_DATADIR}/dmuon)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/dmuon)
install(EXPORT dmuonTargets NAMESPACE dmuon:: DESTINATION ${package_folder})
configure_package_config_file(cmake/dmuonConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/package/dmuonConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/package/dmuonConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/package/dmuonConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/package/dmuonConfigVersion.cmake
  DESTINATION ${package_folder})
