// Matrix products of a warpgroup out of shared memory (wgmma): D[64, N] += A[64, 16] B[N, 16]^T.
// One function per instruction. Compiled for 9.0a alone. PTX ISA 9.0, "Asynchronous Warpgroup Level
// Matrix Multiply-Accumulate Operations".

#ifndef NORMD_KERNELS_CUDA_DEVICE_WGMMA_CUH_
#define NORMD_KERNELS_CUDA_DEVICE_WGMMA_CUH_

#include <cstdint>

namespace normd::norm::cuda {

// An operand of 128-byte rows. Eight rows fill 1024 aligned bytes, in which 16-byte pieces are
// swizzled: piece p of row r lies at p ^ (r % 8). A product of 16 elements further along the rows
// starts 32 bytes later.
__device__ inline std::uint64_t OperandAt(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kBytesBetweenEightRows = std::uint64_t{1024 >> 4} << 32;
  constexpr std::uint64_t kUnused = std::uint64_t{1} << 16;
  return kSwizzle128 | kBytesBetweenEightRows | kUnused | ((address & 0x3ffff) >> 4);
}

// Call before the first product of a group: orders earlier writes to registers and shared memory.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void EndProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kGroups groups of products are in flight.
template <int kGroups>
__device__ inline void AwaitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// A barrier of `threads` threads of a block; 0 < id < 16.
__device__ inline void SyncThreads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Keeps the compiler from moving accesses of the accumulators across this point.
template <int kCount>
__device__ inline void Pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

#define NORMD_D8(d, i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define NORMD_D32(d, i) NORMD_D8(d, i), NORMD_D8(d, i + 8), NORMD_D8(d, i + 16), NORMD_D8(d, i + 24)
#define NORMD_D64(d, i)                                                         \
  NORMD_D8(d, i), NORMD_D8(d, i + 8), NORMD_D8(d, i + 16), NORMD_D8(d, i + 24), \
      NORMD_D8(d, i + 32), NORMD_D8(d, i + 40), NORMD_D8(d, i + 48), NORMD_D8(d, i + 56)
#define NORMD_R16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NORMD_R32 \
  NORMD_R16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NORMD_R64                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NORMD_R128                                                                             \
  NORMD_R64                                                                                    \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "    \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, " \
  "%99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, "  \
  "%114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The first product of a sum overwrites D.
#define NORMD_PRODUCT_32(type)                                                   \
  asm volatile(                                                                  \
      "{ .reg .pred add; setp.ne.b32 add, %18, 0;"                               \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {" NORMD_R16 \
      "},"                                                                       \
      " %16, %17, add, 1, 1, 0, 0; }"                                            \
      : NORMD_D8(d, 0), NORMD_D8(d, 8)                                           \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define NORMD_PRODUCT_64(type)                                                   \
  asm volatile(                                                                  \
      "{ .reg .pred add; setp.ne.b32 add, %34, 0;"                               \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" NORMD_R32 \
      "},"                                                                       \
      " %32, %33, add, 1, 1, 0, 0; }"                                            \
      : NORMD_D32(d, 0)                                                          \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define NORMD_PRODUCT_128(type)                                                   \
  asm volatile(                                                                   \
      "{ .reg .pred add; setp.ne.b32 add, %66, 0;"                                \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" NORMD_R64 \
      "},"                                                                        \
      " %64, %65, add, 1, 1, 0, 0; }"                                             \
      : NORMD_D64(d, 0)                                                           \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#define NORMD_PRODUCT_256(type)                                                    \
  asm volatile(                                                                    \
      "{ .reg .pred add; setp.ne.b32 add, %130, 0;"                                \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" NORMD_R128 \
      "},"                                                                         \
      " %128, %129, add, 1, 1, 0, 0; }"                                            \
      : NORMD_D64(d, 0), NORMD_D64(d, 64)                                          \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))

// A thread's part of D: element 4j + e is row 16 (warp % 4) + lane / 4 + 8 (e / 2), column 8j + 2
// (lane % 4) + e % 2. kBFloat: bfloat16 operands, otherwise float16.
template <bool kBFloat, int kRegisters>
__device__ inline void Multiply(float (&d)[kRegisters], std::uint64_t a, std::uint64_t b,
                                bool add) {
  static_assert(kRegisters == 16 || kRegisters == 32 || kRegisters == 64 || kRegisters == 128,
                "products of 32, 64, 128 or 256 columns");
  if constexpr (kRegisters == 16 && kBFloat) {
    NORMD_PRODUCT_32("bf16");
  } else if constexpr (kRegisters == 16) {
    NORMD_PRODUCT_32("f16");
  } else if constexpr (kRegisters == 32 && kBFloat) {
    NORMD_PRODUCT_64("bf16");
  } else if constexpr (kRegisters == 32) {
    NORMD_PRODUCT_64("f16");
  } else if constexpr (kRegisters == 64 && kBFloat) {
    NORMD_PRODUCT_128("bf16");
  } else if constexpr (kRegisters == 64) {
    NORMD_PRODUCT_128("f16");
  } else if constexpr (kBFloat) {
    NORMD_PRODUCT_256("bf16");
  } else {
    NORMD_PRODUCT_256("f16");
  }
}

#undef NORMD_D8
#undef NORMD_D32
#undef NORMD_D64
#undef NORMD_R16
#undef NORMD_R32
#undef NORMD_R64
#undef NORMD_R128
#undef NORMD_PRODUCT_32
#undef NORMD_PRODUCT_64
#undef NORMD_PRODUCT_128
#undef NORMD_PRODUCT_256

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_DEVICE_WGMMA_CUH_
