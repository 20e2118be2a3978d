#include "client/response.h"

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "wire/data_type.h"
#include "wire/grpc_slices.h"
#include "wire/infer_response.h"
#include "wire/normalize_response.h"

namespace normd::client {
namespace {

absl::Status NotAResponse(absl::string_view wanted, absl::string_view why) {
  return absl::InternalError(absl::StrCat("the server's response is not a ", wanted, ": ", why));
}

// The part of shared memory that an output of ModelInfer names; nullopt: none. A part with
// parameters of wrong types counts as none, and is not found.
std::optional<ReceivedSharedPart> PartOf(const std::unique_ptr<ReceivedSharedMemory>& shared) {
  if (shared == nullptr) return std::nullopt;
  return ReceivedSharedPart{std::move(shared->region.text), shared->offset.number,
                            shared->byte_size.number};
}

// The output, of a known type, after checking that the type, the shape and the bytes agree.
template <typename Received>
absl::StatusOr<OutputTensor> TakeOutput(const DataTypeNames& type, Received& received) {
  absl::StatusOr<Shape> shape = Shape::Create(received.shape);
  if (!shape.ok()) return absl::InternalError(shape.status().message());
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(type.dtype, *shape);
  if (!bytes.ok() || *bytes != received.data_bytes) {
    return absl::InternalError(absl::StrCat("the server's response has ", received.data_bytes,
                                            " bytes of data for ", type.name, " ",
                                            shape->ToString()));
  }
  return OutputTensor({std::move(received.name), type.dtype, *std::move(shape)},
                      std::move(received.data), received.data_bytes);
}

template <typename Value>
absl::Status UnknownType(std::size_t index, absl::string_view field, const Value& value) {
  return absl::InternalError(
      absl::StrCat("outputs[", index, "].", field, ": unknown value ", value));
}

}  // namespace

void OutputTensor::CopyTo(absl::Span<std::byte> out) const {
  std::size_t at = 0;
  for (const ConstBytes piece : pieces_) {
    std::memcpy(out.data() + at, piece.data(), piece.size());
    at += piece.size();
  }
}

absl::StatusOr<Tensor> OutputTensor::ToTensor() const {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(spec_.dtype, spec_.shape);
  if (tensor.ok()) CopyTo(tensor->mutable_bytes());
  return tensor;
}

absl::StatusOr<NormalizeResponse> NormalizeResponse::Decode(
    const grpc::ByteBuffer& message, Protocol protocol,
    std::shared_ptr<const SharedTensors> shared) {
  const bool normd = protocol == Protocol::kNormd;
  NormalizeResponse response;
  response.shared_ = std::move(shared);
  if (!message.Dump(&response.slices_).ok()) {
    return NotAResponse(normd ? "NormalizeResponse" : "ModelInferResponse",
                        "it cannot be decompressed");
  }
  absl::Status status = normd ? response.DecodeFromNormd() : response.DecodeFromOpenInference();
  if (!status.ok()) return status;
  if (response.outputs_.empty()) {
    return absl::InternalError("the server's response has 0 outputs, wanted 1 or more");
  }
  return response;
}

absl::StatusOr<ConstBytes> NormalizeResponse::Find(const ReceivedSharedPart& part) const {
  if (shared_ != nullptr) {
    for (const SharedOutput& output : shared_->outputs) {
      if (output.region != part.region || output.region_offset != part.offset) continue;
      if (part.byte_size < 0 || part.byte_size > static_cast<std::int64_t>(output.bytes.size())) {
        break;
      }
      return output.bytes.first(static_cast<std::size_t>(part.byte_size));
    }
  }
  return absl::InternalError(absl::StrCat("the server's response has ", part.byte_size,
                                          " bytes of shared memory, from ", part.offset,
                                          " on, that the request does not name"));
}

template <typename Received>
absl::Status NormalizeResponse::TakePart(const std::optional<ReceivedSharedPart>& part,
                                         Received& received) const {
  if (!part.has_value()) return absl::OkStatus();
  const absl::StatusOr<ConstBytes> bytes = Find(*part);
  if (!bytes.ok()) return bytes.status();
  received.data.assign(1, *bytes);
  received.data_bytes = part->byte_size;
  return absl::OkStatus();
}

absl::Status NormalizeResponse::DecodeFromNormd() {
  absl::StatusOr<NormalizeResponseView> view = DecodeNormalizeResponse(ViewsOf(slices_));
  if (!view.ok()) return NotAResponse("NormalizeResponse", view.status().message());
  for (std::size_t i = 0; i < view->outputs.size(); ++i) {
    ReceivedTensor& received = view->outputs[i];
    const auto dtype = static_cast<int>(received.dtype);
    const DataTypeNames* type = FindDataType(&DataTypeNames::protocol, dtype);
    if (type == nullptr) return UnknownType(i, "dtype", dtype);
    absl::Status status = TakePart(received.shared_memory, received);
    if (status.ok()) status = Add(TakeOutput(*type, received), view->outputs.size());
    if (!status.ok()) return status;
  }
  model_ = std::move(view->model);
  version_ = view->version;
  stages_ = std::move(view->stages);
  batch_ = std::move(view->batch);
  return absl::OkStatus();
}

absl::Status NormalizeResponse::DecodeFromOpenInference() {
  absl::StatusOr<InferResponseView> view = DecodeInferResponse(ViewsOf(slices_));
  if (!view.ok()) return NotAResponse("ModelInferResponse", view.status().message());
  for (std::size_t i = 0; i < view->outputs.size(); ++i) {
    ReceivedInferTensor& received = view->outputs[i];
    const DataTypeNames* type = FindDataType(&DataTypeNames::inference, received.datatype);
    if (type == nullptr) return UnknownType(i, "datatype", Printable(received.datatype, 32));
    if (received.owned != nullptr) copies_.push_back(std::move(received.owned));
    absl::Status status = TakePart(PartOf(received.shared_memory), received);
    if (status.ok()) status = Add(TakeOutput(*type, received), view->outputs.size());
    if (!status.ok()) return status;
  }
  model_ = std::move(view->model);
  if (!view->version.empty() && !absl::SimpleAtoi(view->version, &version_)) {
    return NotAResponse(
        "ModelInferResponse",
        absl::StrCat("model_version: \"", Printable(view->version, 32), "\", wanted a number"));
  }
  return absl::OkStatus();
}

absl::Status NormalizeResponse::Add(absl::StatusOr<OutputTensor> output, std::size_t count) {
  if (!output.ok()) return output.status();
  for (const OutputTensor& other : outputs_) {
    if (other.name() != output->name()) continue;
    return absl::InternalError(absl::StrCat("the server's response has ", count,
                                            " outputs, wanted 1 named \"", output->name(), "\""));
  }
  outputs_.push_back(*std::move(output));
  return absl::OkStatus();
}

std::size_t NormalizeResponse::size_bytes() const {
  std::size_t bytes = 0;
  for (const OutputTensor& output : outputs_) bytes += output.size_bytes();
  return bytes;
}

}  // namespace normd::client
