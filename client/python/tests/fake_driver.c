// CUDA's driver as far as normd/_cuda.py calls it, with two devices in the host's memory.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint64_t u64;
static int pushed, pushes, fail;
int set_fail(int code) {
  fail = code;
  return 0;
}
int depth(void) { return pushed; }
int pushed_in_all(void) { return pushes; }
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int* device, int at) {
  *device = 40 + at;
  return at < 2 ? 0 : 101;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = (void*)(u64)device;
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  ++pushes;
  ++pushed;
  return (u64)context == 41 ? 0 : 201;
}
int cuCtxPopCurrent_v2(void** context) {
  --pushed;
  return context == 0;
}
int cuMemAlloc_v2(u64* address, size_t bytes) {
  *address = (u64)(uintptr_t)malloc(bytes);
  return pushed == 1 ? 0 : 201;
}
int cuMemsetD8_v2(u64 at, unsigned char value, size_t bytes) {
  memset((void*)at, value, bytes);
  return 0;
}
int cuCtxSynchronize(void) { return 0; }
int cuIpcGetMemHandle(char* handle, u64 address) {
  memset(handle, 0, 64);
  memcpy(handle + 56, &address, 8);
  return fail;
}
static u64 freed;
static int frees;
u64 last_freed(void) { return freed; }
int freed_in_all(void) { return frees; }
int cuMemFree_v2(u64 address) {
  ++frees;
  freed = address;
  free((void*)address);
  return 0;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 801 ? "NOT_SUPPORTED" : "OTHER";
  return 0;
}
