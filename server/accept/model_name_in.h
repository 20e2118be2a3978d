// The model's name in a control request.

#pragma once

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
