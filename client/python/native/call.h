// The arguments and results of one call of a normalization operator.

#ifndef NORMD_CLIENT_PYTHON_NATIVE_CALL_H_
#define NORMD_CLIENT_PYTHON_NATIVE_CALL_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "client/python/native/checks.h"
#include "client/python/native/tensor.h"
#include "kernels/norm_c.h"

namespace normd::torch_ops {

// The dimensions of x that are the channels of a sample.
enum class Form : std::int64_t {
  kChannels = 0,  // x [N, C, *], normalized over groups of channels and all positions.
  // x [*, axes, *], normalized over the axes, which may have others between them. The dimensions
  // before the first axis are the samples: scale, shift and gate are [samples, channels].
  kAxes = 1,
  kFeatures = 2,  // x [N, *, F], normalized over F; scale, shift and gate are [N, F].
};

// An operator's arguments. Absent tensors are empty.
struct Call {
  explicit Call(const char* operator_name) : name(operator_name) {
    spec.struct_size = sizeof(spec);
    spec.statistics = NORM_MEAN_VARIANCE;
    spec.scale_offset = 1;
  }

  const char* name;
  Form form = Form::kChannels;
  // kAxes: the first axis, the number of axes adjacent to it, and a bit for each later dimension
  // that is an axis as well.
  std::int64_t axis = 1;
  std::int64_t axes = 1;
  std::int64_t more_axes = 0;
  std::int64_t groups = 0;  // 0: as many as channels.
  norm_spec spec{};         // Everything but the type, the layout and the sizes.
  Tensor x, residual, other, gate, scale, shift, style_index, style_weights, style_tensor;
  Tensor weight, bias, running_mean, running_var, input_bias;
  // The out variant's; else empty, and made by Run if the spec has them.
  Tensor y, residual_out, mean, rstd, scales;
  bool statistics_out = false;  // mean and rstd are wanted.
  bool out_variant = false;

  // All tensors: x and the other inputs, then the results.
  static constexpr std::size_t kInputs = 14;
  std::array<NamedTensor, kInputs + 5> tensors() const {
    return {{{"x", &x},
             {"residual", &residual},
             {"other", &other},
             {"gate", &gate},
             {"scale", &scale},
             {"shift", &shift},
             {"style_index", &style_index},
             {"style_weights", &style_weights},
             {"style", &style_tensor},
             {"weight", &weight},
             {"bias", &bias},
             {"running_mean", &running_mean},
             {"running_var", &running_var},
             {"input_bias", &input_bias},
             {"out", &y},
             {"residual_out", &residual_out},
             {"mean", &mean},
             {"rstd", &rstd},
             {"scales", &scales}}};
  }
};

}  // namespace normd::torch_ops

#endif  // NORMD_CLIENT_PYTHON_NATIVE_CALL_H_
