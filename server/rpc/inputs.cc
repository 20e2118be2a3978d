#include "server/rpc/inputs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "server/model/linear_norm.h"

namespace normd {
namespace {

std::string Quoted(absl::Span<const absl::string_view> names) {
  return absl::StrJoin(names, " and ", [](std::string* out, absl::string_view name) {
    absl::StrAppend(out, "\"", name, "\"");
  });
}

// The place of `name` among the tensors; `tensors.size()` when it is not there.
absl::StatusOr<std::size_t> PlaceOf(absl::string_view name,
                                    absl::Span<const ReceivedTensor> tensors) {
  std::size_t place = tensors.size();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name != name) continue;
    if (place < tensors.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("inputs[", i, "].name: \"", name, "\" twice, wanted each name once"));
    }
    place = i;
  }
  return place;
}

absl::Status Match(absl::Span<const absl::string_view> names,
                   absl::Span<const ReceivedTensor> tensors,
                   std::array<std::size_t, kMaxInputs>& places) {
  if (names.size() == 1 && tensors.size() == 1 && tensors[0].name.empty()) return absl::OkStatus();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bool known = false;
    for (const absl::string_view name : names) known = known || tensors[i].name == name;
    if (known) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "inputs[", i, "].name: \"", Printable(tensors[i].name, 32), "\", wanted ", Quoted(names)));
  }
  for (std::size_t k = 0; k < names.size(); ++k) {
    const absl::StatusOr<std::size_t> place = PlaceOf(names[k], tensors);
    if (!place.ok()) return place.status();
    if (*place == tensors.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("inputs: \"", names[k], "\" is missing, wanted ", Quoted(names)));
    }
    places[k] = *place;
  }
  return absl::OkStatus();
}

// With several inputs the message says which one it is about.
absl::Status For(absl::Span<const absl::string_view> names, std::size_t k,
                 const absl::Status& status) {
  if (names.size() == 1) return status;
  return absl::Status(status.code(), absl::StrCat("input \"", names[k], "\": ", status.message()));
}

absl::StatusOr<TensorType> TypeOf(const ReceivedTensor& tensor) {
  const absl::StatusOr<norm::DType> dtype = FromProto(tensor.dtype);
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<Shape> shape = Shape::Create(tensor.shape);
  if (!shape.ok()) return shape.status();
  return TensorType{*dtype, *std::move(shape)};
}

absl::Status CheckBytes(const ReceivedTensor& tensor, const TensorType& type, std::int64_t wanted) {
  if (tensor.data_bytes == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data: ", tensor.data_bytes, " bytes, wanted ",
                                                 wanted, " for shape ", type.shape.ToString(),
                                                 " of ", norm::Name(type.dtype)));
}

}  // namespace

absl::StatusOr<CheckedInputs> CheckInputTypes(const Model& model,
                                              absl::Span<const ReceivedTensor> tensors) {
  const absl::Span<const absl::string_view> names = model.input_names();
  CheckedInputs checked;
  if (absl::Status status = Match(names, tensors, checked.places); !status.ok()) return status;
  for (std::size_t k = 0; k < names.size(); ++k) {
    absl::StatusOr<TensorType> type = TypeOf(tensors[checked.places[k]]);
    if (!type.ok()) return For(names, k, type.status());
    checked.types.push_back(*std::move(type));
  }
  const absl::StatusOr<Geometry> geometry = model.Check(checked.types);
  if (!geometry.ok()) return geometry.status();
  checked.geometry = *geometry;
  checked.dtype = checked.types.front().dtype;
  checked.output_shape = model.OutputShape(checked.types.front().shape);
  return checked;
}

absl::StatusOr<CheckedInputs> CheckInputs(const Model& model,
                                          absl::Span<const ReceivedTensor> tensors,
                                          std::int64_t max_bytes) {
  absl::StatusOr<CheckedInputs> checked = CheckInputTypes(model, tensors);
  if (!checked.ok()) return checked;
  const Geometry& geometry = checked->geometry;
  const absl::Span<const absl::string_view> names = model.input_names();
  for (std::size_t k = 0; k < names.size(); ++k) {
    const absl::Status status =
        CheckBytes(tensors[checked->places[k]], checked->types[k], geometry.input_bytes[k]);
    if (!status.ok()) return For(names, k, status);
  }
  if (geometry.LargerBytes() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: ", geometry.LargerBytes(), " bytes, wanted at most ", max_bytes, " in one request"));
  }
  return checked;
}

absl::StatusOr<norm::Precision> CheckPrecision(const Model& model, v1::Precision asked) {
  const norm::LinearNormSpec* layer = model.linear();
  if (asked == v1::PRECISION_UNSPECIFIED) {
    return layer != nullptr ? layer->precision : norm::Precision::kFloat32;
  }
  absl::StatusOr<norm::Precision> precision = ToPrecision(asked);
  if (!precision.ok() || layer != nullptr) return precision;
  return absl::InvalidArgumentError(absl::StrCat("precision: ", v1::Precision_Name(asked),
                                                 ", wanted none: model \"", model.name(),
                                                 "\" has no matrix product"));
}

}  // namespace normd
