# `cmake --install build/release --prefix DIR --component bundle` lays down programs and every shared
# library that they need but glibc's own, under one folder that can be moved to another machine.
# deploy/bundle.sh is the way to call it.

# An old-style run path, because it also holds for the libraries' own dependencies.
set_target_properties(normd normctl normload PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
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
