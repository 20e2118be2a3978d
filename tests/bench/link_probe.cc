#include "tests/bench/link_probe.h"

#include <cuda_runtime_api.h>
#include <emmintrin.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace normd {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::size_t kLinkBytes = std::size_t{256} << 20;
constexpr std::size_t kSourceBytes = std::size_t{64} << 20;
constexpr std::size_t kChunks = 4;

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "link probe: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

void CopyStreaming(char* to, const char* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    auto* target = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
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

struct GatherProbe::Run {
  struct Worker {
    const char* source = nullptr;
    char* staging = nullptr;
    std::size_t bytes = 0;
    std::thread thread;
  };

  void Copy(Worker& worker) const {
    while (!go) std::this_thread::yield();
    for (std::size_t at = 0; !stop; at = (at + chunk_bytes) % kSourceBytes) {
      char* to = worker.staging + at / chunk_bytes % kChunks * chunk_bytes;
      if (kind == HostCopy::kMemcpy) {
        std::memcpy(to, worker.source + at, chunk_bytes);
      } else {
        CopyStreaming(to, worker.source + at, chunk_bytes);
      }
      worker.bytes += chunk_bytes;
    }
  }

  HostCopy kind = HostCopy::kMemcpy;
  std::size_t chunk_bytes = 0;
  std::vector<Worker> workers;
  std::atomic<bool> go{false};
  std::atomic<bool> stop{false};
  std::chrono::steady_clock::time_point begin;
};

GatherProbe::GatherProbe(int max_threads)
    : sources_(static_cast<std::size_t>(max_threads), std::vector<char>(kSourceBytes, 1)) {}

GatherProbe::~GatherProbe() = default;

void GatherProbe::Start(HostCopy kind, int threads, std::size_t chunk_bytes) {
  run_ = std::make_unique<Run>();
  run_->kind = kind;
  run_->chunk_bytes = chunk_bytes;
  run_->workers.resize(static_cast<std::size_t>(threads));
  for (std::size_t i = 0; i < run_->workers.size(); ++i) {
    Run::Worker& worker = run_->workers[i];
    void* staging = nullptr;
    Check(cudaHostAlloc(&staging, kChunks * chunk_bytes, cudaHostAllocPortable));
    std::memset(staging, 0, kChunks * chunk_bytes);
    worker.source = sources_.at(i).data();
    worker.staging = static_cast<char*>(staging);
  }
  for (Run::Worker& worker : run_->workers) {
    worker.thread = std::thread([run = run_.get(), &worker] { run->Copy(worker); });
  }
  run_->begin = std::chrono::steady_clock::now();
  run_->go = true;
}

double GatherProbe::Stop() {
  run_->stop = true;
  for (Run::Worker& worker : run_->workers) worker.thread.join();
  const Seconds took = std::chrono::steady_clock::now() - run_->begin;
  double bytes = 0;
  for (const Run::Worker& worker : run_->workers) {
    bytes += static_cast<double>(worker.bytes);
    Check(cudaFreeHost(worker.staging));
  }
  run_.reset();
  return bytes / took.count() / 1e9;
}

}  // namespace normd
