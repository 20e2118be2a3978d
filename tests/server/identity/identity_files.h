// Policies and tokens for tests, in files.

#ifndef NORMD_TESTS_SERVER_IDENTITY_IDENTITY_FILES_H_
#define NORMD_TESTS_SERVER_IDENTITY_IDENTITY_FILES_H_

#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"

namespace normd::testing {

// A token of the length that the server takes, another one for each letter.
std::string TokenOf(char letter);
// Its line in the file of tokens.
std::string TokenLine(absl::string_view name, absl::string_view token);
std::string BearerOf(char letter);

// A new folder that goes, with its files, at the end.
class IdentityFolder {
 public:
  IdentityFolder();
  ~IdentityFolder();
  IdentityFolder(const IdentityFolder&) = delete;
  IdentityFolder& operator=(const IdentityFolder&) = delete;

  std::string Path(absl::string_view name) const;
  // Puts a whole file in place by a rename, as a deployment does; returns its path.
  std::string Write(absl::string_view name, absl::string_view text, mode_t mode = 0600) const;
  // The file "tokens" with the TokenOf of each letter, under the letter as its name.
  std::string WriteTokens(absl::string_view letters) const;
  void Remove(absl::string_view name) const;

 private:
  std::string path_;
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_IDENTITY_IDENTITY_FILES_H_
