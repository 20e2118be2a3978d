#include "client/python/native/run.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "client/python/native/backends.h"
#include "client/python/native/dtypes.h"
#include "client/python/native/geometry.h"
#include "client/python/native/order.h"

namespace normd::torch_ops {
namespace {

constexpr std::int64_t kQuantizationBlock = 128;  // For NORM_SCALE_BLOCK.

std::string Text(std::int64_t value) { return std::to_string(value); }

void CheckDType(const Call& call, const char* argument, const Tensor& tensor) {
  if (tensor.dtype() != call.x.dtype()) {
    Refuse(call.name, std::string(argument) + ".dtype", DTypeName(tensor.dtype()),
           DTypeName(call.x.dtype()) + " as x's");
  }
}

void CheckX(Call& call) {
  const Tensor& x = call.x;
  const bool is_cpu = x.device_type() == Torch().device_type_cpu();
  if (!is_cpu && x.device_type() != Torch().device_type_cuda()) {
    Refuse(call.name, "x.device", "device type " + Text(x.device_type()), "cpu or cuda");
  }
  call.spec.dtype = ToKernelDType(x.dtype());
  if (call.spec.dtype == 0) Refuse(call.name, "x.dtype", DTypeName(x.dtype()), kDTypesWanted);
  if (x.dims() > kMaxDims) Refuse(call.name, "x.dim()", Text(x.dims()), "at most 64");
  if (call.form != Form::kChannels && call.form != Form::kAxes && call.form != Form::kFeatures) {
    Refuse(call.name, "form", Text(static_cast<std::int64_t>(call.form)), "0, 1 or 2");
  }
  const bool has_axes = call.form == Form::kAxes;
  // The sum of larger numbers may overflow.
  if (has_axes && (call.axis < 0 || call.axis >= kMaxDims)) {
    Refuse(call.name, "axis", Text(call.axis), "from 0 to 63");
  }
  if (has_axes && (call.axes < 1 || call.axes > kMaxDims)) {
    Refuse(call.name, "axes", Text(call.axes), "from 1 to 64");
  }
  const std::int64_t least = has_axes ? call.axis + call.axes : 2;
  if (x.dims() < least) {
    Refuse(call.name, "x.shape", x.shape_text(), "at least " + Text(least) + " dimensions");
  }
  if (call.more_axes == 0) return;
  // Bits of the axes themselves, or in front of them, are not further axes.
  const std::int64_t front = least < kMaxDims - 1 ? (std::int64_t{1} << least) - 1 : -1;
  if (!has_axes || call.more_axes < 0 || (call.more_axes & front) != 0 || x.dims() >= kMaxDims ||
      call.more_axes >> x.dims() != 0) {
    Refuse(call.name, "more_axes", Text(call.more_axes),
           "bits of dimensions from " + Text(least) + " to " + Text(x.dims() - 1));
  }
}

// An input of x's shape, where x is, copied if necessary.
const void* Alike(const Call& call, const char* argument, Tensor& tensor, const Order& order) {
  if (!tensor) return nullptr;
  CheckDType(call, argument, tensor);
  if (!tensor.SameShape(call.x)) {
    Refuse(call.name, std::string(argument) + ".shape", tensor.shape_text(),
           call.x.shape_text() + " as x");
  }
  PutInOrder(tensor, order);
  return tensor.data();
}

// An input with `columns` values for each of the samples.
const void* PerSample(const Call& call, const char* argument, Tensor& tensor, std::int64_t samples,
                      std::int64_t columns) {
  if (!tensor) return nullptr;
  CheckDType(call, argument, tensor);
  const std::int64_t wanted[] = {samples, columns};
  if (tensor.dims() != 2 || !std::equal(wanted, wanted + 2, tensor.sizes())) {
    Refuse(call.name, std::string(argument) + ".shape", tensor.shape_text(), ShapeText(wanted, 2));
  }
  PutInOrder(tensor, Order());
  return tensor.data();
}

// A parameter with `elements` elements in all.
norm_vector Vector(const Call& call, const char* argument, Tensor& tensor, std::int64_t elements) {
  if (!tensor) return {nullptr, NORM_FLOAT32, 0};
  const std::uint8_t dtype = ToKernelDType(tensor.dtype());
  if (dtype == 0) {
    Refuse(call.name, std::string(argument) + ".dtype", DTypeName(tensor.dtype()), kDTypesWanted);
  }
  if (tensor.dims() > kMaxDims || tensor.elements() != elements) {
    Refuse(call.name, std::string(argument) + ".shape", tensor.shape_text(),
           Text(elements) + " elements in at most 64 dimensions");
  }
  PutInOrder(tensor, Order());
  return {tensor.data(), dtype, 0};
}

norm_params Params(Call& call) {
  const std::int64_t channels = call.spec.channels;
  const std::int64_t table = channels * std::max<std::int64_t>(call.spec.styles, 1);
  norm_params params{};
  params.struct_size = sizeof(params);
  params.gamma = Vector(call, "weight", call.weight, table);
  params.beta = Vector(call, "bias", call.bias, table);
  params.mean = Vector(call, "running_mean", call.running_mean, channels);
  params.variance = Vector(call, "running_var", call.running_var, channels);
  params.input_bias = Vector(call, "input_bias", call.input_bias, channels);
  return params;
}

// Call after `tensors` has its samples.
void SetStyle(Call& call, const Order& order, norm_tensors& tensors) {
  if (call.style_index) {
    const Tensor& index = call.style_index;
    if (index.dtype() != TorchDTypes().int64) {
      Refuse(call.name, "style_index.dtype", DTypeName(index.dtype()), "int64");
    }
    if (index.dims() != 1 || index.size(0) != tensors.samples) {
      Refuse(call.name, "style_index.shape", index.shape_text(), "[" + Text(tensors.samples) + "]");
    }
    PutInOrder(call.style_index, Order());
    tensors.style_index = static_cast<const std::int64_t*>(call.style_index.data());
  }
  tensors.style_weights =
      PerSample(call, "style_weights", call.style_weights, tensors.samples, call.spec.styles);
  if (call.style_tensor) {
    if (call.form != Form::kChannels) {
      Refuse(call.name, "style", "present with form " + Text(static_cast<std::int64_t>(call.form)),
             "form 0");
    }
    CheckDType(call, "style", call.style_tensor);
    const Tensor& style = call.style_tensor;
    if (style.dims() < 2 || style.dims() > kMaxDims || style.size(0) != call.x.size(0) ||
        style.size(1) != call.x.size(1)) {
      Refuse(call.name, "style.shape", style.shape_text(),
             "[" + Text(call.x.size(0)) + ", " + Text(call.x.size(1)) + ", *]");
    }
    tensors.style_spatial = style.Count(2, style.dims());
    if (tensors.style_spatial == 0 && call.x.elements() > 0) {
      Refuse(call.name, "style.shape", style.shape_text(), "at least one position");
    }
    PutInOrder(call.style_tensor, order);
    tensors.style_tensor = call.style_tensor.data();
  }
}

// Whether two tensors are known to share memory: they begin alike, or both are dense.
bool ShareMemory(const Tensor& a, const Tensor& b) {
  if (!a || !b || a.elements() == 0 || b.elements() == 0) return false;
  const char* const a_begin = static_cast<const char*>(a.data());
  const char* const b_begin = static_cast<const char*>(b.data());
  if (a_begin == b_begin) return true;
  return a.extent() == a.elements() && b.extent() == b.elements() &&
         a_begin < b_begin + b.elements() * ElementBytes(b.dtype()) &&
         b_begin < a_begin + a.elements() * ElementBytes(a.dtype());
}

// Refuses an out variant's tensors that share memory: one result would be lost.
void CheckResultsApart(const Call& call) {
  const auto tensors = call.tensors();
  for (std::size_t i = Call::kInputs + 1; i < tensors.size(); ++i) {
    for (std::size_t j = Call::kInputs; j < i; ++j) {
      if (ShareMemory(*tensors[i].tensor, *tensors[j].tensor)) {
        Refuse(call.name, tensors[i].name, std::string("in the memory of ") + tensors[j].name,
               "memory of its own");
      }
    }
  }
}

// Checks the table's rows, and an index or weights for each sample. Call after Divide.
void CheckStyleBank(Call& call) {
  if (!call.style_index && !call.style_weights) return;
  if (call.style_index && call.style_weights) {
    Refuse(call.name, "style_index, style_weights", "both", "one");
  }
  const Tensor& table = call.weight ? call.weight : call.bias;
  if (!table || table.dims() != 2 || table.size(1) != call.spec.channels) {
    Refuse(call.name, call.weight || !call.bias ? "weight.shape" : "bias.shape",
           table ? table.shape_text() : "absent, as bias is",
           "[styles, " + Text(call.spec.channels) + "]");
  }
  call.spec.style = call.style_index ? NORM_STYLE_INDEX : NORM_STYLE_MIX;
  call.spec.styles = table.size(0);
  if (call.weight && call.bias && !call.bias.SameShape(call.weight)) {
    Refuse(call.name, "bias.shape", call.bias.shape_text(),
           call.weight.shape_text() + " as weight");
  }
}

std::int32_t OutputDType(const Call& call) {
  switch (call.spec.quantization) {
    case NORM_QUANTIZATION_INT8: return TorchDTypes().int8;
    case NORM_QUANTIZATION_FLOAT8_E4M3: return TorchDTypes().float8_e4m3fn;
    default: return call.x.dtype();
  }
}

// The result tensors of one call: an out variant's own, or new ones.
class Results {
 public:
  explicit Results(Call& call) : call_(call) {}

  // The result of x's shape. `pitch` is x's, and becomes that of an out variant's tensor that lies
  // as x does, or 0.
  void* PlaceY(std::int32_t dtype, const Order& order, std::int64_t* pitch) {
    const Tensor& x = call_.x;
    if (*pitch != 0 && call_.out_variant && call_.y && x.SameStrides(call_.y) &&
        call_.y.dtype() == dtype && !OverlapsInput(call_.y)) {
      Take("out", call_.y, x.sizes(), x.dims(), dtype, x.strides());
      return call_.y.data();
    }
    *pitch = 0;
    return Place("out", call_.y, x.sizes(), x.dims(), dtype, order);
  }

  // A result of these sizes in this order. If an out variant's tensor has another layout, the
  // kernels write to a temporary, which Finish copies.
  void* Place(const char* argument, Tensor& out, const std::int64_t* sizes, std::int64_t dims,
              std::int32_t dtype, const Order& order) {
    std::int64_t strides[kMaxResultDims];
    order.Strides(sizes, dims, strides);
    Take(argument, out, sizes, dims, dtype, strides);
    if (!call_.out_variant || (order.Has(out) && !OverlapsInput(out))) return out.data();
    return AddTemporary(out, sizes, dims, dtype, strides);
  }

  // A row-major result whose dimensions [begin, end) the kernels write after dimension `end`: to a
  // temporary, which Finish copies.
  void* PlaceMoved(const char* argument, Tensor& out, const std::int64_t* sizes, std::int64_t dims,
                   std::int32_t dtype, std::int64_t begin, std::int64_t end) {
    const Order row_major;
    std::int64_t strides[kMaxResultDims];
    row_major.Strides(sizes, dims, strides);
    Take(argument, out, sizes, dims, dtype, strides);
    // Dimensions after `end` keep their strides.
    std::int64_t stride = strides[end];
    std::int64_t moved = 1;
    for (std::int64_t i = end - 1; i >= begin; --i) {
      strides[i] = stride * moved;
      moved *= std::max<std::int64_t>(sizes[i], 1);
    }
    strides[end] = stride * moved;
    return AddTemporary(out, sizes, dims, dtype, strides);
  }

  void Finish() {
    for (int i = 0; i < count_; ++i) {
      CheckTorch(Torch().copy(temporaries_[i].out->handle(), temporaries_[i].tensor.handle(), 0),
                 "copy_");
    }
  }

 private:
  struct Temporary {
    Tensor tensor;
    Tensor* out = nullptr;
  };

  // A new tensor, or the out variant's, if its layout fits.
  void Take(const char* argument, Tensor& out, const std::int64_t* sizes, std::int64_t dims,
            std::int32_t dtype, const std::int64_t* strides) {
    if (!call_.out_variant) {
      out = Tensor::Empty(sizes, strides, dims, dtype, call_.x);
      return;
    }
    if (!out) Refuse(call_.name, argument, "None", "a tensor");
    if (out.dims() != dims || !std::equal(sizes, sizes + dims, out.sizes())) {
      Refuse(call_.name, std::string(argument) + ".shape", out.shape_text(),
             ShapeText(sizes, dims));
    }
    if (out.dtype() != dtype) {
      Refuse(call_.name, std::string(argument) + ".dtype", DTypeName(out.dtype()),
             DTypeName(dtype));
    }
    out.BumpVersion();
  }

  void* AddTemporary(Tensor& out, const std::int64_t* sizes, std::int64_t dims, std::int32_t dtype,
                     const std::int64_t* strides) {
    Temporary& temporary = temporaries_[count_++];
    temporary = {Tensor::Empty(sizes, strides, dims, dtype, call_.x), &out};
    return temporary.tensor.data();
  }

  // Whether the kernels would read their own output: an input's bytes other than in place.
  bool OverlapsInput(const Tensor& out) const {
    const auto bytes = [](const Tensor& tensor) {
      return tensor.extent() * ElementBytes(tensor.dtype());
    };
    const char* const begin = static_cast<const char*>(out.data());
    const char* const end = begin + bytes(out);
    const auto tensors = call_.tensors();
    for (std::size_t i = 0; i < Call::kInputs; ++i) {
      const Tensor* const input = tensors[i].tensor;
      if (!*input) continue;
      const char* at = static_cast<const char*>(input->data());
      if (at == begin && (input == &call_.x || input == &call_.residual) &&
          out.dtype() == input->dtype() && out.SameStrides(*input)) {
        continue;
      }
      if (at < end && begin < at + bytes(*input)) return true;
    }
    return false;
  }

  Call& call_;
  Temporary temporaries_[5];
  int count_ = 0;
};

// One value for each row: [N, groups], or x's dimensions beside the axes and, if there are several,
// the groups. If `columns` is not 0, it follows as a last dimension.
std::int64_t RowSizes(const Call& call, std::int64_t columns, std::int64_t* sizes) {
  std::int64_t dims = 0;
  const Tensor& x = call.x;
  if (call.form == Form::kChannels) {
    sizes[dims++] = x.size(0);
    sizes[dims++] = call.spec.groups;
  } else {
    for (std::int64_t i = 0; i < x.dims(); ++i) {
      const bool normalized = call.form == Form::kAxes ? IsAxis(call, i) : i + 1 == x.dims();
      if (!normalized) sizes[dims++] = x.size(i);
    }
    if (call.spec.groups > 1) sizes[dims++] = call.spec.groups;
  }
  if (columns > 0) sizes[dims++] = columns;
  return dims;
}

// A result with one value for each row, or for each of its blocks. The kernels count rows by
// samples, groups and positions; in results the groups come after the positions.
void* PlaceOfRows(const Call& call, Results& results, std::int64_t spatial, const char* argument,
                  Tensor& out, std::int64_t blocks, std::int32_t dtype) {
  std::int64_t sizes[kMaxResultDims];
  const std::int64_t dims = RowSizes(call, blocks, sizes);
  if (call.spec.rows != NORM_ROWS_POSITION || call.spec.groups == 1 || spatial == 1) {
    return results.Place(argument, out, sizes, dims, dtype, Order());
  }
  const std::int64_t samples_dims = call.form == Form::kAxes ? call.axis : 1;
  const std::int64_t groups_dim = dims - (blocks > 0 ? 2 : 1);
  return results.PlaceMoved(argument, out, sizes, dims, dtype, samples_dims, groups_dim);
}

// The results of rows without elements: PyTorch's mean of 0 and NaN, and the scale of zeros.
void FillRowResults(const Call& call) {
  const auto fill = [](const Tensor& out, float value) {
    if (!out || out.elements() == 0) return;
    TensorHandle handle = nullptr;
    CheckTorch(Torch().empty_strided(0, nullptr, nullptr, TorchDTypes().float32,
                                     Torch().device_type_cpu(), -1, &handle),
               "empty_strided");
    const Tensor element(handle);
    *static_cast<float*>(element.data()) = value;
    CheckTorch(Torch().copy(out.handle(), handle, 0), "copy_");
  };
  fill(call.mean, 0);
  fill(call.rstd, std::numeric_limits<float>::quiet_NaN());
  fill(call.scales, std::numeric_limits<float>::min());
}

void PlaceRowResults(Call& call, Results& results, norm_tensors& tensors) {
  const DTypes& dtypes = TorchDTypes();
  const std::int32_t dtype = call.x.dtype() == dtypes.float64 ? dtypes.float64 : dtypes.float32;
  const auto place = [&](const char* argument, Tensor& out, std::int64_t blocks,
                         std::int32_t of_dtype) {
    return PlaceOfRows(call, results, tensors.spatial, argument, out, blocks, of_dtype);
  };
  if (call.statistics_out) {
    if (call.spec.statistics == NORM_MEAN_VARIANCE) {
      tensors.mean_out = place("mean", call.mean, 0, dtype);
    }
    tensors.rstd_out = place("rstd", call.rstd, 0, dtype);
  }
  if (call.spec.quantization != 0 && call.spec.quantization_scale != NORM_SCALE_STATIC) {
    const std::int64_t row = call.spec.channels / std::max<std::int64_t>(call.spec.groups, 1) *
                             (call.spec.rows == NORM_ROWS_GROUP ? tensors.spatial : 1);
    const std::int64_t blocks = call.spec.quantization_scale == NORM_SCALE_BLOCK
                                    ? (row + kQuantizationBlock - 1) / kQuantizationBlock
                                    : 0;
    tensors.scale_out = static_cast<float*>(place("scales", call.scales, blocks, dtypes.float32));
  }
}

}  // namespace

void Run(Call& call) {
  CheckTensors(call.name, call.tensors());
  if (call.out_variant) CheckResultsApart(call);
  CheckX(call);
  const Geometry geometry = Divide(call);
  CheckStyleBank(call);
  const Order& order = geometry.order;
  if (geometry.x_pitch == 0) PutInOrder(call.x, order);
  norm_spec& spec = call.spec;
  spec.residual = static_cast<bool>(call.residual);
  spec.gate = static_cast<bool>(call.gate);
  spec.scale = static_cast<bool>(call.scale);
  spec.shift = static_cast<bool>(call.shift);

  norm_tensors tensors{};
  tensors.samples = geometry.samples;
  tensors.spatial = geometry.spatial;
  std::copy_n(geometry.spatial_runs, 4, tensors.spatial_runs);
  tensors.x = call.x.data();
  tensors.x_pitch = tensors.y_pitch = geometry.x_pitch;
  tensors.residual = Alike(call, "residual", call.residual, order);
  tensors.other = Alike(call, "other", call.other, order);
  tensors.gate = PerSample(call, "gate", call.gate, geometry.samples, spec.channels);
  tensors.scale = PerSample(call, "scale", call.scale, geometry.samples, spec.channels);
  tensors.shift = PerSample(call, "shift", call.shift, geometry.samples, spec.channels);
  SetStyle(call, order, tensors);
  const norm_params params = Params(call);

  Results results(call);
  const Tensor& x = call.x;
  tensors.y = results.PlaceY(OutputDType(call), order, &tensors.y_pitch);
  if (spec.residual_out != 0) {
    tensors.residual_out =
        results.Place("residual_out", call.residual_out, x.sizes(), x.dims(), x.dtype(), order);
  }
  PlaceRowResults(call, results, tensors);
  if (x.elements() == 0) return FillRowResults(call);
  Normalize(call.name, call.x, spec, params, tensors);
  results.Finish();
}

}  // namespace normd::torch_ops
