#include "tests/server/rpc/judged_outputs.h"
#include "client/tensor/stream_order.h"
#include "kernels/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>
#include <vector>

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

void ConvertInputs(v1::NormalizeRequest& request, v1::DataType dtype) {
  const auto kernel = static_cast<norm::DType>(dtype);
  for (v1::Tensor& input : *request.mutable_inputs()) {
    const auto count = static_cast<std::int64_t>(input.data().size() / sizeof(float));
    std::string data(static_cast<std::size_t>(count) * norm::SizeOf(kernel), '\0');
    for (std::int64_t i = 0; i < count; ++i) {
      norm::StoreElement(kernel, data.data(), i,
                         norm::LoadElement(norm::DType::kFloat32, input.data().data(), i));
    }
    input.set_dtype(dtype);
    input.set_data(std::move(data));
  }
}

void ExpectStreamed(const StreamResult& result, const v1::NormalizeResponse& wanted) {
  ASSERT_TRUE(result.header.has_value() && result.trailer.has_value());
  std::vector<client::TensorSpec> specs;
  for (const v1::Tensor& output : result.header->outputs()) specs.push_back(SpecOf(output));
  ASSERT_EQ(specs.size(), static_cast<std::size_t>(wanted.outputs_size()));
  const auto split = client::SplitStream(
      specs,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(result.data.data()),
                          result.data.size()),
      result.header->samples());
  ASSERT_TRUE(split.ok()) << split.status();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const v1::Tensor& output = wanted.outputs(static_cast<int>(i));
    EXPECT_EQ(specs[i].name, output.name());
    EXPECT_TRUE(split->at(i).bytes() == CopyOf(output).bytes()) << output.name();
  }
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

void ExpectRight(TestServer& server, const v1::NormalizeRequest& request,
                 const v1::NormalizeResponse& response) {
  EXPECT_EQ(JudgeOutputs(server, request, response).status(), absl::OkStatus());
}

}  // namespace normd::testing
