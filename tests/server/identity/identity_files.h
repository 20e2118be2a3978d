// Policies and tokens for tests, in files.

#ifndef NORMD_TESTS_SERVER_IDENTITY_IDENTITY_FILES_H_
#define NORMD_TESTS_SERVER_IDENTITY_IDENTITY_FILES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "tests/support/temp_folder.h"

namespace normd::testing {

// A token of the length that the server takes, another one for each letter.
std::string TokenOf(char letter);
// Its line in the file of tokens.
std::string TokenLine(absl::string_view name, absl::string_view token);
std::string BearerOf(char letter);

// Writes the file "tokens" with the TokenOf of each letter, under the letter as its name; returns
// its path.
std::string WriteTokens(const SecretFolder& folder, absl::string_view letters);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_IDENTITY_IDENTITY_FILES_H_
