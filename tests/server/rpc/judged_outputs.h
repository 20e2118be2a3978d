// Responses of a server judged by the reference models of its repository, and the client's view of
// the protocol's tensors.

#ifndef NORMD_TESTS_SERVER_RPC_JUDGED_OUTPUTS_H_
#define NORMD_TESTS_SERVER_RPC_JUDGED_OUTPUTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/tensor/tensor.h"
#include "client/verify/reference_model.h"
#include "normd/v1/norm_service.pb.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {

client::TensorSpec SpecOf(const v1::Tensor& tensor);
client::Tensor CopyOf(const v1::Tensor& tensor);

// Makes the inputs, of float32, ones of `dtype`.
void ConvertInputs(v1::NormalizeRequest& request, v1::DataType dtype);

// A whole stream carried the outputs of `wanted`, with their names, to the bit.
void ExpectStreamed(const StreamResult& result, const v1::NormalizeResponse& wanted);

// The outputs that the model's reference computes for the request, where the response has the same
// within the reference's bounds; DataLoss with the difference where it has not.
absl::StatusOr<std::vector<client::ReferenceOutput>> JudgeOutputs(
    TestServer& server, const v1::NormalizeRequest& request, const v1::NormalizeResponse& response);
// Fails where they are not within the bounds.
void ExpectRight(TestServer& server, const v1::NormalizeRequest& request,
                 const v1::NormalizeResponse& response);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_JUDGED_OUTPUTS_H_
