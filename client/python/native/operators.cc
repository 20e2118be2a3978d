// The operators: each reads its arguments in the order of its schema in
// client/python/src/normd/torch/_schemas.py.

#include "client/python/native/operators.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>

#include "client/python/native/run.h"

namespace normd::torch_ops {
namespace {

// The results of a call, in the order of its schema, and the places of an out variant's tensors.
class Stack {
 public:
  Stack(StableIValue* stack, std::uint64_t results)
      : arguments(stack), stack_(stack), out_variant_(results == 0) {}

  // Reads the out variant's tensors, the last arguments, and runs the call. Those after the first
  // may be None.
  void Finish(Call& call, std::initializer_list<Tensor*> results) {
    if (out_variant_) {
      for (Tensor* result : results) {
        *result = result == *results.begin() ? arguments.NextTensor() : arguments.NextOptional();
      }
      call.out_variant = true;
    }
    CheckCodes(call.name, arguments);
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
    return result.release();
  }

  StableIValue* const stack_;
  const bool out_variant_;
};

// An operator's name as a template argument.
template <std::size_t kSize>
struct Name {
  consteval Name(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }
  char text[kSize] = {};
};

// An operator whose arguments after x `kRead` reads and whose results are members of the call.
template <Name kName, void (*kRead)(Arguments&, Call&), Tensor Call::*... kResults>
Operator Define() {
  return {kName.text, [](StableIValue* stack, std::uint64_t, std::uint64_t results) {
            Stack values(stack, results);
            Call call(kName.text);
            call.x = values.arguments.NextTensor();
            kRead(values.arguments, call);
            values.Finish(call, {&(call.*kResults)...});
          }};
}

void ReadAffine(Arguments& arguments, Call& call) {
  call.weight = arguments.NextOptional();
  call.bias = arguments.NextOptional();
}

void ReadActivation(Arguments& arguments, Call& call) {
  call.spec.activation = arguments.NextCode("activation");
  call.spec.leaky_slope = arguments.NextDouble();
}

void ReadEpsAndActivation(Arguments& arguments, Call& call) {
  call.spec.eps = arguments.NextDouble();
  ReadActivation(arguments, call);
}

void ReadAxes(Arguments& arguments, Call& call) {
  call.form = Form::kAxes;
  call.axis = arguments.NextInt();
  call.axes = arguments.NextInt();
  call.groups = 1;
}

void ReadLayerNorm(Arguments& arguments, Call& call) {
  ReadAxes(arguments, call);
  ReadAffine(arguments, call);
  ReadEpsAndActivation(arguments, call);
}

void ReadRmsNorm(Arguments& arguments, Call& call) {
  ReadAxes(arguments, call);
  call.weight = arguments.NextOptional();
  call.spec.eps = arguments.NextDouble();
  call.spec.weight_offset = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.spec.statistics = NORM_MEAN_SQUARE;
}

void InstanceNorm(Arguments& arguments, Call& call) {
  ReadAffine(arguments, call);
  call.running_mean = arguments.NextOptional();
  call.running_var = arguments.NextOptional();
  ReadEpsAndActivation(arguments, call);
  if (call.running_mean || call.running_var) call.spec.statistics = NORM_GIVEN;
}

void BatchNorm(Arguments& arguments, Call& call) {
  call.running_mean = arguments.NextTensor();
  call.running_var = arguments.NextTensor();
  ReadAffine(arguments, call);
  ReadEpsAndActivation(arguments, call);
  call.spec.statistics = NORM_GIVEN;
}

void GroupNorm(Arguments& arguments, Call& call) {
  call.groups = arguments.NextInt();
  ReadAffine(arguments, call);
  ReadEpsAndActivation(arguments, call);
}

void LayerNorm(Arguments& arguments, Call& call) {
  ReadLayerNorm(arguments, call);
  call.more_axes = arguments.NextInt();
}

void RmsNorm(Arguments& arguments, Call& call) {
  ReadRmsNorm(arguments, call);
  call.more_axes = arguments.NextInt();
}

void AddLayerNorm(Arguments& arguments, Call& call) {
  call.residual = arguments.NextTensor();
  ReadLayerNorm(arguments, call);
  call.spec.residual_out = 1;
}

void AddRmsNorm(Arguments& arguments, Call& call) {
  call.residual = arguments.NextTensor();
  ReadRmsNorm(arguments, call);
  call.spec.residual_out = 1;
}

// Every stage of the contract separately. The operators above are the most frequent cases of this
// one; entries of their own make their calls cheaper.
void Normalize(Arguments& arguments, Call& call) {
  call.form = static_cast<Form>(arguments.NextInt());
  call.axis = arguments.NextInt();
  call.axes = arguments.NextInt();
  call.groups = arguments.NextInt();
  call.spec.statistics = arguments.NextCode("statistics");
  call.spec.eps = arguments.NextDouble();
  ReadAffine(arguments, call);
  for (Tensor* each : {&call.running_mean, &call.running_var, &call.input_bias, &call.residual,
                       &call.gate, &call.other, &call.scale, &call.shift, &call.style_index,
                       &call.style_weights, &call.style_tensor}) {
    *each = arguments.NextOptional();
  }
  call.spec.combine_input = arguments.NextCode("combine_input");
  call.spec.combine_output = arguments.NextCode("combine_output");
  call.spec.weight_offset = arguments.NextDouble();
  call.spec.scale_offset = arguments.NextDouble();
  ReadActivation(arguments, call);
  call.spec.residual_out = arguments.NextBool();
  call.statistics_out = arguments.NextBool();
  call.spec.quantization = arguments.NextCode("quantization");
  call.spec.quantization_scale = arguments.NextCode("quantization_scale");
  call.spec.output_scale = arguments.NextDouble();
  call.more_axes = arguments.NextInt();
  if (call.style_tensor) call.spec.style = NORM_STYLE_TENSOR;
}

}  // namespace

const std::vector<Operator>& NormOperators() {
  static const std::vector<Operator> operators = {
      Define<"instance_norm", InstanceNorm, &Call::y>(),
      Define<"batch_norm", BatchNorm, &Call::y>(),
      Define<"group_norm", GroupNorm, &Call::y>(),
      Define<"layer_norm", LayerNorm, &Call::y>(),
      Define<"rms_norm", RmsNorm, &Call::y>(),
      Define<"add_layer_norm", AddLayerNorm, &Call::y, &Call::residual_out>(),
      Define<"add_rms_norm", AddRmsNorm, &Call::y, &Call::residual_out>(),
      Define<"normalize", Normalize, &Call::y, &Call::residual_out, &Call::mean, &Call::rstd,
             &Call::scales>(),
  };
  return operators;
}

}  // namespace normd::torch_ops
