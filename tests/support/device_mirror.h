// Host memory's copies on a CUDA device, for backends of the kernels' tests.

#ifndef NORMD_TESTS_SUPPORT_DEVICE_MIRROR_H_
#define NORMD_TESTS_SUPPORT_DEVICE_MIRROR_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace normd::norm::testing {

// Copies of host memory on the device, at the same place modulo 256. One run of memory is copied
// once, so that x and y of a segment in place are one there too.
class DeviceMirror {
 public:
  DeviceMirror() = default;
  ~DeviceMirror() {
    for (const Run& run : runs_) cudaFree(run.device);
  }
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;

  // The device's address for `bytes` bytes at `host`; null stays null. Sets *error on failure.
  void* Copy(const void* host, std::size_t bytes, cudaError_t* error) {
    if (host == nullptr) return nullptr;
    const auto shift = reinterpret_cast<std::uintptr_t>(host) % kAlignment;
    for (const Run& run : runs_) {
      if (run.host == host && run.bytes == bytes) return static_cast<char*>(run.device) + shift;
    }
    void* device = nullptr;
    if (*error == cudaSuccess) *error = cudaMalloc(&device, bytes + shift + 1);
    if (*error != cudaSuccess) return nullptr;
    runs_.push_back({host, device, bytes});
    void* const address = static_cast<char*>(device) + shift;
    *error = cudaMemcpy(address, host, bytes, cudaMemcpyHostToDevice);
    return address;
  }

  // Aligned memory with nothing useful in it; null for 0 bytes.
  void* Junk(std::size_t bytes, cudaError_t* error) {
    if (bytes == 0) return nullptr;
    void* device = nullptr;
    if (*error == cudaSuccess) *error = cudaMalloc(&device, bytes);
    if (*error != cudaSuccess) return nullptr;
    runs_.push_back({nullptr, device, bytes});
    *error = cudaMemset(device, 0xa5, bytes);
    return device;
  }

 private:
  static constexpr std::uintptr_t kAlignment = 256;

  struct Run {
    const void* host;
    void* device;
    std::size_t bytes;
  };
  std::vector<Run> runs_;
};

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_DEVICE_MIRROR_H_
