// One identity of a policy: what it may do, and how much of it.

#ifndef NORMD_SERVER_IDENTITY_IDENTITY_H_
#define NORMD_SERVER_IDENTITY_IDENTITY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/identity/model_patterns.h"
#include "server/identity/rate_limit.h"

namespace normd {

// What a call wants to do.
enum class Right {
  kHealth,    // Ask whether the server, or a model, can be used.
  kDescribe,  // Ask what a model takes and gives.
  kInfer,     // Have a model compute.
  kObserve,   // Learn the server's state: lists, statistics, settings, metrics, reflection.
  kAdmin,     // Change it: load and unload.
};
inline constexpr std::size_t kRightCount = 5;
// "infer", for messages and the audit log.
absl::string_view Name(Right right);

struct IdentityLimits {
  Rate rate;
  std::int64_t concurrent_calls = 0;  // 0, here and below: no limit.
  std::int64_t bytes_in_flight = 0;
};

// What the roles of an identity allow together. Immutable once it is shared between threads.
struct Rights {
  bool observe = false;
  bool admin = false;
  // One for each role that names models. shared: by all who have the role.
  std::vector<std::shared_ptr<const ModelPatterns>> infer;

  // For kDescribe and kInfer: with any model at all; see IncludeModel.
  bool Include(Right right) const;
  // Whether `right`, which is kDescribe or kInfer, includes the model of this name. The same work
  // whether or not there is one.
  bool IncludeModel(Right right, absl::string_view model) const;
};

// Immutable.
struct Identity {
  std::string name;
  bool anonymous = false;
  Rights rights;
  IdentityLimits limits;
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_IDENTITY_H_
