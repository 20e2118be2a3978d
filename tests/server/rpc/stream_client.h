// NormalizeStream calls for tests: whole ones, and one step by step.

#ifndef NORMD_TESTS_SERVER_RPC_STREAM_CLIENT_H_
#define NORMD_TESTS_SERVER_RPC_STREAM_CLIENT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "grpcpp/grpcpp.h"
#include "normd/v1/norm_service.grpc.pb.h"

namespace normd::testing {

// Each Send and Read blocks until it is done. Cancelled on destruction, unless it has ended.
class StreamClient {
 public:
  explicit StreamClient(v1::NormService::Stub& stub,
                        const std::function<void(grpc::ClientContext&)>& configure = {});
  ~StreamClient();

  // False when the stream has ended.
  bool Send(const v1::NormalizeStreamRequest& message) { return stream_->Write(message); }
  bool SendHeader(const v1::NormalizeRequest& request);  // Without its data.
  bool SendChunk(absl::string_view bytes);
  void HalfClose() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }
  // Nullopt when the stream has ended.
  std::optional<v1::NormalizeStreamResponse> Read();
  // Reads what is left.
  grpc::Status Finish();

  const grpc::ClientContext& context() const { return context_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NormalizeStreamRequest, v1::NormalizeStreamResponse>>
      stream_;
  std::optional<grpc::Status> status_;
};

struct StreamResult {
  grpc::Status status;
  std::optional<v1::NormalizeStreamHeader> header;
  std::string data;
  std::optional<v1::NormalizeStreamTrailer> trailer;
};

// The inputs' bytes as a stream carries them: of several, which are matrices, a row of each in
// turn.
std::string StreamBytes(const v1::NormalizeRequest& request);

// A whole call, its bytes cut into chunks of the sizes that `next_chunk` gives.
StreamResult NormalizeInChunks(v1::NormService::Stub& stub, const v1::NormalizeRequest& request,
                               const std::function<std::size_t()>& next_chunk);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_STREAM_CLIENT_H_
