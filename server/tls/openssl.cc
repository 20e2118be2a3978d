#include "server/tls/openssl.h"

#include <openssl/err.h>

namespace normd {

BioPtr OpensslReader(absl::string_view text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string OpensslReason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  std::string text = reason != nullptr ? reason : "no reason given";
  ERR_clear_error();
  return text;
}

}  // namespace normd
