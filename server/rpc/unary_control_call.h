// A control call over gRPC.

#ifndef NORMD_SERVER_RPC_UNARY_CONTROL_CALL_H_
#define NORMD_SERVER_RPC_UNARY_CONTROL_CALL_H_

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/accept/control_call.h"
#include "server/rpc/unary_call.h"

namespace normd {

class UnaryControlCall final : public UnaryCall, public ControlCall {
 public:
  // All arguments outlive the call.
  UnaryControlCall(CallEnvironment& environment, grpc::CallbackServerContext& context,
                   Method method)
      : UnaryCall(environment, context, method),
        ControlCall(environment.accept, environment.control, call_, method) {}

  std::optional<absl::string_view> Metadata(absl::string_view name) const override {
    const auto found = context_.client_metadata().find({name.data(), name.size()});
    if (found == context_.client_metadata().end()) return std::nullopt;
    return absl::string_view(found->second.data(), found->second.size());
  }

  // gRPC also comes here when the deadline passes.
  void OnCancel() override {
    Cancel();
    Leave();
  }

 private:
  void OnEnd(const absl::Status& status, std::size_t response_bytes) override {
    End(status, response_bytes);
  }
  void Record() override { call_.Record(); }
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_UNARY_CONTROL_CALL_H_
