// A client's request for one or a few tensors, and its message, which refers to the tensors in
// place.

#ifndef NORMD_CLIENT_REQUEST_H_
#define NORMD_CLIENT_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/tensor/tensor.h"
#include "grpcpp/support/byte_buffer.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// A call's time limit; none by default.
inline constexpr Duration kNoTimeout = Duration::max();

// The service that a request is sent to. Both compute the same.
enum class Protocol {
  kNormd,          // normd.v1: Normalize
  kOpenInference,  // inference.GRPCInferenceService: ModelInfer
};

// The fields of a request beside its tensors.
struct CallFields {
  std::string model;
  std::int64_t version = 0;  // 0: the highest loaded version.
  // The names of the wanted outputs; none: the model's default ones.
  std::vector<std::string> outputs;
  // Replaces the model's. Only normd.v1 has it.
  v1::Precision precision = v1::PRECISION_UNSPECIFIED;
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;  // Among requests of this model; normal.
  // The time limit for waiting on the server until the request, or each run of a stream's rows, is
  // computed; after it DEADLINE_EXCEEDED, naming `queue_timeout_ns`. 0 or less: only `timeout`.
  // Whole microseconds in the Open Inference Protocol, rounded up.
  Duration queue_timeout{0};
  Duration timeout = kNoTimeout;  // For the whole call.
};

struct NormalizeRequest : CallFields {
  Protocol protocol = Protocol::kNormd;
  // By the model's names, in any order; a model's only input needs no name.
  std::vector<NamedTensor> inputs;
  // Places of outputs outside the response. Each is one of `outputs`, or is wanted in addition. Its
  // bytes are the result once the response has come, and undefined after an error.
  std::vector<SharedOutput> shared_outputs;
};

// A request's tensors in shared memory.
struct SharedTensors {
  std::vector<std::shared_ptr<const void>> inputs;  // Their owners.
  std::vector<SharedOutput> outputs;
};

// An encoded request, which can be sent many times. Immutable. Copies share it; they hold the
// inputs' owners until gRPC has released them, and those of shared memory until the call has ended.
class EncodedRequest {
 public:
  // InvalidArgument when the message would exceed 2 GiB, and for a precision in the Open Inference
  // Protocol.
  static absl::StatusOr<EncodedRequest> Create(const NormalizeRequest& request);

  Protocol protocol() const { return protocol_; }
  const grpc::ByteBuffer& message() const { return message_; }
  // Null if there are none.
  const std::shared_ptr<const SharedTensors>& shared() const { return shared_; }

 private:
  EncodedRequest(Protocol protocol, const grpc::ByteBuffer& message,
                 std::shared_ptr<const SharedTensors> shared)
      : protocol_(protocol), message_(message), shared_(std::move(shared)) {}

  Protocol protocol_;
  grpc::ByteBuffer message_;
  std::shared_ptr<const SharedTensors> shared_;  // shared: by copies, calls and their responses.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_REQUEST_H_
