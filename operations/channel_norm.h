// Norms over the channels of tensors [N, C, *] or [N, *, C].

#ifndef NORMD_OPERATIONS_CHANNEL_NORM_H_
#define NORMD_OPERATIONS_CHANNEL_NORM_H_

#include "operations/norm_operation.h"

namespace normd {

// Each parameter has one element per channel.
class ChannelNorm final : public NormOperation {
 public:
  // Its channels, groups and styles are checked. If its spec has channels last, that overrides the
  // config.
  ChannelNorm(const v1::ModelConfig& config, const NormCase& norm);

  bool has_channels() const override { return true; }

 private:
  absl::Status Divide(const Shape& x, Geometry& geometry) const override;
  // [N, groups], or [N, *, 1] if each position is a row.
  Dims RowDims(const Shape& x) const override;
};

}  // namespace normd

#endif  // NORMD_OPERATIONS_CHANNEL_NORM_H_
