#include "tests/bench/link_probe.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace normd {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::size_t kLinkBytes = std::size_t{256} << 20;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "link probe: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

}  // namespace

struct LinkProbe::Links {
  struct Link {
    int device = 0;
    void* host_in = nullptr;
    void* host_out = nullptr;
    void* device_in = nullptr;
    void* device_out = nullptr;
    cudaStream_t in = nullptr;
    cudaStream_t out = nullptr;
  };
  std::vector<Link> all;
};

LinkProbe::LinkProbe(int devices) : links_(std::make_unique<Links>()) {
  for (int i = 0; i < devices; ++i) {
    Links::Link& link = links_->all.emplace_back();
    link.device = i;
    Check(cudaSetDevice(i));
    Check(cudaHostAlloc(&link.host_in, kLinkBytes, cudaHostAllocPortable));
    Check(cudaHostAlloc(&link.host_out, kLinkBytes, cudaHostAllocPortable));
    Check(cudaMalloc(&link.device_in, kLinkBytes));
    Check(cudaMalloc(&link.device_out, kLinkBytes));
    Check(cudaStreamCreateWithFlags(&link.in, cudaStreamNonBlocking));
    Check(cudaStreamCreateWithFlags(&link.out, cudaStreamNonBlocking));
    std::memset(link.host_in, 1, kLinkBytes);
  }
}

LinkProbe::~LinkProbe() {
  for (const Links::Link& link : links_->all) {
    Check(cudaSetDevice(link.device));
    Check(cudaFreeHost(link.host_in));
    Check(cudaFreeHost(link.host_out));
    Check(cudaFree(link.device_in));
    Check(cudaFree(link.device_out));
    Check(cudaStreamDestroy(link.in));
    Check(cudaStreamDestroy(link.out));
  }
}

double LinkProbe::Measure() {
  constexpr int kRounds = 20;
  Enqueue(2);
  Wait();
  const auto begin = std::chrono::steady_clock::now();
  Enqueue(kRounds);
  Wait();
  const Seconds took = std::chrono::steady_clock::now() - begin;
  return 2.0 * kRounds * kLinkBytes * static_cast<double>(links_->all.size()) / took.count() / 1e9;
}

void LinkProbe::Enqueue(int rounds) {
  for (int r = 0; r < rounds; ++r) {
    for (Links::Link& link : links_->all) {
      Check(cudaMemcpyAsync(link.device_in, link.host_in, kLinkBytes, cudaMemcpyHostToDevice,
                            link.in));
      Check(cudaMemcpyAsync(link.host_out, link.device_out, kLinkBytes, cudaMemcpyDeviceToHost,
                            link.out));
    }
  }
}

void LinkProbe::Wait() {
  for (const Links::Link& link : links_->all) {
    Check(cudaStreamSynchronize(link.in));
    Check(cudaStreamSynchronize(link.out));
  }
}

}  // namespace normd
