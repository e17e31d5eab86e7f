# SPDX-License-Identifier: MIT
# Install rules: headers, the CMake package, quena.pc.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/quena)  # headers only, so one package serves every architecture

install(TARGETS quena EXPORT quena_targets FILE_SET HEADERS FILE_SET fragments)
install(EXPORT quena_targets NAMESPACE quena:: DESTINATION ${package_dir} FILE quena-targets.cmake)
configure_package_config_file(cmake/quena-config.cmake.in ${PROJECT_BINARY_DIR}/quena-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quena-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/quena-config.cmake ${PROJECT_BINARY_DIR}/quena-config-version.cmake cmake/dependencies.cmake
        DESTINATION ${package_dir})

# pkg-config: Debian's dependencies have .pc files; flags that are not theirs come from the compiler.
configure_file(cmake/quena.pc.in ${PROJECT_BINARY_DIR}/quena.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/quena.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
