#include "tests/server/rpc/judged_outputs.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "client/verify/compare.h"

namespace normd::testing {

client::TensorSpec SpecOf(const v1::Tensor& tensor) {
  return {tensor.name(), static_cast<norm::DType>(tensor.dtype()),
          Shape::Create(tensor.shape()).value()};
}

client::Tensor CopyOf(const v1::Tensor& tensor) {
  const client::TensorSpec spec = SpecOf(tensor);
  client::Tensor copy = client::Tensor::Allocate(spec.dtype, spec.shape).value();
  assert(copy.bytes().size() == tensor.data().size());
  std::copy_n(tensor.data().data(), std::min(copy.bytes().size(), tensor.data().size()),
              reinterpret_cast<char*>(copy.mutable_bytes().data()));
  return copy;
}

absl::StatusOr<std::vector<client::ReferenceOutput>> JudgeOutputs(
    TestServer& server, const v1::NormalizeRequest& request,
    const v1::NormalizeResponse& response) {
  const auto reference = client::ReferenceModel::Load(server.repository(), request.model(), 1);
  if (!reference.ok()) return reference.status();
  std::vector<client::NamedTensor> inputs;
  for (const v1::Tensor& input : request.inputs()) {
    inputs.push_back(CopyOf(input).named(input.name()));
  }
  std::vector<std::string> wanted;
  for (const v1::WantedOutput& output : request.outputs()) wanted.push_back(output.name());
  auto expected = reference->Compute(inputs, wanted);
  if (!expected.ok()) return expected.status();
  std::vector<client::TensorSpec> specs;
  std::vector<client::Tensor> outputs;
  for (const v1::Tensor& output : response.outputs()) {
    specs.push_back(SpecOf(output));
    outputs.push_back(CopyOf(output));
  }
  const auto comparison =
      client::CompareOutputs(client::ReceivedTensors(specs, outputs).tensors(), *expected);
  if (!comparison.ok()) return comparison.status();
  if (comparison->elements == 0) return absl::DataLossError("no element was compared");
  if (!comparison->ok()) return absl::DataLossError(client::Describe(*comparison));
  return expected;
}

}  // namespace normd::testing
