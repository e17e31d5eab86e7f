# SPDX-License-Identifier: MIT
# For quena's own build only: warnings as errors, ccache, compile_commands.json.
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
find_program(QUENA_CCACHE ccache)
if(QUENA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${QUENA_CCACHE})
endif()

add_library(quena_own_flags INTERFACE)
if(NOT MSVC)
  target_compile_options(quena_own_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wpedantic -Werror)
endif()
if(QUENA_NO_RTTI)  # cache variable of a preset: the library must not need run-time type information
  target_compile_options(quena_own_flags INTERFACE -fno-rtti)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND (QUENA_SANITIZE OR CMAKE_CROSSCOMPILING))  # g++ 12 warns falsely about std::string there
  target_compile_options(quena_own_flags INTERFACE -Wno-array-bounds -Wno-stringop-overread -Wno-stringop-overflow -Wno-restrict -Wno-maybe-uninitialized)
endif()
if(QUENA_SANITIZE)
  target_compile_options(quena_own_flags INTERFACE -fsanitize=${QUENA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(quena_own_flags INTERFACE -fsanitize=${QUENA_SANITIZE})
endif()

# What reports print about the build: flags and commit.
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}" QUENA_BUILD_FLAGS)
set(QUENA_BUILD_COMMIT unknown)
find_package(Git QUIET)
if(Git_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(commit)
    set(QUENA_BUILD_COMMIT ${commit})
  endif()
  if(EXISTS ${PROJECT_SOURCE_DIR}/.git/logs/HEAD)  # a new commit is noticed
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/.git/logs/HEAD)
  endif()
endif()
