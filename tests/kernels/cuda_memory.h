// Memory and streams of a device for tests that call the CUDA runtime.

#ifndef NORMD_TESTS_KERNELS_CUDA_MEMORY_H_
#define NORMD_TESTS_KERNELS_CUDA_MEMORY_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace normd::norm::cuda {

struct FreeDevice {
  void operator()(void* data) const { cudaFree(data); }
};
using Buffer = std::unique_ptr<void, FreeDevice>;

inline Buffer Allocate(std::size_t bytes) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), cudaSuccess) << bytes << " bytes";
  return Buffer(data);
}

inline Buffer Upload(const std::vector<char>& host) {
  Buffer buffer = Allocate(host.size());
  EXPECT_EQ(cudaMemcpy(buffer.get(), host.data(), host.size(), cudaMemcpyHostToDevice),
            cudaSuccess);
  return buffer;
}

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_TESTS_KERNELS_CUDA_MEMORY_H_
