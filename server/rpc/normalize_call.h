// One Normalize call, from the received slices to the answer.
//
// Its life: the handler creates it, calls Start once and returns it to gRPC. From a successful Push
// on, the request's `done` may run on any thread, even before the handler has returned; whoever
// ends the call does so through End, and there is exactly one such place for each outcome:
//
//   Start refuses (malformed, unknown model, budgets, full queue)   -> End in Start
//   Push accepted                                                   -> End in `done`, once by the
//                                                                      queue's promise
//
// gRPC calls OnCancel at most once, only after the handler has returned, at any time before OnDone,
// on any thread. It ends nothing itself: it sets the flag and asks the queue, which runs `done` if
// the request still waits. gRPC calls OnDone last, after Finish, the handler and OnCancel have all
// returned; the object deletes itself there. So `this` is valid in all of them, and for the
// request, whose views and flag point into this object, until `done` has returned.

#ifndef NORMD_SERVER_RPC_NORMALIZE_CALL_H_
#define NORMD_SERVER_RPC_NORMALIZE_CALL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "grpcpp/support/slice.h"
#include "server/batching/admission.h"
#include "server/batching/request.h"
#include "server/model/model.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/inputs.h"
#include "server/rpc/queueing.h"
#include "server/rpc/request_ids.h"
#include "wire/normalize_request.h"

namespace normd {

class NormalizeCall final : public grpc::ServerUnaryReactor {
 public:
  // All arguments outlive the call: gRPC keeps the last three until OnDone.
  NormalizeCall(CallEnvironment& environment, grpc::CallbackServerContext& context,
                const grpc::ByteBuffer& message, grpc::ByteBuffer& answer);

  // Decodes, checks, admits and queues the request, or ends the call. Never throws nor blocks.
  void Start();

  void OnCancel() override;
  void OnDone() override;

 private:
  // Its reactions take no time, so they need no other thread. gRPC's default hands them to one,
  // which costs every call a switch of threads.
  bool InternalInlineable() override { return true; }

  absl::Status Accept();
  absl::Status Check(const NormalizeRequestView& view);
  std::unique_ptr<Request> MakeRequest(NormalizeRequestView& view);
  void Complete(Completion completion);
  absl::Status Answer(Completion& completion);
  void End(const absl::Status& status);
  void Log(Duration duration);

  // Constant after Start, which is over before `done` reads them (Push orders the two).
  CallEnvironment& environment_;
  grpc::CallbackServerContext& context_;
  const grpc::ByteBuffer& message_;
  grpc::ByteBuffer& answer_;
  const TimePoint arrival_;
  const RequestIds ids_;
  std::uint64_t id_ = 0;
  std::vector<grpc::Slice> slices_;
  std::shared_ptr<const Model> model_;
  CheckedInputs inputs_;
  Queueing queueing_;
  norm::Precision precision_ = norm::Precision::kFloat32;
  Admission::Lease lease_;
  ResponseWatch::Entry response_;
  ModelMetrics* metrics_;

  // For the request log, if there is one; written before End, read by OnDone.
  StageTimes stages_;
  BatchInfo batch_;

  std::atomic<bool> cancelled_{false};             // Relaxed: it only saves work.
  absl::StatusCode code_ = absl::StatusCode::kOk;  // Written by End, read by OnDone, after it.
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_NORMALIZE_CALL_H_
