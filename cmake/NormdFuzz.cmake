# Fuzzers: sources that define LLVMFuzzerTestOneInput, beside the tests of what they read.

# A line for each, for tests/fuzz/run.sh: its name, the longest input that is worth its time, and
# whether it plays a decoder or a whole call.
set(_fuzzers_list ${CMAKE_BINARY_DIR}/fuzzers.txt)
if(NORMD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "NORMD_FUZZ needs clang++ (preset fuzz)")
  endif()
  add_custom_target(fuzzers)  # All of them.
  file(WRITE ${_fuzzers_list} "")
endif()

# normd_fuzzer(name SOURCES ... LINK targets... [MAX_BYTES n] [RUNS n] [CALL]): with NORMD_FUZZ, a
# program of libFuzzer. Without it, with any compiler, the program `name`_replay and a test of that
# name, which plays the seeds of tests/fuzz/corpus/`name` and RUNS random changes of them. CALL: it
# plays whole calls, for which most of the server is built; the others read one format each.
function(normd_fuzzer name)
  cmake_parse_arguments(ARG "CALL" "MAX_BYTES;RUNS" "SOURCES;LINK" ${ARGN})
  if(NOT ARG_MAX_BYTES)
    set(ARG_MAX_BYTES 1024)
  endif()
  if(NOT ARG_RUNS)
    set(ARG_RUNS 20000)
  endif()
  if(NORMD_FUZZ)
    normd_binary(${name} SOURCES ${ARG_SOURCES} LINK fuzz_support ${ARG_LINK})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzzers ${name})
    set(kind decoder)
    if(ARG_CALL)
      set(kind call)
    endif()
    file(APPEND ${_fuzzers_list} "${name} ${ARG_MAX_BYTES} ${kind}\n")
    return()
  endif()
  set(replay ${name}_replay)
  add_executable(${replay} ${ARG_SOURCES})
  set_target_properties(${replay} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${replay} PRIVATE fuzz_replay fuzz_support ${ARG_LINK})
  normd_common(${replay})
  add_dependencies(tests_in_process ${replay})
  add_test(NAME ${replay} COMMAND ${replay} --runs=${ARG_RUNS} --max_bytes=${ARG_MAX_BYTES}
    ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
  # Sanitizers abort, so that the input which they object to is shown.
  set_tests_properties(${replay} PROPERTIES TIMEOUT 300 LABELS fuzz
    ENVIRONMENT "ASAN_OPTIONS=abort_on_error=1;UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1")
endfunction()
