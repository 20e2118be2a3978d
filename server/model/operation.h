// What a model computes, as the rest of the server knows it. Each operation is a pair of files in
// server/model/operations, registered in operations.cc there; nobody else asks which one a model
// has.

#ifndef NORMD_SERVER_MODEL_OPERATION_H_
#define NORMD_SERVER_MODEL_OPERATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/shape_pattern.h"
#include "kernels/linear_norm.h"
#include "kernels/norm.h"
#include "normd/v1/model_config.pb.h"
#include "server/model/geometry.h"
#include "server/model/kernel_program.h"

namespace normd {

// The most channels, or features, of an operation.
inline constexpr std::int64_t kMaxChannels = std::int64_t{1} << 31;

// A parameter that an operation takes from the file.
struct ExpectedParameter {
  const char* name;  // PyTorch's.
  // False: of all that are not required one suffices, as with a module's bias=False.
  bool required;
  Shape shape;
};

struct ParameterRules {
  std::vector<ExpectedParameter> expected;
  // The names of parameters that PyTorch's module for the operation could have. One that the file
  // has and the operation does not expect is an error.
  absl::Span<const absl::string_view> torch_names;
  // The shape of a norm's parameters. Another tensor of this shape in the file is suspect.
  Shape norm_shape;
  // False: the operation's norm has no parameters, so those of a norm beside it belong to another.
  bool norm_has_parameters = true;
};

// The values of the expected parameters that the file has, by ExpectedParameter::name; in host
// memory.
using BoundParameters = std::map<std::string, norm::ParamVector, std::less<>>;
// Absent when the file has none of this name.
norm::ParamVector FindParameter(const BoundParameters& parameters, absl::string_view name);

// A tensor that every request brings or gets; `on_request`, that it may ask for.
struct TensorSignature {
  absl::string_view name;  // Of static storage.
  // The shapes that it may have. What stands for kAnyDimensions, and for kAnySize at the same
  // place, is the same in every tensor of a request. Its first entry counts samples: there a size
  // may be 0, elsewhere it is at least 1.
  ShapePattern shape;
  // Its type; absent: the request's, that of its first input.
  std::optional<norm::DType> dtype = std::nullopt;
  // Its type in a request of float64; absent: `dtype`.
  std::optional<norm::DType> dtype_of_float64 = std::nullopt;
  bool on_request = false;  // An output that only comes to requests that name it.
  std::int64_t values =
      0;  // For an input of int64: its elements are at least 0 and less than this.
};
// Its type in a request of `request`.
norm::DType DTypeOf(const TensorSignature& tensor, norm::DType request);

// Lists of tensors elsewhere (Geometry, Request, Completion) have the order of these.
struct Signature {
  std::vector<TensorSignature> inputs;
  std::vector<TensorSignature> outputs;
};

// What a request asks for beside its tensors, as it was sent: values may be no enumerators.
struct AskedOptions {
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;
};

// The same as lanes take it. Requests of one batch may differ in it.
struct RequestOptions {
  norm::Precision precision = norm::Precision::kFloat32;
};

// Immutable, and so thread-safe.
class Operation {
 public:
  virtual ~Operation() = default;

  // Constant. Check accepts, and Outputs gives, what it says.
  virtual const Signature& signature() const = 0;

  virtual const ParameterRules& parameters() const = 0;
  // Whether it normalizes by channels, and so has a layout.
  virtual bool has_channels() const = 0;

  // Whether the first input may have this type. Requests of one batch have the same.
  virtual bool TakesDType(norm::DType dtype) const = 0;
  // The same in words, for errors: "FLOAT32 or FLOAT16".
  virtual std::string DTypesText() const = 0;

  // How input tensors, one for each of the signature's, divide. Outputs on request have no bytes.
  // The first has a type that the operation takes. InvalidArgument names the field, what came and
  // what was wanted. Zero samples are allowed; any other dimension must be at least 1. All inputs'
  // bytes, and all outputs', fit 63 bits.
  virtual absl::StatusOr<Geometry> Check(absl::Span<const TensorType> inputs) const = 0;
  // The types of the outputs, of those on request too, for inputs that Check accepts.
  virtual absl::InlinedVector<TensorType, kInlinedOutputs> Outputs(
      absl::Span<const TensorType> inputs) const = 0;

  // Whether y can be quantized with such scales.
  virtual bool Quantizes(v1::QuantizationScales /* scales */) const { return false; }

  virtual CutRule cut() const = 0;
  // Whether a small request costs so little that the thread which received it may compute it.
  virtual bool runs_inline() const = 0;

  // The options for a request that asks for `asked`. InvalidArgument, naming the field, for a value
  // that is unknown or that this operation has no use for. `model` is for the message. By default
  // an operation has no use for any.
  virtual absl::StatusOr<RequestOptions> CheckOptions(const AskedOptions& asked,
                                                      absl::string_view model) const;

  // What computes it with these parameters.
  virtual KernelProgram MakeProgram(const BoundParameters& parameters) const = 0;
};

// The kernels' precision; kFloat32 for PRECISION_UNSPECIFIED. InvalidArgument: "precision: ...".
absl::StatusOr<norm::Precision> ToPrecision(v1::Precision precision);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_OPERATION_H_
