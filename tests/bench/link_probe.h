// The limit of a lane's way to a device and back.

#ifndef NORMD_TESTS_BENCH_LINK_PROBE_H_
#define NORMD_TESTS_BENCH_LINK_PROBE_H_

#include <memory>

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

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_LINK_PROBE_H_
