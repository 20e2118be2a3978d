// A policy in its file's form: read, and not yet checked.

#ifndef NORMD_SERVER_IDENTITY_POLICY_TEXT_H_
#define NORMD_SERVER_IDENTITY_POLICY_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/text_format.h"
#include "normd/v1/policy.pb.h"

namespace normd {

// Remembers the line of each message. Not thread-safe.
class PolicyText {
 public:
  // InvalidArgument gives line and column of syntax errors, of unknown fields, and of fields that
  // come twice.
  absl::Status Parse(absl::string_view text);

  const v1::Policy& policy() const { return policy_; }
  // "line 7: role \"user\"", with the name if it may be shown.
  std::string PlaceOfRole(int index) const;
  std::string PlaceOfIdentity(int index) const;

 private:
  std::string Place(const char* field, int index, absl::string_view name) const;

  v1::Policy policy_;
  google::protobuf::TextFormat::ParseInfoTree lines_;
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_POLICY_TEXT_H_
