// The parts that all calls over HTTP share.

#ifndef NORMD_SERVER_REST_REST_ENVIRONMENT_H_
#define NORMD_SERVER_REST_REST_ENVIRONMENT_H_

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "base/clock.h"
#include "server/accept/control_call.h"
#include "server/accept/environment.h"
#include "server/infer/infer_methods.h"

namespace normd {

// Outlives every call; its references outlive it. Each member is thread-safe or constant.
struct RestEnvironment {
  AcceptEnvironment& accept;
  ControlThreads& control;
  const InferMethods methods;
  const Duration retry_after = std::chrono::milliseconds(100);  // The hint in a refusal.
  // Runs work that takes longer than a connection's thread may.
  std::function<void(absl::AnyInvocable<void() &&>)> later = {};
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_REST_ENVIRONMENT_H_
