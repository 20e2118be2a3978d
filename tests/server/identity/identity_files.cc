#include "tests/server/identity/identity_files.h"

#include <openssl/evp.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

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

IdentityFolder::IdentityFolder()
    : path_((std::filesystem::temp_directory_path() / "normd_identity_XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr) std::abort();
}

IdentityFolder::~IdentityFolder() { std::filesystem::remove_all(path_); }

std::string IdentityFolder::Path(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

std::string IdentityFolder::Write(absl::string_view name, absl::string_view text,
                                  mode_t mode) const {
  const std::string path = Path(name);
  const std::string fresh = absl::StrCat(path, ".new");
  std::ofstream(fresh) << text;
  if (chmod(fresh.c_str(), mode) != 0) std::abort();
  std::filesystem::rename(fresh, path);
  return path;
}

std::string IdentityFolder::WriteTokens(absl::string_view letters) const {
  std::string tokens;
  for (const char letter : letters) tokens += TokenLine(std::string(1, letter), TokenOf(letter));
  return Write("tokens", tokens);
}

void IdentityFolder::Remove(absl::string_view name) const {
  std::filesystem::remove_all(Path(name));
}

}  // namespace normd::testing
