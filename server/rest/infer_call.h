// One request for inference over HTTP.

#ifndef NORMD_SERVER_REST_INFER_CALL_H_
#define NORMD_SERVER_REST_INFER_CALL_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/accept/exchange.h"
#include "server/rest/rest_call.h"
#include "wire/infer_json_request.h"

namespace normd {

// Long JSON is read and written by RestEnvironment::later.
class InferCall final : public RestCall {
 public:
  InferCall(RestEnvironment& environment, const RestArrival& arrival, Reply reply);

  std::int64_t max_body_bytes() const override;
  absl::Status Hold(std::int64_t bytes) override {
    absl::Status status = exchange_.Hold(bytes);
    // What is refused is not read, so it holds nothing while its client sends on.
    if (!status.ok()) exchange_.LetHeldGo();
    return status;
  }
  void Run(RequestBody body) override;
  void Refuse(const absl::Status& status) override { Finish(OfModel(status)); }
  void Leave() override;
  void Record() override { context_.RecordAndLog(stages_, batch_); }

 private:
  void Begin();
  // The status of a request that is not read, which counts with the model of its path. To those who
  // may not use the model it tells that alone.
  absl::Status OfModel(const absl::Status& status);
  absl::Status Accept();
  absl::Status Inflate();
  absl::StatusOr<RequestDescription> Decode();
  bool IsBinary(absl::string_view output) const;
  void Complete(Completion&& completion);
  void End();
  void Compress();
  absl::StatusOr<std::int64_t> Encode(ResponseDescription&& response);

  Exchange exchange_;
  RequestBody body_;
  // The outputs that the request names, and whether each is wanted as a binary tensor.
  absl::InlinedVector<std::pair<std::string, bool>, 1> wanted_;
  bool all_binary_ = false;
  Completion completion_;
  // 0 before the queue may have it. Relaxed: Leave that sees 0 only saves no work.
  std::atomic<std::uint64_t> pushed_{0};
  // For the request log, as in NormalizeCall.
  StageTimes stages_;
  BatchInfo batch_;
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_INFER_CALL_H_
