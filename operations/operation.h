// What a model computes, as the rest of the server and `--verify` know it. A function of makers.h
// makes each operation, registered in operations.cc; nobody else asks which one a model has.

#ifndef NORMD_OPERATIONS_OPERATION_H_
#define NORMD_OPERATIONS_OPERATION_H_

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
#include "kernels/types.h"
#include "normd/v1/model_config.pb.h"
#include "operations/geometry.h"

namespace normd::norm {
enum class Precision : std::uint8_t;  // kernels/linear_norm.h
}  // namespace normd::norm

namespace normd {

struct KernelProgram;  // operations/kernel_program.h

// The most channels, or features, of an operation.
inline constexpr std::int64_t kMaxChannels = std::int64_t{1} << 31;

// A parameter that an operation takes from the file.
struct ExpectedParameter {
  const char* name;  // PyTorch's.
  // False: of the parameters that are not required one suffices, as with a module's bias=False.
  bool required;
  Shape shape;  // Without dimensions: one number, which the file may also have as [1].
};

struct ParameterRules {
  std::vector<ExpectedParameter> expected;
  // The names of parameters that PyTorch's module for the operation could have. One that the file
  // has and the operation does not expect is an error.
  absl::Span<const absl::string_view> torch_names;
  // The shape of a norm's parameters. Another tensor of this shape in the file is suspicious.
  Shape norm_shape;
  // False: the operation's norm has no parameters, so a norm's parameters in the file belong to
  // another module.
  bool norm_has_parameters = true;
};

// The values of the expected parameters that the file has, by ExpectedParameter::name; in host
// memory.
using BoundParameters = std::map<std::string, norm::ParamVector, std::less<>>;
// Absent when the file has none of this name.
norm::ParamVector FindParameter(const BoundParameters& parameters, absl::string_view name);

// A tensor that every request sends or receives, or, with `on_request`, may ask for.
struct TensorSignature {
  absl::string_view name;  // Static storage.
  // The possible shapes. The dimensions at kAnyDimensions, and at kAnySize in the same place, are
  // the same in every tensor of a request. The first entry counts samples: a size there may be 0,
  // elsewhere it is at least 1.
  ShapePattern shape;
  // The type; absent: the request's, that of its first input.
  std::optional<norm::DType> dtype = std::nullopt;
  // The type in a request of float64; absent: `dtype`.
  std::optional<norm::DType> dtype_of_float64 = std::nullopt;
  bool on_request = false;  // An output that is returned only to requests that name it.
  std::int64_t values = 0;  // For an int64 input: its elements are at least 0 and less than this.
};
// The tensor's type in a request of `request`.
norm::DType DTypeOf(const TensorSignature& tensor, norm::DType request);

// Other lists of tensors (Geometry, Request, Completion) have the same order.
struct Signature {
  std::vector<TensorSignature> inputs;
  std::vector<TensorSignature> outputs;
};

// A request's options beside its tensors, as sent: values may be unknown.
struct AskedOptions {
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;
};

// The options in the lanes' form. They may differ within a batch.
struct RequestOptions {
  norm::Precision precision{};  // kFloat32.
};

// Immutable, and so thread-safe.
class Operation {
 public:
  virtual ~Operation() = default;

  // Constant. It describes the tensors of Check and Outputs.
  virtual const Signature& signature() const = 0;

  virtual const ParameterRules& parameters() const = 0;
  // Whether it normalizes by channels, and so has a layout.
  virtual bool has_channels() const = 0;

  // Whether the first input may have this type. Requests of one batch have the same type.
  virtual bool TakesDType(norm::DType dtype) const = 0;
  // The same as text, for errors: "FLOAT32 or FLOAT16".
  virtual std::string DTypesText() const = 0;

  // Divides input tensors, one for each of the signature's. Outputs on request have no bytes. The
  // operation must take the first one's type. InvalidArgument names the field, what came and what
  // was wanted. Zero samples are allowed; any other dimension must be at least 1. All inputs'
  // bytes, and all outputs', fit 63 bits.
  virtual absl::StatusOr<Geometry> Check(absl::Span<const TensorType> inputs) const = 0;
  // The types of the outputs, including those on request, for inputs that Check accepts.
  virtual absl::InlinedVector<TensorType, kInlinedOutputs> Outputs(
      absl::Span<const TensorType> inputs) const = 0;

  // Whether y can be quantized with such scales.
  virtual bool Quantizes(v1::QuantizationScales /* scales */) const { return false; }

  virtual CutRule cut() const = 0;
  // Whether a small request is so cheap that the thread which received it may compute it.
  virtual bool runs_inline() const = 0;

  // The options of a request. InvalidArgument, naming the field, for a value that is unknown or
  // that this operation has no use for. `model` is for the message. By default an operation has no
  // options.
  virtual absl::StatusOr<RequestOptions> CheckOptions(const AskedOptions& asked,
                                                      absl::string_view model) const;

  // The computation with these parameters.
  virtual KernelProgram MakeProgram(const BoundParameters& parameters) const = 0;
};

// The kernels' precision; kFloat32 for PRECISION_UNSPECIFIED. InvalidArgument: "precision: ...".
absl::StatusOr<norm::Precision> ToPrecision(v1::Precision precision);

}  // namespace normd

#endif  // NORMD_OPERATIONS_OPERATION_H_
