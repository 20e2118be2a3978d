// Norms over the channels of tensors [N, C, *] or [N, *, C].

#ifndef NORMD_SERVER_MODEL_OPERATIONS_CHANNEL_NORM_H_
#define NORMD_SERVER_MODEL_OPERATIONS_CHANNEL_NORM_H_

#include "server/model/operations/norm_operation.h"

namespace normd {

// Each parameter has one element per channel.
class ChannelNorm final : public NormOperation {
 public:
  // spec.channels and spec.groups are checked.
  ChannelNorm(const v1::ModelConfig& config, const norm::NormSpec& spec,
              const NormParameters& parameters);

  bool has_channels() const override { return true; }

 private:
  absl::Status Divide(const Shape& x, Geometry& geometry) const override;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATIONS_CHANNEL_NORM_H_
