// The devices on which norm_bench runs a case, and their results.

#ifndef NORMD_KERNELS_BENCH_DEVICE_H_
#define NORMD_KERNELS_BENCH_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/bench/case.h"

namespace normd::norm::bench {

struct Settings {
  int threads = 0;                    // CPU only; 0: all that the process may use.
  double min_seconds = 0.5;           // Time spent measuring one case, norm and copy together.
  std::int64_t max_tensor_bytes = 0;  // Larger tensors lose samples; 0: the device's memory.
  std::string strategy;               // CUDA only; forces a strategy or a tile by its name.
  DType param_dtype = DType::kFloat32;
  bool params_like_tensor = false;  // CUDA only: parameters have the tensor's type instead.
  std::uint64_t seed = 1;
};

struct Measurement {
  std::string strategy;  // The strategy that computed the case.
  double norm_ms = 0;    // Medians of one call.
  double copy_ms = 0;    // A plain copy of the same tensor.
  // Median over the repetitions of copy time / norm time, each pair measured back to back, so that
  // a busy machine slows both: 1 is the speed of the copy. If a case moves more or fewer bytes than
  // a copy, the copy's time is scaled accordingly.
  double ratio = 0;
  // Device time of one call in a replay of a captured graph; 0: not replayed. Only CUDA replays,
  // with tensors of up to 16 MiB.
  double replay_ms = 0;
  int repetitions = 0;
  double max_error = 0;  // Largest |y - reference| / max(1, |reference|); infinite for a wrong NaN.
  std::int64_t checked_elements = 0;

  // Bytes of the case's tensors, each read or written once, per second.
  double gigabytes_per_second(const Case& c) const {
    return 1e-6 * static_cast<double>(c.moved_bytes()) / norm_ms;
  }
};

struct LinearCase;  // kernels/bench/linear.h
struct LinearMeasurement;

// Not thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string Description() const = 0;  // One line: hardware, threads, instruction set.
  // Computes the case with poisoned output, checks it against float64, then measures it. Removes
  // samples from a tensor that is too large, in *c too. Blocks.
  virtual Status Measure(Case* c, Measurement* out) = 0;
  // The same for the fused layer (z + y) * y, whose size does not change.
  virtual Status MeasureLinear(const LinearCase& c, LinearMeasurement* out) = 0;
  // How the device would compute the case, without computing it.
  virtual Status Explain(const Case& c, std::string* out) = 0;
};

// Unsupported if this build or machine does not have the device.
Status MakeCpuDevice(const Settings& settings, std::unique_ptr<Device>* out);
Status MakeCudaDevice(const Settings& settings, std::unique_ptr<Device>* out);

// The list is not empty; it is reordered.
double Median(std::vector<double>* values);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_DEVICE_H_
