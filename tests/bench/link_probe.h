// The two limits of a lane's way to a device and back: the link, and the host memory that requests
// are gathered from.

#ifndef NORMD_TESTS_BENCH_LINK_PROBE_H_
#define NORMD_TESTS_BENCH_LINK_PROBE_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace normd {

// Pinned copies in both directions at once on the first `devices` devices. Ends the process with a
// message when CUDA fails.
class LinkProbe {
 public:
  explicit LinkProbe(int devices);
  ~LinkProbe();
  LinkProbe(const LinkProbe&) = delete;
  LinkProbe& operator=(const LinkProbe&) = delete;

  // GB/s, in and out of all devices added up, over about a second.
  double Measure();
  // Enqueues `rounds` rounds of 256 MiB each way, and returns.
  void Enqueue(int rounds);
  void Wait();

 private:
  struct Links;
  const std::unique_ptr<Links> links_;
};

enum class HostCopy { kMemcpy, kStreamingStores };

// Threads that copy from ordinary memory into pinned chunks, as lanes gather.
class GatherProbe {
 public:
  explicit GatherProbe(int max_threads);

  // GB/s of `threads` threads together, each from 64 MiB of its own into four chunks in turns.
  double Measure(HostCopy kind, int threads, std::size_t chunk_bytes);

 private:
  std::vector<std::vector<char>> sources_;
};

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_LINK_PROBE_H_
