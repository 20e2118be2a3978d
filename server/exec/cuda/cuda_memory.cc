#include "server/exec/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/pages.h"

namespace normd {

// A pool of CUDA's instead of cudaMalloc: cudaFree waits for everything that runs on the device,
// and a model's memory is freed when a lane has finished its last batch.
absl::StatusOr<std::unique_ptr<CudaMemory>> CudaMemory::Create(
    std::shared_ptr<CudaContext> context) {
  auto pool = std::make_shared<Pool>();
  pool->context = std::move(context);
  absl::StatusOr<UniqueStream> stream = pool->context->CreateStream();
  if (!stream.ok()) return stream.status();
  pool->stream = *std::move(stream);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = pool->context->index();
  cudaMemPool_t memory = nullptr;
  absl::Status status =
      pool->context->Check(cudaMemPoolCreate(&memory, &properties), "cudaMemPoolCreate");
  if (!status.ok()) return status;
  pool->memory.reset(memory);
  return std::unique_ptr<CudaMemory>(new CudaMemory(std::move(pool)));
}

absl::StatusOr<Buffer> CudaMemory::AllocateDevice(std::size_t bytes) {
  CudaContext& context = *pool_->context;
  if (absl::Status status = context.Enter(); !status.ok()) return status;
  void* data = nullptr;
  absl::Status status =
      context.Check(cudaMallocFromPoolAsync(&data, bytes, pool_->memory.get(), pool_->stream.get()),
                    "device memory");
  if (status.ok()) {
    status = context.Check(cudaStreamSynchronize(pool_->stream.get()), "device memory");
  }
  if (!status.ok()) {
    const absl::StatusOr<DeviceMemoryInfo> info = Info();
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), ": wanted ", bytes, " bytes",
                     info.ok() ? absl::StrCat(", free ", info->free_bytes) : std::string()));
  }
  return Buffer(static_cast<std::byte*>(data), bytes, [data, pool = pool_] {
    static_cast<void>(cudaSetDevice(pool->context->index()));
    static_cast<void>(cudaFreeAsync(data, pool->stream.get()));
  });
}

// The process's own pages instead of cudaHostAlloc's, which are small: threads that copy to and
// send from such memory would look up an address for every 4 KiB.
absl::StatusOr<Buffer> CudaMemory::AllocatePinned(std::size_t bytes) {
  CudaContext& context = *pool_->context;
  if (absl::Status status = context.Enter(); !status.ok()) return status;
  const std::size_t unit = bytes < 2 * kHugePageBytes ? std::size_t{4096} : kHugePageBytes;
  const std::size_t mapped = (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
  std::byte* data = mapped < bytes ? nullptr : MapPages(mapped);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pinned host memory: the system has no ", bytes, " bytes"));
  }
  Buffer pages(data, mapped, [data, mapped] { UnmapPages(data, mapped); });
  // Page by page the driver would take far longer.
  std::memset(data, 0, mapped);
  const absl::Status status = context.Check(
      cudaHostRegister(data, mapped, cudaHostRegisterPortable | cudaHostRegisterMapped),
      "pinned host memory");
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), ": wanted ", bytes, " bytes"));
  }
  return Buffer(data, bytes, [data, index = context.index(), pages = std::move(pages)]() mutable {
    static_cast<void>(cudaSetDevice(index));
    static_cast<void>(cudaHostUnregister(data));
    pages = Buffer();
  });
}

absl::StatusOr<DeviceMemoryInfo> CudaMemory::Info() {
  CudaContext& context = *pool_->context;
  if (absl::Status status = context.Enter(); !status.ok()) return status;
  // The pool's own stream, on which nothing runs.
  static_cast<void>(cudaStreamSynchronize(pool_->stream.get()));
  static_cast<void>(cudaMemPoolTrimTo(pool_->memory.get(), 0));
  std::size_t free = 0;
  std::size_t total = 0;
  if (absl::Status status = context.Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
      !status.ok()) {
    return status;
  }
  return DeviceMemoryInfo{static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
}

}  // namespace normd
