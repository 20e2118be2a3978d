#include "kernels/linear_norm.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"

namespace normd::norm {
namespace {

Status CheckFeatures(const char* name, std::int64_t features) {
  if (features > 0) return Status();
  return InvalidArgument(std::string(name) + ": " + std::to_string(features) +
                         ", wanted at least 1");
}

Status CheckPointer(const std::string& where, const void* data, DType dtype) {
  if (data == nullptr) return InvalidArgument(where + "null");
  if (!IsAligned(data, dtype)) return InvalidArgument(where + "not aligned to its element");
  return Status();
}

}  // namespace

const char* Name(Precision precision) {
  switch (precision) {
    case Precision::kFloat32: return "float32";
    case Precision::kTf32: return "tf32";
    case Precision::kBFloat16: return "bf16";
    case Precision::kFloat32Strict: return "float32_strict";
  }
  return "invalid";
}

Status ValidateLinearNorm(const LinearNormSpec& spec, const LinearNormParams& params) {
  for (const Status& status : {CheckFeatures("in_features", spec.in_features),
                               CheckFeatures("out_features", spec.out_features)}) {
    if (!status.ok()) return status;
  }
  std::int64_t elements = 0;
  if (!MultiplyFits(spec.in_features, spec.out_features, &elements) ||
      !MultiplyFits(elements, static_cast<std::int64_t>(sizeof(double)), &elements)) {
    return InvalidArgument("in_features, out_features: the weight's bytes overflow 63 bits");
  }
  if (!IsLinearNormDType(spec.dtype)) {
    return InvalidArgument(std::string("dtype: ") + Name(spec.dtype) +
                           ", wanted float32, float16 or bfloat16");
  }
  if (Status status = CheckValue("precision", spec.precision, Precision::kFloat32Strict);
      !status.ok()) {
    return status;
  }
  if (params.weight.data == nullptr) return InvalidArgument("weight: missing");
  for (const Status& status :
       {CheckEps(spec.eps), CheckActivation(spec.epilogue.activation),
        CheckParam("weight", params.weight), CheckParam("bias", params.bias)}) {
    if (!status.ok()) return status;
  }
  return Status();
}

Status ValidateLinearNormSegments(const LinearNormSpec& spec, const LinearNormSegment* segments,
                                  std::size_t count) {
  const std::int64_t features = std::max(spec.in_features, spec.out_features);
  for (std::size_t i = 0; i < count; ++i) {
    const LinearNormSegment& segment = segments[i];
    const auto where = [i](const char* field) {
      return "segments[" + std::to_string(i) + "]." + field + ": ";
    };
    if (segment.samples < 0) {
      return InvalidArgument(where("samples") + std::to_string(segment.samples) + " is negative");
    }
    if (segment.samples == 0) continue;
    std::int64_t bytes = 0;
    if (!MultiplyFits(segment.samples, features, &bytes) ||
        !MultiplyFits(bytes, static_cast<std::int64_t>(SizeOf(spec.dtype)), &bytes)) {
      return InvalidArgument(where("samples") + "bytes overflow 63 bits");
    }
    if (!spec.epilogue.needs_y() && segment.y != nullptr) {
      return InvalidArgument(where("y") + "present, but the epilogue uses none");
    }
    for (const Status& status :
         {CheckPointer(where("x"), segment.x, spec.dtype),
          spec.epilogue.needs_y() ? CheckPointer(where("y"), segment.y, spec.dtype) : Status(),
          CheckPointer(where("out"), segment.out, spec.dtype)}) {
      if (!status.ok()) return status;
    }
  }
  return Status();
}

}  // namespace normd::norm
