#include "tests/server/identity/identity_files.h"

#include <openssl/evp.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace normd::testing {

std::string TokenOf(char letter) { return std::string(43, letter); }

std::string TokenLine(absl::string_view name, absl::string_view token) {
  // By OpenSSL's one call, which the server does not use.
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(token.data(), token.size(), digest, &size, EVP_sha256(), nullptr) != 1)
    std::abort();
  const absl::string_view bytes(reinterpret_cast<const char*>(digest), size);
  return absl::StrCat(name, " sha256:", absl::BytesToHexString(bytes), "\n");
}

std::string BearerOf(char letter) { return absl::StrCat("Bearer ", TokenOf(letter)); }

std::string WriteTokens(const SecretFolder& folder, absl::string_view letters) {
  std::string tokens;
  for (const char letter : letters) tokens += TokenLine(std::string(1, letter), TokenOf(letter));
  return folder.Write("tokens", tokens);
}

}  // namespace normd::testing
