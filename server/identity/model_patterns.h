// A set of model names, some of them given by their beginning.

#ifndef NORMD_SERVER_IDENTITY_MODEL_PATTERNS_H_
#define NORMD_SERVER_IDENTITY_MODEL_PATTERNS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace normd {

// Immutable once it is shared between threads.
class ModelPatterns {
 public:
  // Adds a name, or the beginning of names followed by '*', of at most 128 characters that model
  // names can have. InvalidArgument says what came and what was wanted.
  absl::Status Add(absl::string_view pattern);

  bool empty() const { return !everything_ && names_.empty() && beginnings_.empty(); }
  // One table look-up for the name and one for each length of a beginning. Knows no models, so the
  // work does not depend on which there are.
  bool Contains(absl::string_view name) const;

 private:
  bool everything_ = false;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_set<std::string> beginnings_;
  std::vector<std::size_t> lengths_;  // The lengths of the beginnings, each once.
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_MODEL_PATTERNS_H_
