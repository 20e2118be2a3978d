#include "operations/geometry.h"

#include "kernels/norm.h"

namespace normd {
namespace {

void Advance(norm::ParamVector& param, std::int64_t elements) {
  if (param.data == nullptr) return;
  param.data = static_cast<const std::byte*>(param.data) +
               elements * static_cast<std::int64_t>(norm::SizeOf(param.dtype));
}

}  // namespace

norm::NormSpec SpecOf(const norm::NormSpec& spec, const ChannelRange& channels) {
  norm::NormSpec part = spec;
  if (channels.all()) return part;
  part.channels = channels.count;
  part.groups = channels.count / (spec.channels / spec.groups);
  return part;
}

norm::NormParams ParamsOf(const norm::NormParams& params, const ChannelRange& channels) {
  norm::NormParams part = params;
  for (norm::ParamVector* param : {&part.gamma, &part.beta, &part.mean, &part.variance}) {
    Advance(*param, channels.first);
  }
  return part;
}

}  // namespace normd
