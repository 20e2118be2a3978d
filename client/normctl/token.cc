// `normctl token`: a bearer token for a client, and its line for the server's --tokens_file.

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "client/normctl/command.h"
#include "nlohmann/json.hpp"

namespace normd::client {
namespace {

// As many as the digest has: too many to guess.
constexpr std::size_t kTokenBytes = 32;

// Reads the system's random generator, and encodes with characters that need no escape in a header,
// a shell or a file name.
absl::StatusOr<std::string> MakeToken() {
  std::array<char, kTokenBytes> bytes;
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (count < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "no random bytes");
    if (count > 0) filled += static_cast<std::size_t>(count);
  }
  return absl::WebSafeBase64Escape(absl::string_view(bytes.data(), bytes.size()));
}

absl::StatusOr<std::string> Sha256Hex(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("OpenSSL has no SHA-256");
  }
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

// A file of that name is already somebody's token.
absl::Status WriteNewFile(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const ssize_t written = write(fd, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  const bool whole = written == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  if (close(fd) == 0 && whole) return absl::OkStatus();
  unlink(path.c_str());
  return absl::ErrnoToStatus(error, path);
}

class TokenCommand final : public Command {
 public:
  const char* name() const override { return "token"; }
  const char* arguments() const override { return "NAME"; }
  const char* summary() const override {
    return "makes a bearer token and prints its line for --tokens_file; needs no server";
  }
  int argument_count() const override { return 1; }

  void AddFlags(FlagSet& flags) override {
    flags.Add("out", &out_, "FILE", "New file for the token itself, which its client reads.",
              [](const std::string& path) { return path.empty() ? "a file for the token" : ""; });
  }

  absl::Status Run(const Context& context) override {
    const std::string& name = context.arguments[0];
    if (!IsName(name, 64, "_-.@")) {  // The server's rule: server/identity/identity.h.
      return absl::InvalidArgumentError(
          "NAME: wanted 1 to 64 letters, digits and any of _ - . @, beginning with a letter or a "
          "digit");
    }
    const absl::StatusOr<std::string> token = MakeToken();
    if (!token.ok()) return token.status();
    const absl::StatusOr<std::string> digest = Sha256Hex(*token);
    if (!digest.ok()) return digest.status();
    std::signal(SIGPIPE, SIG_IGN);  // A reader that has gone fails the output below.
    if (absl::Status written = WriteNewFile(out_, absl::StrCat(*token, "\n")); !written.ok()) {
      return written;
    }
    if (context.json) {
      *context.out << nlohmann::json{{"name", name}, {"sha256", *digest}, {"path", out_}} << "\n";
    } else {
      *context.out << name << " sha256:" << *digest << "\n";
    }
    if (context.out->flush()) return absl::OkStatus();
    // No server would ever know the token, and its file would refuse a second attempt.
    unlink(out_.c_str());
    return absl::UnavailableError(absl::StrCat("stdout: cannot be written; ", out_, " is removed"));
  }

 private:
  std::string out_;
};

}  // namespace

std::unique_ptr<Command> MakeTokenCommand() { return std::make_unique<TokenCommand>(); }

}  // namespace normd::client
