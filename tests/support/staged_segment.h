// Segments of the whole contract, drawn at random: every tensor that a spec's stages take, in
// memory that notices stray writes, with outputs in place of inputs where the contract allows it.

#ifndef NORMD_TESTS_SUPPORT_STAGED_SEGMENT_H_
#define NORMD_TESTS_SUPPORT_STAGED_SEGMENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/norm.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : generator_(seed) {}

  std::int64_t Draw(std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(generator_);
  }
  bool Chance(int percent) { return Draw(1, 100) <= percent; }
  template <typename Values>
  auto OneOf(const Values& values) {
    return values[static_cast<std::size_t>(
        Draw(0, static_cast<std::int64_t>(std::size(values)) - 1))];
  }

 private:
  std::mt19937_64 generator_;
};

// `bytes` bytes between guards, `offset` bytes past a 256-byte boundary.
class GuardedBytes {
 public:
  GuardedBytes() = default;
  GuardedBytes(std::size_t bytes, std::size_t offset);

  unsigned char* data() { return storage_.data() + first_; }
  const unsigned char* data() const { return storage_.data() + first_; }
  std::size_t bytes() const { return bytes_; }
  void Poison();
  bool GuardsIntact() const;

 private:
  std::vector<unsigned char> storage_;
  std::size_t first_ = 0;
  std::size_t bytes_ = 0;
};

// Normal numbers, the same for the same place of `random`'s sequence.
void FillNormal(DType dtype, void* data, std::int64_t count, Random& random);

// Parameters of any types for a spec; each optional one may be missing.
class StagedParams {
 public:
  StagedParams(const NormSpec& spec, bool input_bias, Random& random);
  // A gamma, perhaps a beta, and an input bias of x's type at aligned addresses, as in models.
  static StagedParams OfRowsType(const NormSpec& spec, bool input_bias, Random& random);

  NormParams View() const;

 private:
  StagedParams() = default;
  using Values = std::optional<Tensor>;
  static void Draw(std::int64_t count, Random& random, Values* values);
  // gamma or beta: of one row, or of each style.
  static void DrawTable(const NormSpec& spec, Random& random, Values* values);

  Values gamma_;
  Values beta_;
  Values mean_;
  Values variance_;
  Values input_bias_;
};

// Sizes in any order with this product, some of them 1.
RunSizes DrawRuns(std::int64_t product, Random& random);

class StagedSegment {
 public:
  enum In {
    kX,
    kResidual,
    kOther,
    kGate,
    kScale,
    kShift,
    kStyleIndex,
    kStyleWeights,
    kStyleTensor,
    kInputs
  };
  enum Out { kY, kResidualOut, kMeanOut, kRstdOut, kScaleOut, kOutputs };

  // Tensors for a spec, filled with normal numbers; outputs lie apart from inputs, and mean_out and
  // rstd_out are not wanted. With Layout::kMixedRuns the runs of positions are drawn.
  StagedSegment(const NormSpec& spec, std::int64_t samples, std::int64_t spatial,
                std::int64_t style_spatial, Random& random);

  // The same with Layout::kMixedRuns and given runs of positions.
  StagedSegment(const NormSpec& spec, std::int64_t samples, const RunSizes& spatial_runs,
                Random& random);

  // Samples [first, first + samples) of another.
  StagedSegment(const StagedSegment& whole, std::int64_t first, std::int64_t samples);

  std::int64_t samples() const { return samples_; }
  std::int64_t spatial() const { return spatial_; }
  const RunSizes& spatial_runs() const { return spatial_runs_; }
  std::int64_t elements() const { return samples_ * spatial_ * spec_.channels; }

  // The input's own memory, which no computation writes to.
  void* input(In in) { return inputs_[in].pristine.data(); }
  const void* input(In in) const { return inputs_[in].pristine.data(); }
  double InputAt(In in, std::int64_t index) const;
  void SetInput(In in, std::int64_t index, double value);

  // Asks for the spec's statistics.
  void WantStatistics(bool wanted);
  // Draws which outputs overwrite which inputs.
  void DrawPlacement(Random& random);
  // Draws gaps between the samples of x and of y, whose elements are NaNs. Call it after
  // DrawPlacement.
  void DrawGaps(Random& random);
  // Draws offsets from 256-byte boundaries: whole elements or, for inputs, any bytes.
  void DrawOffsets(bool any_byte, Random& random);

  // Inputs are new copies, outputs are poisoned. The pointers are valid until the next call.
  Segment Prepare(const NormParams* own = nullptr);
  // The pristine inputs, and no outputs.
  Segment Reference() const;

  // The bytes written since Prepare, with the gaps; null if the output is not wanted.
  const void* output(Out out) const;
  double OutputAt(Out out, std::int64_t index) const;

  // Empty if nothing was written beside the outputs or between their samples, nor to an input that
  // is not overwritten by one.
  std::string StrayWrites() const;
  // Empty if the outputs equal those of samples [first, first + samples()) of another, byte by
  // byte; outputs that one of the two did not want are not compared.
  std::string Differences(const StagedSegment& whole, std::int64_t first) const;

 private:
  struct Input {
    std::size_t sample_bytes = 0;  // 0: absent.
    std::size_t gap = 0;           // Bytes between samples.
    std::vector<unsigned char> pristine;
    std::size_t offset = 0;
    GuardedBytes copy;
  };
  struct Output {
    std::size_t sample_bytes = 0;  // 0: absent.
    std::size_t gap = 0;           // As the input's, in place of one.
    int in_place_of = -1;          // An In.
    std::size_t offset = 0;
    GuardedBytes own;
  };

  std::size_t InputBytesOf(const Input& input) const {
    return input.sample_bytes * static_cast<std::size_t>(samples_);
  }
  std::size_t ElementBytes(In in) const;
  std::size_t ElementBytes(Out out) const;
  DType AccType() const {
    return spec_.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  }
  void SetSizes();
  void FillInputs(Random& random);
  bool IsOverwritten(int in) const;
  // Without outputs; `in` gives an input's memory.
  Segment WithInputs(const std::function<const unsigned char*(In)>& in) const;

  NormSpec spec_;
  std::int64_t samples_;
  std::int64_t spatial_;
  std::int64_t style_spatial_;
  RunSizes spatial_runs_ = {};
  std::array<Input, kInputs> inputs_;
  std::array<Output, kOutputs> outputs_;
};

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_STAGED_SEGMENT_H_
