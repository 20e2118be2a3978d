# Target helpers. Every folder of the source tree is one library, and a file may include
# "kernels/norm.h" or "server/batching/batch_queue.h" only if its target links that folder's library: each
# library publishes an include root that holds a link to its own folder and to nothing else.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "(^|/)ccache$")
  # Without this it leaves alone what uses precompiled headers.
  list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros)
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
find_package(Threads REQUIRED)
include(CheckPIESupported)
check_pie_supported()

add_library(normd_options INTERFACE)
set(_cxx "$<COMPILE_LANGUAGE:CXX>")
target_compile_options(normd_options INTERFACE
  $<${_cxx}:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
  -Woverloaded-virtual -Wcast-qual -Wimplicit-fallthrough -Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ 12 sees uninitialised members in absl::InlinedVector and std::optional that are not read.
  target_compile_options(normd_options INTERFACE $<${_cxx}:-Wno-maybe-uninitialized>)
  # At -O3 it sees overlapping copies in "literal" + std::string (GCC bug 105651).
  target_compile_options(normd_options INTERFACE $<${_cxx}:-Wno-restrict>)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    # g++ 13 sees accesses out of bounds in {fmt}'s big integers, inlined into our sources, and what
    # g++ 12 calls maybe uninitialised in absl::InlinedVector it calls uninitialised. It takes what an
    # absl::Span refers to for a part of the span (GCC 14 no longer has the warning in -Wall).
    target_compile_options(normd_options INTERFACE $<${_cxx}:-Wno-array-bounds>
      $<${_cxx}:-Wno-stringop-overflow> $<${_cxx}:-Wno-uninitialized>
      $<${_cxx}:-Wno-dangling-reference>)
  endif()
else()
  target_compile_options(normd_options INTERFACE $<${_cxx}:-Wthread-safety>)
endif()
if(NORMD_ASSERTIONS)
  target_compile_options(normd_options INTERFACE $<${_cxx}:-UNDEBUG>)
endif()
if(NORMD_SANITIZE)
  # For every target, third-party code that is compiled here included.
  add_compile_options($<${_cxx}:-fsanitize=${NORMD_SANITIZE}>
    $<${_cxx}:-fno-sanitize-recover=all> $<${_cxx}:-fno-omit-frame-pointer>)
  if(NORMD_SANITIZE MATCHES undefined)
    # A sixth of what compiling takes. Who follows a null pointer is ended by AddressSanitizer.
    add_compile_options($<${_cxx}:-fno-sanitize=null,vptr>)
  endif()
  add_compile_definitions(NORMD_SANITIZED)  # Tests then ask for less: compilers name theirs differently.
  add_link_options(-fsanitize=${NORMD_SANITIZE})
else()
  # What tests/deploy/hardening_test.py looks for in the binaries. Sanitizers bring their own checks.
  add_compile_options($<${_cxx}:-fstack-protector-strong>)
  if(NOT CMAKE_BUILD_TYPE STREQUAL Debug)  # Without optimisation the C library's headers refuse it.
    add_compile_options($<${_cxx}:-U_FORTIFY_SOURCE> $<${_cxx}:-D_FORTIFY_SOURCE=2>)
  endif()
  add_link_options(LINKER:-z,relro,-z,now,-z,noexecstack)
endif()
# A fifth of what GNU ld takes for a program with debug information. What is shipped has the usual one.
find_program(NORMD_LLD ld.lld)
mark_as_advanced(NORMD_LLD)
if(NORMD_LLD AND CMAKE_BUILD_TYPE STREQUAL RelWithDebInfo)
  add_link_options(-fuse-ld=lld)
endif()
if(NORMD_LINT)
  find_program(CLANG_TIDY NAMES clang-tidy-14 clang-tidy REQUIRED)
endif()

# normd_include_root(target folder): lets those who link `target` include "folder/...".
function(normd_include_root target folder)
  set(root ${CMAKE_BINARY_DIR}/include_roots/${target})
  get_filename_component(parent ${root}/${folder} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${folder} ${root}/${folder} SYMBOLIC)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${root}>)
endfunction()

# Under a sanitizer, folders that neither compute nor decode compile at -O0, in half the time.
set(NORMD_UNOPTIMISED "^client(/(fleet|load|normctl|normload|scrape))?$|^server/(infer|metrics|rpc|tls)$")
function(normd_common target)
  target_link_libraries(${target} PRIVATE normd_options Threads::Threads)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(NORMD_SANITIZE AND folder MATCHES "${NORMD_UNOPTIMISED}")
    target_compile_options(${target} PRIVATE $<${_cxx}:-O0>)
  endif()
  if(NORMD_LINT)
    set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY ${CLANG_TIDY})
  endif()
endfunction()

# normd_library(name SOURCES ... [APART ...] [PUBLIC targets...] [PRIVATE targets...]): a static
# library of the folder that calls it. PUBLIC: its headers include theirs. PRIVATE: its sources do.
# Presets that compile several sources as one (CMAKE_UNITY_BUILD) leave those of APART alone: their
# names in unnamed namespaces are others' names too, or their system headers exclude others'.
function(normd_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;APART;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES} ${ARG_APART})
  set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  normd_include_root(${name} ${folder})
  target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  normd_common(${name})
  if(NORMD_PRECOMPILED_TESTS AND folder MATCHES "^tests/")
    normd_test_code(${name} ${ARG_PUBLIC} ${ARG_PRIVATE})
    return()
  endif()
  if(NORMD_FUZZ AND folder MATCHES "^(base|client/tensor|operations|server|wire)")
    # What the fuzzers play tells them which ways it takes.
    target_compile_options(${name} PRIVATE $<${_cxx}:-fsanitize=fuzzer-no-link>)
  endif()
endfunction()

# normd_binary(name SOURCES ... LINK targets...): an executable in build/<preset>/bin.
function(normd_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  normd_common(${name})
endfunction()

if(CMAKE_UNITY_BUILD)
  # Most of what a source of the server takes to compile are headers that its neighbours include too.
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # It takes the sources of a batch for headers, which should not have unnamed namespaces.
    target_compile_options(normd_options INTERFACE $<${_cxx}:-Wno-subobject-linkage>)
  endif()
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ collects garbage whenever its heap has doubled, from 128 MiB on, which is a twelfth of its time.
  add_compile_options($<${_cxx}:--param=ggc-min-heapsize=524288>)
endif()

# What asan and tsan build, which is less than everything: the tests that start no processes, and the
# tests labelled threads.
add_custom_target(tests_in_process)
add_custom_target(tests_threads)

# normd_test_objects(name SOURCES ... LINK targets...): tests that several binaries have. They link it.
function(normd_test_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_LINK} GTest::gmock)
  normd_common(${name})
  normd_test_code(${name} ${ARG_LINK})
endfunction()

# normd_test_entry(name PROGRAM program [SHARDS n] [ARGS ...] [LABELS ...] [TIMEOUT s] [COST c]
# [ENVIRONMENT ...]): a GoogleTest program's entry in ctest. With SHARDS there are n entries, name_1 to
# name_n, which run every nth case each and so run beside each other.
function(normd_test_entry name)
  cmake_parse_arguments(ARG "" "PROGRAM;SHARDS;TIMEOUT;COST" "ARGS;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  # Tests of kernels compute, and so count as two of ctest's jobs; others mostly wait.
  set(jobs 1)
  if(NORMD_SANITIZE OR CMAKE_CURRENT_SOURCE_DIR MATCHES "/tests/kernels$")
    set(jobs 2)
  endif()
  set(tsan "halt_on_error=1:suppressions=${PROJECT_SOURCE_DIR}/tests/tsan_suppressions.txt")
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(entry ${name})
    set(environment "TSAN_OPTIONS=${tsan}" UBSAN_OPTIONS=print_stacktrace=1 ${ARG_ENVIRONMENT})
    if(ARG_SHARDS GREATER 1)
      string(APPEND entry _${shard})
      math(EXPR index "${shard} - 1")
      list(APPEND environment GTEST_TOTAL_SHARDS=${ARG_SHARDS} GTEST_SHARD_INDEX=${index})
    endif()
    add_test(NAME ${entry} COMMAND ${ARG_PROGRAM} ${ARG_ARGS})
    set_tests_properties(${entry} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
      PROCESSORS ${jobs} ENVIRONMENT "${environment}")
    if(ARG_COST)
      set_tests_properties(${entry} PROPERTIES COST ${ARG_COST})
    endif()
  endforeach()
endfunction()

# normd_test(name SOURCES ... [APART ...] LINK targets... and what normd_test_entry takes): a GoogleTest
# program in build/<preset>/tests and its entry in ctest. SOURCES and APART as in normd_library.
# Labels: threads (links no gRPC; runs under TSan), process (starts processes; not under sanitizers),
# cuda (skips visibly without a GPU). Tests of the tree itself, which need no build, carry lint.
function(normd_test name)
  cmake_parse_arguments(ARG "" "SHARDS;TIMEOUT;COST" "SOURCES;APART;LINK;LABELS;ARGS;ENVIRONMENT"
    ${ARGN})
  add_executable(${name} ${ARG_SOURCES} ${ARG_APART})
  set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest_main)
  normd_common(${name})
  normd_test_code(${name} ${ARG_LINK})
  if(NOT process IN_LIST ARG_LABELS)
    add_dependencies(tests_in_process ${name})
  endif()
  if(threads IN_LIST ARG_LABELS)
    add_dependencies(tests_threads ${name})
  endif()
  if(cuda IN_LIST ARG_LABELS)
    set_property(GLOBAL APPEND PROPERTY NORMD_CUDA_TESTS ${name})
  endif()
  normd_test_entry(${name} PROGRAM ${name} SHARDS ${ARG_SHARDS} TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST}
    ARGS ${ARG_ARGS} LABELS ${ARG_LABELS} ENVIRONMENT ${ARG_ENVIRONMENT})
endfunction()

# normd_packages_test(name PACKAGES ... COMMAND script arguments...): a test in Python, in a virtual
# environment with PACKAGES of PyPI. It is skipped where they cannot be had. Without PACKAGES it has the
# Python that is there.
function(normd_packages_test name)
  cmake_parse_arguments(ARG "" "" "PACKAGES;COMMAND" ${ARGN})
  set(environment)
  if(ARG_PACKAGES)
    set(environment ${PROJECT_SOURCE_DIR}/tests/support/python_packages.py
      ${PROJECT_BINARY_DIR}/venv/${name} ${ARG_PACKAGES} --)
  endif()
  add_test(NAME ${name} COMMAND Python3::Interpreter -B ${environment} ${ARG_COMMAND})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()
