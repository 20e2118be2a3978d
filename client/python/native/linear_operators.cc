// The fused layer: linear, norm over the features, then add, multiply and activation with a second
// input. Its weight is prepared once: on CUDA in a tensor of bytes, on the CPU in an object whose
// number is in a tensor of one int64.

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "client/python/native/backends.h"
#include "client/python/native/call.h"
#include "client/python/native/dtypes.h"
#include "client/python/native/operators.h"
#include "client/python/native/order.h"

namespace normd::torch_ops {
namespace {

norm_linear_spec LinearSpec() {
  norm_linear_spec spec{};
  spec.struct_size = sizeof(spec);
  return spec;
}

// The last arguments of both operators: _LINEAR in _schemas.py.
void ReadOptions(Arguments& arguments, norm_linear_spec& spec) {
  spec.eps = arguments.NextDouble();
  spec.add = arguments.NextBool();
  spec.multiply = arguments.NextBool();
  spec.activation = arguments.NextCode("activation");
  spec.leaky_slope = static_cast<float>(arguments.NextDouble());
  spec.precision = arguments.NextCode("precision");
}

bool IsCuda(const Tensor& tensor) { return tensor.device_type() == Torch().device_type_cuda(); }

norm_vector Parameter(const char* argument, Tensor& tensor) {
  if (!tensor) return {nullptr, NORM_FLOAT32, 0};
  const std::uint8_t dtype = ToKernelDType(tensor.dtype());
  if (dtype == 0) {
    Refuse("linear_norm_prepare", std::string(argument) + ".dtype", DTypeName(tensor.dtype()),
           kDTypesWanted);
  }
  PutInOrder(tensor, Order());
  return {tensor.data(), dtype, 0};
}

// The layers prepared for the CPU, by number. Thread-safe.
class CpuLayers {
 public:
  struct Layer {
    Layer(norm_cpu_linear* made, const norm_linear_spec& made_for) : linear(made), spec(made_for) {}
    ~Layer() { norm_cpu_linear_destroy(linear); }
    Layer(const Layer&) = delete;
    Layer& operator=(const Layer&) = delete;

    norm_cpu_linear* const linear;
    const norm_linear_spec spec;
  };

  std::int64_t Add(std::shared_ptr<const Layer> layer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    layers_.emplace(++last_, std::move(layer));
    return last_;
  }

  // Null if no layer has this number.
  std::shared_ptr<const Layer> Find(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = layers_.find(number);
    return found == layers_.end() ? nullptr : found->second;
  }

  void Remove(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    layers_.erase(number);
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::int64_t, std::shared_ptr<const Layer>> layers_;  // Shared with calls in flight.
};

// Never destroyed: calls may be in flight when the process ends.
CpuLayers& Layers() {
  static auto* const layers = new CpuLayers;
  return *layers;
}

Tensor PrepareOnCpu(const norm_linear_spec& spec, const norm_linear_params& params,
                    const Tensor& weight) {
  norm_cpu_linear* linear = nullptr;
  CheckKernels("linear_norm_prepare",
               norm_cpu_linear_create(CpuExecutor(), &spec, &params, &linear));
  const std::int64_t number = Layers().Add(std::make_shared<CpuLayers::Layer>(linear, spec));
  const std::int64_t size = 1;
  Tensor prepared = Tensor::Empty(&size, &size, 1, TorchDTypes().int64, weight);
  std::memcpy(prepared.data(), &number, sizeof(number));
  return prepared;
}

Tensor PrepareOnCuda(const norm_linear_spec& spec, const norm_linear_params& params,
                     const Tensor& weight) {
  const CudaScope scope("linear_norm_prepare", weight);
  std::size_t bytes = 0;
  CheckKernels("linear_norm_prepare", norm_cuda_linear_weight_bytes(scope.device(), &spec, &bytes));
  Tensor prepared = NewBytes(static_cast<std::int64_t>(bytes), weight);
  CheckKernels("linear_norm_prepare",
               norm_cuda_linear_prepare(scope.device(), &spec, &params, prepared.data(), bytes,
                                        scope.stream()));
  return prepared;
}

// (Tensor weight, Tensor? bias, int dtype, float eps, bool add, bool multiply, int activation,
//  float slope, int precision) -> Tensor
void Prepare(StableIValue* stack, std::uint64_t, std::uint64_t) {
  constexpr const char* kName = "linear_norm_prepare";
  Arguments arguments(stack);
  Tensor weight = arguments.NextTensor();
  Tensor bias = arguments.NextOptional();
  norm_linear_spec spec = LinearSpec();
  spec.dtype = arguments.NextCode("dtype");
  ReadOptions(arguments, spec);
  CheckCodes(kName, arguments);
  CheckTensors(kName, std::array<NamedTensor, 2>{{{"weight", &weight}, {"bias", &bias}}});
  if (weight.dims() != 2) {
    Refuse(kName, "weight.shape", weight.shape_text(), "[out_features, in_features]");
  }
  spec.out_features = weight.size(0);
  spec.in_features = weight.size(1);
  if (bias && (bias.dims() != 1 || bias.size(0) != weight.size(0))) {
    Refuse(kName, "bias.shape", bias.shape_text(), ShapeText(weight.sizes(), 1));
  }
  norm_linear_params params{};
  params.struct_size = sizeof(params);
  params.weight = Parameter("weight", weight);
  params.bias = Parameter("bias", bias);
  Tensor prepared =
      IsCuda(weight) ? PrepareOnCuda(spec, params, weight) : PrepareOnCpu(spec, params, weight);
  stack[0] = prepared.release();
}

void ComputeOnCpu(const norm_linear_spec& spec, const Tensor& prepared,
                  const norm_linear_segment& segment) {
  std::int64_t number = 0;
  std::memcpy(&number, prepared.data(), sizeof(number));
  const std::shared_ptr<const CpuLayers::Layer> layer = Layers().Find(number);
  if (layer == nullptr || std::memcmp(&layer->spec, &spec, sizeof(spec)) != 0) {
    Refuse("linear_norm", "prepared", layer == nullptr ? "of no layer" : "of a layer with others",
           "that of linear_norm_prepare with the same dtype and options");
  }
  CheckKernels("linear_norm", norm_cpu_linear_norm(layer->linear, &segment, 1));
}

void ComputeOnCuda(const norm_linear_spec& spec, const Tensor& prepared, const Tensor& x,
                   const norm_linear_segment& segment) {
  const CudaScope scope("linear_norm", x);
  std::size_t wanted = 0;
  CheckKernels("linear_norm", norm_cuda_linear_weight_bytes(scope.device(), &spec, &wanted));
  if (prepared.size(0) != static_cast<std::int64_t>(wanted)) {
    Refuse("linear_norm", "prepared.shape", prepared.shape_text(),
           "[" + std::to_string(wanted) + "] of linear_norm_prepare with the same options");
  }
  norm_cuda_launch launch{};
  launch.struct_size = sizeof(launch);
  launch.stream = scope.stream();
  CheckKernels("linear_norm",
               norm_cuda_linear_workspace_bytes(scope.device(), &spec, segment.samples, nullptr,
                                                &launch.workspace_bytes));
  const Tensor workspace = NewBytes(static_cast<std::int64_t>(launch.workspace_bytes), x);
  launch.workspace = workspace.data();
  CheckKernels("linear_norm",
               norm_cuda_linear_norm(scope.device(), &spec, prepared.data(), &segment, 1, &launch));
}

struct LinearCall {
  Tensor x, y, prepared, out;
  norm_linear_spec spec = LinearSpec();
  bool out_variant = false;
};

void CheckLinear(LinearCall& call) {
  constexpr const char* kName = "linear_norm";
  const Tensor& x = call.x;
  CheckTensors(kName,
               std::array<NamedTensor, 4>{
                   {{"x", &x}, {"y", &call.y}, {"prepared", &call.prepared}, {"out", &call.out}}});
  norm_linear_spec& spec = call.spec;
  spec.dtype = ToKernelDType(x.dtype());
  if (spec.dtype == 0 || spec.dtype == NORM_FLOAT64) {
    Refuse(kName, "x.dtype", DTypeName(x.dtype()), "float32, float16 or bfloat16");
  }
  if (x.dims() < 1 || x.size(x.dims() - 1) != spec.in_features) {
    Refuse(kName, "x.shape", x.shape_text(), "[*, " + std::to_string(spec.in_features) + "]");
  }
  const bool wants_y = spec.add != 0 || spec.multiply != 0;
  if (static_cast<bool>(call.y) != wants_y) {
    Refuse(kName, "y", call.y ? "a tensor" : "None", wants_y ? "a tensor" : "None");
  }
  const std::int32_t prepared_dtype = IsCuda(x) ? TorchDTypes().uint8 : TorchDTypes().int64;
  if (call.prepared.dtype() != prepared_dtype || call.prepared.dims() != 1 ||
      call.prepared.size(0) < 1) {
    Refuse(kName, "prepared", "another tensor", "that of linear_norm_prepare");
  }
}

void Compute(LinearCall& call) {
  CheckLinear(call);
  const std::int64_t dims = call.x.dims();
  std::int64_t sizes[kMaxDims];
  std::int64_t strides[kMaxDims];
  if (dims > kMaxDims) Refuse("linear_norm", "x.dim()", std::to_string(dims), "at most 64");
  std::copy(call.x.sizes(), call.x.sizes() + dims, sizes);
  sizes[dims - 1] = call.spec.out_features;
  Order().Strides(sizes, dims, strides);
  const auto check = [&](const char* argument, const Tensor& tensor) {
    if (tensor.dims() != dims || !std::equal(sizes, sizes + dims, tensor.sizes())) {
      Refuse("linear_norm", std::string(argument) + ".shape", tensor.shape_text(),
             ShapeText(sizes, dims));
    }
    if (tensor.dtype() != call.x.dtype()) {
      Refuse("linear_norm", std::string(argument) + ".dtype", DTypeName(tensor.dtype()),
             DTypeName(call.x.dtype()) + " as x's");
    }
  };
  if (call.y) check("y", call.y);
  if (call.out_variant) {
    check("out", call.out);
    call.out.BumpVersion();
  }
  PutInOrder(call.x, Order());
  PutInOrder(call.y, Order());
  Tensor fresh = Tensor::Empty(sizes, strides, dims, call.x.dtype(), call.x);
  const norm_linear_segment segment = {call.x.data(), call.y ? call.y.data() : nullptr,
                                       fresh.data(), call.x.Count(0, dims - 1)};
  if (IsCuda(call.x)) {
    ComputeOnCuda(call.spec, call.prepared, call.x, segment);
  } else {
    ComputeOnCpu(call.spec, call.prepared, segment);
  }
  if (call.out_variant) {
    CheckTorch(Torch().copy(call.out.handle(), fresh.handle(), 0), "copy_");
  } else {
    call.out = std::move(fresh);
  }
}

void LinearNorm(StableIValue* stack, std::uint64_t, std::uint64_t results) {
  Arguments arguments(stack);
  LinearCall call;
  call.x = arguments.NextTensor();
  call.y = arguments.NextOptional();
  call.prepared = arguments.NextTensor();
  call.spec.in_features = arguments.NextInt();
  call.spec.out_features = arguments.NextInt();
  ReadOptions(arguments, call.spec);
  call.out_variant = results == 0;
  if (call.out_variant) call.out = arguments.NextTensor();
  CheckCodes("linear_norm", arguments);
  Compute(call);
  if (!call.out_variant) stack[0] = call.out.release();
}

}  // namespace

void ForgetLinear(std::int64_t number) { Layers().Remove(number); }

const std::vector<Operator>& LinearOperators() {
  static const std::vector<Operator> operators = {{"linear_norm", LinearNorm},
                                                  {"linear_norm_prepare", Prepare}};
  return operators;
}

}  // namespace normd::torch_ops
