// The operators: how each reads its arguments, in the order of its schema in
// client/python/src/normd/torch/_schemas.py.

#include "client/python/native/operators.h"

#include <cstring>
#include <initializer_list>

#include "client/python/native/call.h"

namespace normd::torch_ops {
namespace {

// The results of a call, in the order of its schema, and where an out variant's tensors go.
class Stack {
 public:
  Stack(StableIValue* stack, std::uint64_t results)
      : arguments(stack), stack_(stack), out_variant_(results == 0) {}

  // Reads the out variant's tensors, the last arguments, and runs the call.
  void Finish(Call& call, std::initializer_list<Tensor*> results) {
    if (out_variant_) {
      for (Tensor* result : results) *result = arguments.NextTensor();
      call.out_variant = true;
    }
    Run(call);
    if (out_variant_) return;
    StableIValue* next = stack_;
    for (Tensor* result : results) *next++ = Value(*result, call);
  }

  Arguments arguments;

 private:
  // A result that the call does not have is a tensor without elements.
  static StableIValue Value(Tensor& result, const Call& call) {
    const std::int64_t none = 0;
    const std::int64_t stride = 1;
    if (!result) result = Tensor::Empty(&none, &stride, 1, call.x.dtype(), call.x);
    TensorHandle handle = result.release();
    StableIValue value = 0;
    std::memcpy(&value, &handle, sizeof(handle));
    return value;
  }

  StableIValue* const stack_;
  const bool out_variant_;
};

void ReadActivation(Arguments& arguments, Call& call) {
  call.spec.activation = static_cast<std::uint8_t>(arguments.NextInt());
  call.spec.leaky_slope_double = arguments.NextDouble();
}

void ReadAffine(Arguments& arguments, Call& call) {
  call.weight = arguments.NextOptional();
  call.bias = arguments.NextOptional();
}

void ReadAxes(Arguments& arguments, Call& call) {
  call.form = Form::kAxes;
  call.axis = arguments.NextInt();
  call.axes = arguments.NextInt();
  call.groups = 1;
}

void InstanceNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("instance_norm");
  call.x = arguments.NextTensor();
  ReadAffine(arguments, call);
  call.running_mean = arguments.NextOptional();
  call.running_var = arguments.NextOptional();
  call.spec.eps = arguments.NextDouble();
  ReadActivation(arguments, call);
  if (call.running_mean || call.running_var) call.spec.statistics = NORM_GIVEN;
  values.Finish(call, {&call.y});
}

void BatchNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("batch_norm");
  call.x = arguments.NextTensor();
  call.running_mean = arguments.NextTensor();
  call.running_var = arguments.NextTensor();
  ReadAffine(arguments, call);
  call.spec.eps = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.spec.statistics = NORM_GIVEN;
  values.Finish(call, {&call.y});
}

void GroupNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("group_norm");
  call.x = arguments.NextTensor();
  call.groups = arguments.NextInt();
  ReadAffine(arguments, call);
  call.spec.eps = arguments.NextDouble();
  ReadActivation(arguments, call);
  values.Finish(call, {&call.y});
}

void LayerNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("layer_norm");
  call.x = arguments.NextTensor();
  ReadAxes(arguments, call);
  ReadAffine(arguments, call);
  call.spec.eps = arguments.NextDouble();
  ReadActivation(arguments, call);
  values.Finish(call, {&call.y});
}

void RmsNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("rms_norm");
  call.x = arguments.NextTensor();
  ReadAxes(arguments, call);
  call.weight = arguments.NextOptional();
  call.spec.eps = arguments.NextDouble();
  call.spec.weight_offset = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.spec.statistics = NORM_MEAN_SQUARE;
  values.Finish(call, {&call.y});
}

void AddLayerNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("add_layer_norm");
  call.x = arguments.NextTensor();
  call.residual = arguments.NextTensor();
  ReadAxes(arguments, call);
  ReadAffine(arguments, call);
  call.spec.eps = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.spec.residual_out = 1;
  values.Finish(call, {&call.y, &call.residual_out});
}

void AddRmsNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("add_rms_norm");
  call.x = arguments.NextTensor();
  call.residual = arguments.NextTensor();
  ReadAxes(arguments, call);
  call.weight = arguments.NextOptional();
  call.spec.eps = arguments.NextDouble();
  call.spec.weight_offset = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.spec.statistics = NORM_MEAN_SQUARE;
  call.spec.residual_out = 1;
  values.Finish(call, {&call.y, &call.residual_out});
}

void GatedRmsNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("gated_rms_norm");
  call.x = arguments.NextTensor();
  call.other = arguments.NextTensor();
  ReadAxes(arguments, call);
  call.groups = arguments.NextInt();
  call.weight = arguments.NextOptional();
  call.spec.eps = arguments.NextDouble();
  const bool norm_before_gate = arguments.NextBool();
  (norm_before_gate ? call.spec.combine_output : call.spec.combine_input) =
      NORM_COMBINE_MULTIPLY_SILU;
  call.spec.statistics = NORM_MEAN_SQUARE;
  values.Finish(call, {&call.y});
}

void LpNormalize(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("lp_normalize");
  call.x = arguments.NextTensor();
  ReadAxes(arguments, call);
  call.spec.statistics = static_cast<std::uint8_t>(arguments.NextInt());
  call.spec.eps = arguments.NextDouble();
  values.Finish(call, {&call.y});
}

void AdaptiveLayerNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("adaptive_layer_norm");
  call.form = Form::kFeatures;
  call.groups = 1;
  call.x = arguments.NextTensor();
  call.scale = arguments.NextTensor();
  call.shift = arguments.NextTensor();
  ReadAffine(arguments, call);
  call.spec.eps = arguments.NextDouble();
  call.spec.scale_offset = arguments.NextDouble();
  ReadActivation(arguments, call);
  values.Finish(call, {&call.y});
}

void AddAdaptiveLayerNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("add_adaptive_layer_norm");
  call.form = Form::kFeatures;
  call.groups = 1;
  call.x = arguments.NextTensor();
  call.residual = arguments.NextTensor();
  call.gate = arguments.NextTensor();
  call.scale = arguments.NextTensor();
  call.shift = arguments.NextTensor();
  ReadAffine(arguments, call);
  call.spec.eps = arguments.NextDouble();
  call.spec.scale_offset = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.spec.residual_out = 1;
  values.Finish(call, {&call.y, &call.residual_out});
}

void AdaptiveGroupNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("adaptive_group_norm");
  call.x = arguments.NextTensor();
  call.groups = arguments.NextInt();
  call.scale = arguments.NextTensor();
  call.shift = arguments.NextTensor();
  ReadAffine(arguments, call);
  call.spec.eps = arguments.NextDouble();
  call.spec.scale_offset = arguments.NextDouble();
  ReadActivation(arguments, call);
  values.Finish(call, {&call.y});
}

void AdaptiveInstanceNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("adaptive_instance_norm");
  call.x = arguments.NextTensor();
  call.style_tensor = arguments.NextTensor();
  call.spec.eps = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.spec.style = NORM_STYLE_TENSOR;
  values.Finish(call, {&call.y});
}

void ConditionalInstanceNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("conditional_instance_norm");
  call.x = arguments.NextTensor();
  ReadAffine(arguments, call);
  call.style_index = arguments.NextOptional();
  call.style_weights = arguments.NextOptional();
  call.spec.eps = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.style_bank = true;
  values.Finish(call, {&call.y});
}

// Every stage of the contract by itself; the operators above are cases of this one.
void Normalize(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Stack values(stack, results);
  Arguments& arguments = values.arguments;
  Call call("normalize");
  call.x = arguments.NextTensor();
  call.form = static_cast<Form>(arguments.NextInt());
  call.axis = arguments.NextInt();
  call.axes = arguments.NextInt();
  call.groups = arguments.NextInt();
  call.spec.statistics = static_cast<std::uint8_t>(arguments.NextInt());
  call.spec.eps = arguments.NextDouble();
  ReadAffine(arguments, call);
  for (Tensor* each : {&call.running_mean, &call.running_var, &call.input_bias, &call.residual,
                       &call.gate, &call.other, &call.scale, &call.shift, &call.style_index,
                       &call.style_weights, &call.style_tensor}) {
    *each = arguments.NextOptional();
  }
  call.spec.combine_input = static_cast<std::uint8_t>(arguments.NextInt());
  call.spec.combine_output = static_cast<std::uint8_t>(arguments.NextInt());
  call.spec.weight_offset = arguments.NextDouble();
  call.spec.scale_offset = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.spec.residual_out = arguments.NextBool();
  call.statistics_out = arguments.NextBool();
  call.spec.quantization = static_cast<std::uint8_t>(arguments.NextInt());
  call.spec.quantization_scale = static_cast<std::uint8_t>(arguments.NextInt());
  call.spec.output_scale = arguments.NextDouble();
  if (call.style_tensor) call.spec.style = NORM_STYLE_TENSOR;
  call.style_bank = call.style_index || call.style_weights;
  values.Finish(call, {&call.y, &call.residual_out, &call.mean, &call.rstd, &call.scales});
}

}  // namespace

const std::vector<Operator>& NormOperators() {
  static const std::vector<Operator> operators = {
      {"instance_norm", InstanceNorm},
      {"batch_norm", BatchNorm},
      {"group_norm", GroupNorm},
      {"layer_norm", LayerNorm},
      {"rms_norm", RmsNorm},
      {"add_layer_norm", AddLayerNorm},
      {"add_rms_norm", AddRmsNorm},
      {"gated_rms_norm", GatedRmsNorm},
      {"lp_normalize", LpNormalize},
      {"adaptive_layer_norm", AdaptiveLayerNorm},
      {"add_adaptive_layer_norm", AddAdaptiveLayerNorm},
      {"adaptive_group_norm", AdaptiveGroupNorm},
      {"adaptive_instance_norm", AdaptiveInstanceNorm},
      {"conditional_instance_norm", ConditionalInstanceNorm},
      {"normalize", Normalize},
  };
  return operators;
}

}  // namespace normd::torch_ops
