#include "server/accept/inputs.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "operations/match_inputs.h"
#include "wire/data_type.h"

namespace normd {
namespace {

// With several inputs the message says which one it is about.
absl::Status For(absl::Span<const TensorSignature> wanted, std::size_t k,
                 const absl::Status& status) {
  if (wanted.size() == 1) return status;
  return absl::Status(status.code(),
                      absl::StrCat("input \"", wanted[k].name, "\": ", status.message()));
}

// The types that the model takes for an input: "FP32, FP16 or BF16".
std::string WantedTypes(const Model& model, const TensorSignature& wanted,
                        std::string (*name_of)(norm::DType)) {
  std::vector<std::string> names;
  for (const DataTypeNames& type : kDataTypes) {
    const bool takes =
        wanted.dtype.has_value() ? type.dtype == *wanted.dtype : model.TakesDType(type.dtype);
    if (takes) names.push_back(name_of(type.dtype));
  }
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : absl::StrCat(absl::StrJoin(names, ", "), " or ", last);
}

absl::StatusOr<TensorType> TypeOf(const Model& model, const TensorSignature& wanted,
                                  const InputDescription& tensor) {
  if (!tensor.dtype.ok()) {
    if (tensor.name_of == nullptr) return tensor.dtype.status();
    return absl::InvalidArgumentError(absl::StrCat(tensor.dtype.status().message(), ", wanted ",
                                                   WantedTypes(model, wanted, tensor.name_of)));
  }
  absl::StatusOr<Shape> shape = Shape::Create(tensor.shape);
  if (!shape.ok()) return shape.status();
  return TensorType{*tensor.dtype, *std::move(shape)};
}

absl::Status CheckBytes(const InputDescription& tensor, const TensorType& type,
                        std::int64_t wanted) {
  if (tensor.region.has_value()) {
    if (tensor.region->bytes == wanted && tensor.data_bytes == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        tensor.data_bytes != 0
            ? absl::StrCat(tensor.data_field, ": ", tensor.data_bytes,
                           " bytes beside shared memory, wanted none")
            : absl::StrCat("shared_memory: byte_size ", tensor.region->bytes, ", wanted ", wanted,
                           " for shape ", type.shape.ToString(), " of ", norm::Name(type.dtype)));
  }
  if (tensor.data_bytes == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data: ", tensor.data_bytes, " bytes, wanted ",
                                                 wanted, " for shape ", type.shape.ToString(),
                                                 " of ", norm::Name(type.dtype)));
}

// The memory for the i-th output that the request names.
absl::Status CheckMemory(std::size_t i, MutableBytes bytes, const TensorSize& wanted) {
  if (static_cast<std::int64_t>(bytes.size()) != wanted.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("outputs[", i, "]: memory of ", bytes.size(),
                                                   " bytes, wanted ", wanted.bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % norm::SizeOf(wanted.dtype) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("outputs[", i, "]: memory that is not aligned to ", norm::Name(wanted.dtype)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string CheckedInputs::WantedData() const {
  std::string wanted = absl::StrCat(geometry.InputBytes(), " for shape ");
  for (std::size_t i = 0; i < types.size(); ++i) {
    absl::StrAppend(&wanted, i == 0 ? "" : " and ", types[i].shape.ToString());
  }
  return absl::StrCat(wanted, " of ", norm::Name(dtype));
}

absl::Status CheckInputs(const Model& model, absl::Span<const InputDescription> tensors,
                         CheckedInputs& checked) {
  checked = CheckedInputs();  // An earlier, refused description may have left some.
  const absl::Span<const TensorSignature> wanted = model.inputs();
  const auto name = [&](std::size_t i) -> absl::string_view { return tensors[i].name; };
  absl::Status matched = MatchInputs(wanted, tensors.size(), name, checked.places);
  if (!matched.ok()) return matched;
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    absl::StatusOr<TensorType> type = TypeOf(model, wanted[k], tensors[checked.places[k]]);
    if (!type.ok()) return For(wanted, k, type.status());
    checked.types.push_back(*std::move(type));
  }
  absl::StatusOr<Geometry> geometry = model.Check(checked.types);
  if (!geometry.ok()) return geometry.status();
  checked.geometry = *std::move(geometry);
  checked.dtype = checked.types.front().dtype;
  checked.outputs = model.Outputs(checked.types);
  return absl::OkStatus();
}

absl::Status CheckSize(const HostBytes& bytes, std::int64_t max_bytes) {
  if (std::max(bytes.inputs, bytes.outputs) <= max_bytes) return absl::OkStatus();
  const bool of_inputs = bytes.inputs > max_bytes;
  return absl::InvalidArgumentError(
      absl::StrCat(of_inputs ? "inputs: " : "outputs: ", of_inputs ? bytes.inputs : bytes.outputs,
                   " bytes, wanted at most ", max_bytes, " in one request"));
}

absl::Status CheckData(const Model& model, absl::Span<const InputDescription> tensors,
                       const CheckedInputs& inputs, std::int64_t max_bytes) {
  const Geometry& geometry = inputs.geometry;
  const absl::Span<const TensorSignature> wanted = model.inputs();
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    const absl::Status status =
        CheckBytes(tensors[inputs.places[k]], inputs.types[k], geometry.inputs[k].bytes);
    if (!status.ok()) return For(wanted, k, status);
  }
  absl::Status fits = CheckSize({geometry.InputBytes(), geometry.OutputBytes()}, max_bytes);
  if (!fits.ok()) return fits;
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    const InputMemory& memory = tensors[inputs.places[k]].data;
    // The device's kernels check indexes that the host cannot read.
    if (wanted[k].values == 0 || !memory.place.OnHost()) continue;
    const absl::Status status = CheckIndexes(wanted[k], memory.views, 0);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckIndexes(const TensorSignature& input, absl::Span<const ConstBytes> views,
                          std::int64_t first) {
  std::int64_t value = 0;
  std::size_t filled = 0;  // Bytes copied so far.
  std::int64_t at = first;
  for (ConstBytes view : views) {
    while (!view.empty()) {
      const std::size_t part = std::min(sizeof(value) - filled, view.size());
      std::memcpy(reinterpret_cast<std::byte*>(&value) + filled, view.data(), part);
      view.remove_prefix(part);
      filled += part;
      if (filled < sizeof(value)) continue;
      filled = 0;
      if (value < 0 || value >= input.values) {
        return absl::InvalidArgumentError(absl::StrCat("input \"", input.name, "\": data[", at,
                                                       "]: ", value, ", wanted 0 to ",
                                                       input.values - 1));
      }
      ++at;
    }
  }
  return absl::OkStatus();
}

namespace {

// For each output of the model, its place among those that the request names; -1 if it names it
// not.
using Places = absl::InlinedVector<int, kInlinedOutputs>;

// The bytes of an output; Operation::Check has checked that they fit.
std::int64_t BytesOf(const TensorType& output) {
  return output.shape.elements() * static_cast<std::int64_t>(norm::SizeOf(output.dtype));
}

absl::StatusOr<Places> MatchOutputs(absl::Span<const TensorSignature> known,
                                    absl::Span<const WantedOutput> wanted) {
  Places places(known.size(), -1);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::string& name = wanted[i].name;
    // An only output needs no name; those on request have one.
    const bool only = name.empty() && (known.size() == 1 || known[1].on_request);
    std::size_t k = 0;
    while (!only && k < known.size() && known[k].name != name) ++k;
    if (k == known.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "outputs[", i, "].name: \"", Printable(name, 32), "\", wanted ", QuotedNames(known)));
    }
    if (places[k] >= 0) {
      return absl::InvalidArgumentError(absl::StrCat("outputs[", i, "].name: \"", known[k].name,
                                                     "\" twice, wanted each name once"));
    }
    places[k] = static_cast<int>(i);
  }
  return places;
}

}  // namespace

absl::StatusOr<PlacedOutputs> PlaceOutputs(const Model& model, const RequestDescription& request,
                                           CheckedInputs& inputs) {
  const absl::Span<const TensorSignature> known = model.outputs();
  const absl::StatusOr<Places> places = MatchOutputs(known, request.outputs);
  if (!places.ok()) return places.status();
  const bool only_named = request.only_named_outputs && !request.outputs.empty();
  PlacedOutputs placed;
  placed.by_name = only_named;
  placed.places.resize(request.outputs.size());
  for (std::size_t k = 0; k < known.size(); ++k) {
    const bool is_named = (*places)[k] >= 0;
    if (!is_named && (only_named || known[k].on_request)) {
      placed.named.resize(known.size(), true);
      placed.named[k] = false;
    }
    if (!is_named) continue;
    placed.places[static_cast<std::size_t>((*places)[k])] = k;
    if (known[k].on_request) inputs.geometry.outputs[k].bytes = BytesOf(inputs.outputs[k]);
    const auto i = static_cast<std::size_t>((*places)[k]);
    const OutputMemory& memory = request.outputs[i].memory;
    if (memory.bytes.data() == nullptr) continue;
    absl::Status status = CheckMemory(i, memory.bytes, inputs.geometry.outputs[k]);
    if (!status.ok()) return status;
    placed.memory.resize(known.size());
    placed.memory[k] = memory;
  }
  return placed;
}

absl::Status CheckNoData(const RequestDescription& request) {
  const auto in_region = [](const char* list, std::size_t i) {
    return absl::InvalidArgumentError(absl::StrCat(
        list, "[", i, "].shared_memory: of a stream's tensor, wanted its data in chunks"));
  };
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    if (request.outputs[i].region.has_value()) return in_region("outputs", i);
  }
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const InputDescription& tensor = request.inputs[i];
    if (tensor.region.has_value()) return in_region("inputs", i);
    if (tensor.data_bytes == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", tensor.data_bytes, " bytes in the header, wanted them in chunks"));
  }
  return absl::OkStatus();
}

}  // namespace normd
