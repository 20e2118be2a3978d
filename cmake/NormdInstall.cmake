# `cmake --install build/release --prefix DIR --component bundle` lays down programs and every shared
# library that they need but glibc's own, under one folder that can be moved to another machine.
# deploy/bundle.sh is the way to call it.

# An old-style run path, because it also holds for the libraries' own dependencies. The programs of the
# build folder have it too: CMake would fill the room for it with colons there, and to the loader an
# empty path is the working folder, from which it would take libraries.
set_target_properties(normd normctl normload PROPERTIES INSTALL_RPATH "$ORIGIN/../lib"
  BUILD_WITH_INSTALL_RPATH ON)
foreach(program normd normctl normload)
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
endforeach()
install(TARGETS normd normctl normload
  RUNTIME_DEPENDENCY_SET normd_runtime
  RUNTIME DESTINATION bin COMPONENT bundle)
install(RUNTIME_DEPENDENCY_SET normd_runtime
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util)\\.so"
  LIBRARY DESTINATION lib COMPONENT bundle)
install(DIRECTORY deploy/models DESTINATION . COMPONENT bundle PATTERN "*.py" EXCLUDE)
install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND
  ${CMAKE_SOURCE_DIR}/deploy/make_man_pages.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
  \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/man\")" COMPONENT bundle)

# The component `checks` adds what examines the bundle on a GPU: tests, benchmarks and deploy/check_gpu.sh.
if(NORMD_HAVE_CUDA AND NORMD_TESTS AND NORMD_BENCHMARKS)
  get_property(cuda_tests GLOBAL PROPERTY NORMD_CUDA_TESTS)
  set(checks ${cuda_tests} norm_bench device_bench serving_bench stream_bench)
  set_target_properties(${checks} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib"
    BUILD_WITH_INSTALL_RPATH ON)
  foreach(program ${checks})
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  endforeach()
  add_custom_target(gpu_checks DEPENDS ${checks} norm_kernels_shared)
  install(TARGETS ${checks}
    RUNTIME_DEPENDENCY_SET normd_checks
    RUNTIME DESTINATION checks COMPONENT checks)
  # For programs elsewhere, such as python3: its own libraries lie beside it.
  set_target_properties(norm_kernels_shared PROPERTIES INSTALL_RPATH "$ORIGIN"
    BUILD_WITH_INSTALL_RPATH ON)
  target_link_options(norm_kernels_shared PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS norm_kernels_shared LIBRARY DESTINATION lib COMPONENT checks NAMELINK_SKIP)
  install(RUNTIME_DEPENDENCY_SET normd_checks
    PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util)\\.so"
    LIBRARY DESTINATION lib COMPONENT checks)
  install(DIRECTORY tests/support/golden DESTINATION checks COMPONENT checks PATTERN "*.py" EXCLUDE)
  install(PROGRAMS deploy/check_gpu.sh kernels/bench/compare_flashinfer.py kernels/bench/compare_torch.py
    kernels/bench/compare_torch_linear.py kernels/bench/torch_library.py
    DESTINATION checks COMPONENT checks)
endif()
