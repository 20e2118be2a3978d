// The model's name in a control request.

#ifndef NORMD_SERVER_ACCEPT_MODEL_NAME_IN_H_
#define NORMD_SERVER_ACCEPT_MODEL_NAME_IN_H_

#include <optional>

#include "absl/strings/string_view.h"

namespace normd {

// The model that a request names; nullopt for a type of request that names none.
template <typename Request>
std::optional<absl::string_view> ModelNameIn(const Request& request) {
  if constexpr (requires { request.model_name(); }) {
    return request.model_name();
  } else if constexpr (requires { request.model(); }) {
    return request.model();
  } else if constexpr (requires { request.name(); }) {
    return request.name();
  } else {
    return std::nullopt;
  }
}

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_MODEL_NAME_IN_H_
