#include "client/channel_security.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace normd::client {
namespace {

absl::StatusOr<std::string> ReadFile(absl::string_view option, const std::string& path,
                                     absl::string_view wanted) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file && !text.empty()) return text;
  return absl::NotFoundError(absl::StrCat(option, ": ", path, ": cannot read ", wanted));
}

class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& authorization) : authorization_(authorization) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", authorization_);
    }
    methods->Proceed();
  }

 private:
  const std::string& authorization_;
};

class TokenInterceptors final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptors(const std::string& token)
      : authorization_(absl::StrCat("Bearer ", token)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(authorization_);  // gRPC takes ownership.
  }

 private:
  const std::string authorization_;  // Calls keep the channel, and it keeps this.
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::optional<TlsOptions>& tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  if (tls->cert_file.empty() != tls->key_file.empty()) {
    return absl::InvalidArgumentError(tls->key_file.empty()
                                          ? "tls_key: empty, wanted the key of --tls_cert"
                                          : "tls_cert: empty, wanted the certificate of --tls_key");
  }
  grpc::SslCredentialsOptions ssl;
  struct File {
    const char* option;
    const std::string& path;
    const char* wanted;
    std::string& to;
  };
  const File files[] = {{"tls_ca", tls->ca_file, "certificates", ssl.pem_root_certs},
                        {"tls_cert", tls->cert_file, "a certificate", ssl.pem_cert_chain},
                        {"tls_key", tls->key_file, "a key", ssl.pem_private_key}};
  for (const File& file : files) {
    if (file.path.empty()) continue;
    absl::StatusOr<std::string> text = ReadFile(file.option, file.path, file.wanted);
    if (!text.ok()) return text.status();
    file.to = *std::move(text);
  }
  return grpc::SslCredentials(ssl);
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile("token_file", path, "a token");
  if (!text.ok()) return text.status();
  const absl::string_view token = absl::StripAsciiWhitespace(*text);
  if (token.empty() || !std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_file: ", path, ": wanted one word, the token"));
  }
  return std::string(token);
}

bool IsLocalTarget(const std::string& target) {
  constexpr absl::string_view kLocal[] = {
      "127.",       "localhost:",     "[::1]:",           "unix:", "unix-abstract:", "ipv4:127.",
      "ipv6:[::1]", "dns:localhost:", "dns:///localhost:"};
  return std::any_of(std::begin(kLocal), std::end(kLocal),
                     [&](absl::string_view start) { return absl::StartsWith(target, start); });
}

Interceptors SendToken(const std::string& token) {
  Interceptors all;
  all.push_back(std::make_unique<TokenInterceptors>(token));
  return all;
}

}  // namespace normd::client
