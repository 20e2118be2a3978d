# How the code of tests is compiled: it runs briefly, so what it takes to compile counts.

# clang++ reads the headers that most tests include once, from precompiled ones: a set for those that
# link gRPC and one for the others. g++ gains little by that. The headers of the tree are not among
# them: which of those a test may include is its target's choice.
set(NORMD_PRECOMPILED_TESTS OFF)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND NOT NORMD_LINT)
  set(NORMD_PRECOMPILED_TESTS ON)
endif()
set(NORMD_TEST_HEADERS <gmock/gmock.h> <gtest/gtest.h> <algorithm> <array> <atomic> <chrono> <cmath>
  <cstdint> <cstring> <deque> <filesystem> <fstream> <functional> <limits> <map> <memory> <optional>
  <random> <set> <sstream> <string> <thread> <tuple> <utility> <variant> <vector>)
set(NORMD_GRPC_HEADERS <absl/container/flat_hash_map.h> <absl/container/inlined_vector.h>
  <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>
  <absl/strings/str_split.h> <absl/synchronization/mutex.h> <absl/time/time.h> <absl/types/span.h>
  <google/protobuf/text_format.h> <grpcpp/grpcpp.h> <nlohmann/json.hpp>)

# normd_links(result library targets...): whether what `targets` link reaches `library`.
function(normd_links result library)
  set(open ${ARGN})
  set(seen)
  set(${result} OFF PARENT_SCOPE)
  while(open)
    list(POP_FRONT open item)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" item "${item}")
    if(item STREQUAL library)
      set(${result} ON PARENT_SCOPE)
      return()
    endif()
    if(item IN_LIST seen OR NOT TARGET "${item}")
      continue()
    endif()
    list(APPEND seen ${item})
    get_target_property(links ${item} INTERFACE_LINK_LIBRARIES)
    if(links)
      list(APPEND open ${links})
    endif()
  endwhile()
endfunction()

# _options(target level): level is -O0 or -O1.
function(_options target level)
  set(cxx "$<COMPILE_LANGUAGE:CXX>")
  target_compile_options(${target} PRIVATE $<$<AND:${cxx},$<CONFIG:RelWithDebInfo>>:${level}>)
  if(NORMD_PRECOMPILED_TESTS AND level STREQUAL -O0)
    # Programs and libraries alike, as they share headers; and the same headers are the same bytes, by
    # which ccache knows them again.
    target_compile_options(${target} PRIVATE $<${cxx}:-fPIC>
      "$<${cxx}:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
endfunction()

# normd_test_headers(name headers...): precompiled headers that other targets use. Those have its options.
function(normd_test_headers name)
  set(source ${CMAKE_BINARY_DIR}/${name}.cc)
  if(NOT EXISTS ${source})
    file(WRITE ${source} "")
  endif()
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE GTest::gmock)
  target_precompile_headers(${name} PRIVATE ${ARGN})
  normd_common(${name})
  _options(${name} -O0)
endfunction()

# normd_test_code(target links...): the options of a target of tests/ that links `links`. What compares
# tensors element by element (the folders below) keeps -O1, and so does what fuzzers repeat.
function(normd_test_code target)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(NOT NORMD_PRECOMPILED_TESTS OR folder MATCHES "^tests/(bench|fuzz|kernels|support)$")
    _options(${target} -O1)
    return()
  endif()
  _options(${target} -O0)
  set(headers normd_test_headers)
  normd_links(grpc normd_grpc ${ARGN})
  if(grpc)
    set(headers normd_test_headers_grpc)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${headers})
endfunction()
