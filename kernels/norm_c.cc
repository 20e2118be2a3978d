#include "kernels/norm_c.h"

#include <cstddef>
#include <cstdio>

#include "kernels/norm_c_convert.h"

namespace normd::norm::c {
namespace {

// A fixed buffer, so that reporting that memory is out needs none.
thread_local char last_error[512] = "";

ParamVector ToVector(const norm_vector& v) {
  // Out of range values stay out of range in eight bits.
  const std::uint32_t dtype = v.dtype > 0xff ? 0xff : v.dtype;
  return {v.data, static_cast<DType>(dtype)};
}

}  // namespace

norm_result ToResult(const Status& status) noexcept {
  return ToResult(status.code(), status.message().c_str());
}

norm_result ToResult(StatusCode code, const char* message) noexcept {
  if (code != StatusCode::kOk) std::snprintf(last_error, sizeof(last_error), "%s", message);
  return static_cast<norm_result>(code);
}

Status CheckNotNull(const char* name, const void* pointer) {
  if (pointer != nullptr) return Status();
  return InvalidArgument(std::string(name) + ": null");
}

Status CheckStructSize(const char* name, std::size_t got, std::size_t wanted) {
  if (got >= wanted) return Status();
  return InvalidArgument(std::string(name) + ".struct_size: " + std::to_string(got) +
                         ", wanted at least " + std::to_string(wanted));
}

Status ToSpec(const norm_spec* in, NormSpec* out) {
  if (Status status = CheckNotNull("spec", in); !status.ok()) return status;
  // What versions 1 to 3 had.
  Status status = CheckStructSize("spec", in->struct_size, offsetof(norm_spec, leaky_slope_double));
  if (!status.ok()) return status;
  out->statistics = static_cast<Statistics>(in->statistics);
  out->dtype = static_cast<DType>(in->dtype);
  out->layout = static_cast<Layout>(in->layout);
  out->activation = static_cast<Activation>(in->activation);
  out->channels = in->channels;
  out->groups = in->groups;
  out->eps = in->eps;
  out->leaky_slope = static_cast<double>(in->leaky_slope);
  if (in->struct_size >= sizeof(norm_spec) && in->leaky_slope_double != 0) {
    out->leaky_slope = in->leaky_slope_double;
  }
  return Status();
}

Status ToParams(const norm_params* in, NormParams* out) {
  if (Status status = CheckNotNull("params", in); !status.ok()) return status;
  Status status = CheckStructSize("params", in->struct_size, sizeof(norm_params));
  if (!status.ok()) return status;
  *out = {ToVector(in->gamma), ToVector(in->beta), ToVector(in->mean), ToVector(in->variance)};
  return Status();
}

Status ToLinearSpec(const norm_linear_spec* in, LinearNormSpec* out) {
  if (Status status = CheckNotNull("spec", in); !status.ok()) return status;
  Status status = CheckStructSize("spec", in->struct_size, sizeof(norm_linear_spec));
  if (!status.ok()) return status;
  out->in_features = in->in_features;
  out->out_features = in->out_features;
  out->dtype = static_cast<DType>(in->dtype);
  out->eps = in->eps;
  out->precision = static_cast<Precision>(in->precision);
  out->epilogue.add = in->add != 0;
  out->epilogue.multiply = in->multiply != 0;
  out->epilogue.activation = static_cast<Activation>(in->activation);
  out->epilogue.leaky_slope = in->leaky_slope;
  return Status();
}

Status ToLinearParams(const norm_linear_params* in, LinearNormParams* out) {
  if (Status status = CheckNotNull("params", in); !status.ok()) return status;
  Status status = CheckStructSize("params", in->struct_size, sizeof(norm_linear_params));
  if (!status.ok()) return status;
  *out = {ToVector(in->weight), ToVector(in->bias)};
  return Status();
}

Status CheckSegments(const void* segments, std::size_t count) {
  return count == 0 ? Status() : CheckNotNull("segments", segments);
}

}  // namespace normd::norm::c

std::uint32_t norm_abi_version(void) { return NORM_C_ABI_VERSION; }

const char* norm_last_error(void) { return normd::norm::c::last_error; }
