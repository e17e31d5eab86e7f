# SPDX-License-Identifier: MIT
# The dependencies are headers only, so a cross build can use the host's copies. /usr/include itself must not be on a
# cross compiler's path: the header folders that are needed are linked into a folder of their own.
set(QUENA_CROSS_HEADERS ${CMAKE_CURRENT_LIST_DIR}/../../build/cross-headers)
file(MAKE_DIRECTORY ${QUENA_CROSS_HEADERS}/include)
foreach(folder xsimd eigen3 nlohmann doctest CLI)
  if(EXISTS /usr/include/${folder} AND NOT EXISTS ${QUENA_CROSS_HEADERS}/include/${folder})
    file(CREATE_LINK /usr/include/${folder} ${QUENA_CROSS_HEADERS}/include/${folder} SYMBOLIC)
  endif()
endforeach()
list(APPEND CMAKE_FIND_ROOT_PATH ${QUENA_CROSS_HEADERS})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
