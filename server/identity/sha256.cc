#include "server/identity/sha256.h"

#include <openssl/evp.h>

#include <memory>
#include <new>

namespace normd {
namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

Digest Sha256(absl::string_view text) {
  // One context per thread: making one takes longer than the digest of a token.
  thread_local const std::unique_ptr<EVP_MD_CTX, FreeContext> context = [] {
    std::unique_ptr<EVP_MD_CTX, FreeContext> made(EVP_MD_CTX_new());
    if (made == nullptr || EVP_DigestInit_ex2(made.get(), EVP_sha256(), nullptr) != 1) {
      throw std::bad_alloc();
    }
    return made;
  }();
  Digest digest;
  // Without an algorithm it restarts with its previous one.
  if (EVP_DigestInit_ex2(context.get(), nullptr, nullptr) != 1 ||
      EVP_DigestUpdate(context.get(), text.data(), text.size()) != 1 ||
      EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) != 1) {
    throw std::bad_alloc();
  }
  return digest;
}

}  // namespace normd
