# Fuzzers: sources that define LLVMFuzzerTestOneInput, beside the tests of what they read.

# A line for each, for tests/fuzz/run.sh: its name, the longest input that is worth its time, and
# whether it plays a decoder or a whole call.
set(_fuzzers_list ${CMAKE_BINARY_DIR}/fuzzers.txt)
if(NORMD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "NORMD_FUZZ needs clang++ (preset asan)")
  endif()
  add_custom_target(fuzzers)  # All of them.
  file(WRITE ${_fuzzers_list} "")
endif()

# normd_fuzzer(name SOURCES ... LINK targets... [MAX_BYTES n] [RUNS n] [CALL]): with any
# compiler, the program `name`_replay and a test of that name, which plays the seeds of
# tests/fuzz/corpus/`name` and RUNS random changes of them. With NORMD_FUZZ, a program of libFuzzer too.
# CALL: it plays whole calls, for which most of the server is built; the others read one format each.
function(normd_fuzzer name)
  cmake_parse_arguments(ARG "CALL" "MAX_BYTES;RUNS" "SOURCES;LINK" ${ARGN})
  if(NOT ARG_MAX_BYTES)
    set(ARG_MAX_BYTES 1024)
  endif()
  if(NOT ARG_RUNS)
    set(ARG_RUNS 20000)
  endif()
  add_library(${name}_input OBJECT ${ARG_SOURCES})
  target_link_libraries(${name}_input PUBLIC fuzz_support ${ARG_LINK})
  normd_common(${name}_input)
  if(NORMD_FUZZ)
    target_compile_options(${name}_input PRIVATE -fsanitize=fuzzer-no-link)
    add_executable(${name})
    target_link_libraries(${name} PRIVATE ${name}_input)
    normd_common(${name})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzzers ${name})
    set(kind decoder)
    if(ARG_CALL)
      set(kind call)
    endif()
    file(APPEND ${_fuzzers_list} "${name} ${ARG_MAX_BYTES} ${kind}\n")
  endif()
  set(replay ${name}_replay)
  add_executable(${replay})
  set_target_properties(${replay} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${replay} PRIVATE fuzz_replay ${name}_input)
  normd_common(${replay})
  add_dependencies(tests_in_process ${replay})
  add_test(NAME ${replay} COMMAND ${replay} --runs=${ARG_RUNS} --max_bytes=${ARG_MAX_BYTES}
    ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
  # Sanitizers abort, so that the input which they object to is shown.
  set_tests_properties(${replay} PROPERTIES TIMEOUT 300 LABELS fuzz
    ENVIRONMENT "ASAN_OPTIONS=abort_on_error=1;UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1")
endfunction()
