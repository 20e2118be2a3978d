#include "client/response.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "wire/data_type.h"
#include "wire/grpc_slices.h"
#include "wire/normalize_response.h"

namespace normd::client {
namespace {

absl::Status NotAResponse(absl::string_view why) {
  return absl::InternalError(absl::StrCat("the server's answer is not a NormalizeResponse: ", why));
}

// The output, once its type, shape and bytes agree with each other.
absl::StatusOr<OutputTensor> TakeOutput(std::size_t index, ReceivedTensor& received) {
  const DataTypeNames* type =
      FindDataType(&DataTypeNames::protocol, static_cast<int>(received.dtype));
  if (type == nullptr) {
    return absl::InternalError(absl::StrCat("outputs[", index, "].dtype: unknown value ",
                                            static_cast<int>(received.dtype)));
  }
  absl::StatusOr<Shape> shape = Shape::Create(received.shape);
  if (!shape.ok()) return absl::InternalError(shape.status().message());
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(type->dtype, *shape);
  if (!bytes.ok() || *bytes != received.data_bytes) {
    return absl::InternalError(absl::StrCat("the server's answer has ", received.data_bytes,
                                            " bytes of data for ", type->name, " ",
                                            shape->ToString()));
  }
  return OutputTensor({std::move(received.name), type->dtype, *std::move(shape)},
                      std::move(received.data), received.data_bytes);
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

absl::StatusOr<NormalizeResponse> NormalizeResponse::Decode(const grpc::ByteBuffer& message) {
  NormalizeResponse response;
  if (!message.Dump(&response.slices_).ok()) return NotAResponse("it cannot be decompressed");
  absl::StatusOr<NormalizeResponseView> view = DecodeNormalizeResponse(ViewsOf(response.slices_));
  if (!view.ok()) return NotAResponse(view.status().message());
  if (view->outputs.empty()) {
    return absl::InternalError("the server's answer has 0 outputs, wanted 1 or more");
  }
  for (std::size_t i = 0; i < view->outputs.size(); ++i) {
    absl::StatusOr<OutputTensor> output = TakeOutput(i, view->outputs[i]);
    if (!output.ok()) return output.status();
    for (const OutputTensor& other : response.outputs_) {
      if (other.name() != output->name()) continue;
      return absl::InternalError(absl::StrCat("the server's answer has ", view->outputs.size(),
                                              " outputs, wanted 1 named \"", output->name(), "\""));
    }
    response.outputs_.push_back(*std::move(output));
  }
  response.model_ = std::move(view->model);
  response.version_ = view->version;
  response.stages_ = std::move(view->stages);
  response.batch_ = std::move(view->batch);
  return response;
}

std::size_t NormalizeResponse::size_bytes() const {
  std::size_t bytes = 0;
  for (const OutputTensor& output : outputs_) bytes += output.size_bytes();
  return bytes;
}

}  // namespace normd::client
