# Sets NORMD_HAVE_CUDA. With it, kernels/cuda adds targets; no header asks whether it is there.

set(NORMD_HAVE_CUDA OFF)
if(NOT NORMD_CUDA STREQUAL OFF)
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17)  # CMake 3.25 knows no CUDA 20
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    if(NOT TARGET CUDA::nvToolsExt)
      add_library(CUDA::nvToolsExt INTERFACE IMPORTED)  # CMake 3.25 wants it, CUDA 13 has none.
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(NORMD_HAVE_CUDA ON)
  elseif(NORMD_CUDA STREQUAL ON)
    message(FATAL_ERROR "NORMD_CUDA=ON, but no CUDA compiler was found (set CMAKE_CUDA_COMPILER)")
  endif()
endif()
message(STATUS "CUDA backend: ${NORMD_HAVE_CUDA}")

# normd_cuda_sources(target): what the .cu files of a target are compiled with.
function(normd_cuda_sources target)
  set(cuda "$<COMPILE_LANGUAGE:CUDA>")
  target_compile_options(${target} PRIVATE
    $<${cuda}:--expt-relaxed-constexpr> $<${cuda}:-Werror=all-warnings>)
  # Where nothing can run what preset dev compiles, only whether it compiles is of interest: a third of
  # the time. What is to run elsewhere is compiled by the presets cuda and release.
  if(CMAKE_BUILD_TYPE STREQUAL RelWithDebInfo AND NOT EXISTS /dev/nvidiactl AND NOT EXISTS /dev/dxg
     AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
    target_compile_options(${target} PRIVATE $<${cuda}:--Ofast-compile=max>)
  endif()
  # A seventh of the bytes, in the objects and in each program that links them; the driver unpacks a
  # file's kernels when the first of them is used.
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    target_compile_options(${target} PRIVATE $<${cuda}:--compress-mode=size>)
  else()
    target_compile_options(${target} PRIVATE "$<${cuda}:SHELL:-Xfatbin=-compress-all>")
  endif()
endfunction()
