// The division of a request's tensors into the kernels' rows, and the places where they may be cut.

#ifndef NORMD_OPERATIONS_GEOMETRY_H_
#define NORMD_OPERATIONS_GEOMETRY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "base/shape.h"
#include "kernels/run_sizes.h"
#include "kernels/types.h"

namespace normd::norm {
struct NormParams;
struct NormSpec;
}  // namespace normd::norm

namespace normd {

// Whole groups of a channels-first sample, which are adjacent in memory: whole rows.
struct ChannelRange {
  std::int64_t first = 0;
  std::int64_t count = 0;  // 0: every channel.

  bool all() const { return count == 0; }
  friend bool operator==(const ChannelRange&, const ChannelRange&) = default;
};

// The spec and the parameters of those channels. A row computed with them has the same bits as in
// its whole sample.
norm::NormSpec SpecOf(const norm::NormSpec& spec, const ChannelRange& channels);
norm::NormParams ParamsOf(const norm::NormParams& params, const ChannelRange& channels);

// The type of an input tensor in a request, and of an operation's output.
struct TensorType {
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
};

// The element type of a tensor, or of a part of one, and its size.
struct TensorSize {
  std::int64_t bytes = 0;
  norm::DType dtype = norm::DType::kFloat32;

  friend bool operator==(const TensorSize&, const TensorSize&) = default;
};

// Lists of tensors have no maximum; up to these counts they need no allocation.
inline constexpr std::size_t kInlinedInputs = 2;
inline constexpr std::size_t kInlinedOutputs = 4;

// The division of a request's tensors into segments of the kernels' contract. Every tensor of a
// request, input or output, has the same number of samples.
struct Geometry {
  std::int64_t samples = 0;
  std::int64_t spatial = 1;
  std::int64_t rows = 0;  // What batch limits count.
  // For a part of one sample (samples is 1): the channels that it covers. Model::Check gives all.
  ChannelRange channels{};
  absl::InlinedVector<TensorSize, kInlinedInputs> inputs;  // In the signature's order.
  // Likewise. An output on request has no bytes unless the request asks for it: it is not computed.
  absl::InlinedVector<TensorSize, kInlinedOutputs> outputs;

  // The memory of the CPU's kernels during the computation, if it may be as much as the tensors: a
  // sample's scales and shifts, in the accumulation type.
  std::int64_t workspace_bytes = 0;

  norm::RunSizes spatial_runs = {};  // As norm::Segment has them.

  std::int64_t InputBytes() const { return Sum(inputs); }
  std::int64_t OutputBytes() const { return Sum(outputs); }
  // The bytes of all inputs or of all outputs, whichever is more: byte limits apply to this.
  std::int64_t LargerBytes() const { return std::max(InputBytes(), OutputBytes()); }

 private:
  // Model::Check has checked that this fits.
  template <typename Tensors>
  static std::int64_t Sum(const Tensors& tensors) {
    std::int64_t sum = 0;
    for (const TensorSize& tensor : tensors) sum += tensor.bytes;
    return sum;
  }
};

// The places where a request's tensors may be cut into parts that are computed separately, each
// with the same bits as in the whole.
struct CutRule {
  enum class At {
    kSample,  // Only between samples.
    kRow,     // Also between the rows of a sample, which are adjacent in memory.
  };
  At at = At::kSample;
  // With kRow: the rows of a sample, and the channels of each row. Operations with several inputs
  // are only cut between samples. So are streams of several outputs: they carry a sample of each in
  // turn.
  std::int64_t sample_rows = 1;
  std::int64_t row_channels = 0;
};

}  // namespace normd

#endif  // NORMD_OPERATIONS_GEOMETRY_H_
