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

  // GB/s, in and out of all devices added up, over some tenths of a second.
  double Measure();

 private:
  // Enqueues `rounds` rounds of 256 MiB each way, and returns.
  void Enqueue(int rounds);
  void Wait();

  struct Links;
  const std::unique_ptr<Links> links_;
};

enum class HostCopy { kMemcpy, kStreamingStores };

// Threads that copy from ordinary memory into pinned chunks, as lanes gather.
class GatherProbe {
 public:
  explicit GatherProbe(int max_threads);
  ~GatherProbe();

  // Starts `threads` threads, each copying from 64 MiB of its own into four chunks in turns.
  void Start(HostCopy kind, int threads, std::size_t chunk_bytes);
  // Ends them and returns what they copied together, GB/s.
  double Stop();

 private:
  struct Run;
  std::vector<std::vector<char>> sources_;
  std::unique_ptr<Run> run_;
};

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_LINK_PROBE_H_
