#include "server/tls/tls_files.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/tls/openssl.h"

namespace normd {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
// OpenSSL's security level 2, Debian's default: those that know the certificate take no less.
constexpr int kLeastSecurityBits = 112;
constexpr absl::string_view kBegin = "-----BEGIN ";

using Certificates = std::vector<CertificatePtr>;

// One of the files, as errors name it.
struct NamedFile {
  absl::string_view flag;
  const std::string& path;

  absl::Status Wrong(absl::string_view what) const {
    return absl::FailedPreconditionError(absl::StrCat(flag, ": ", Printable(path), " ", what));
  }
};

// Anybody who can read a key can act as the server; a group that mounts it for the server may read
// it too.
absl::Status CheckMode(const NamedFile& file, const struct stat& found, bool secret) {
  if (!S_ISREG(found.st_mode)) return file.Wrong("is not a regular file");
  constexpr mode_t kTooMany = S_IWGRP | S_IRWXO;
  if (!secret || (found.st_mode & kTooMany) == 0) return absl::OkStatus();
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", found.st_mode & 07777U);
  return file.Wrong(absl::StrCat("has mode ", mode,
                                 ", wanted a key that nobody but its owner writes and others "
                                 "cannot read, such as 0600 or 0640"));
}

absl::StatusOr<std::string> ReadAll(int fd, const NamedFile& file) {
  std::string text(kMaxFileBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file.Wrong(absl::StrCat("cannot be read: ", std::strerror(errno)));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kMaxFileBytes) return file.Wrong("is larger than 1 MiB");
  text.resize(size);
  return text;
}

absl::StatusOr<std::string> ReadFile(const NamedFile& file, bool secret) {
  // A pipe without a writer would make a blocking open wait.
  const int fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return file.Wrong(absl::StrCat("cannot be opened: ", std::strerror(errno)));
  struct stat found = {};
  absl::Status status =
      fstat(fd, &found) == 0 ? CheckMode(file, found, secret) : file.Wrong("cannot be examined");
  absl::StatusOr<std::string> text = status.ok() ? ReadAll(fd, file) : status;
  close(fd);
  return text;
}

std::size_t CountOf(absl::string_view text, absl::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

absl::StatusOr<Certificates> ReadCertificates(const NamedFile& file, const std::string& pem) {
  const BioPtr bio = OpensslReader(pem);
  Certificates all;
  ERR_clear_error();
  while (CertificatePtr one{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) {
    all.push_back(std::move(one));
  }
  const std::string reason = OpensslReason();
  const std::size_t begun = CountOf(pem, "-----BEGIN CERTIFICATE-----");
  if (begun == 0) return file.Wrong("holds no certificate, wanted PEM");
  if (all.size() < begun) {
    return file.Wrong(absl::StrCat("is cut off or damaged: certificate ", all.size() + 1, " of ",
                                   begun, " cannot be read (", reason, ")"));
  }
  return all;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm tm = {};
  return ASN1_TIME_to_tm(time, &tm) == 1 ? absl::FromTM(tm, absl::UTCTimeZone())
                                         : absl::InfinitePast();
}

std::string Text(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

// The error in the certificate's time; empty when there is none.
std::string WrongTime(const X509* certificate, absl::Time now) {
  const absl::Time begin = TimeOf(X509_get0_notBefore(certificate));
  const absl::Time end = TimeOf(X509_get0_notAfter(certificate));
  if (now < begin) return absl::StrCat("is not valid before ", Text(begin));
  if (now > end) return absl::StrCat("expired on ", Text(end));
  return "";
}

absl::Status CheckChain(const NamedFile& file, const Certificates& chain, absl::Time now) {
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const std::string wrong = WrongTime(chain[i].get(), now);
    if (!wrong.empty()) return file.Wrong(absl::StrCat("certificate ", i + 1, " ", wrong));
    const EVP_PKEY* const key = X509_get0_pubkey(chain[i].get());
    if (key != nullptr && EVP_PKEY_get_security_bits(key) < kLeastSecurityBits) {
      return file.Wrong(absl::StrCat("certificate ", i + 1, " has a key of ",
                                     EVP_PKEY_get_bits(key),
                                     " bits, wanted RSA of 2048 or a curve of 224, or more"));
    }
  }
  if (X509_check_purpose(chain[0].get(), X509_PURPOSE_SSL_SERVER, /*ca=*/0) != 1) {
    return file.Wrong("certificate 1 is not for a TLS server (its key usage says so)");
  }
  return absl::OkStatus();
}

// Called when a key is encrypted. There is nobody to ask.
int NoPassphrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

absl::StatusOr<KeyPtr> ReadKey(const NamedFile& file, const std::string& pem) {
  const BioPtr bio = OpensslReader(pem);
  bool asked = false;
  ERR_clear_error();
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, &asked));
  const std::string reason = OpensslReason();
  if (key != nullptr) return key;
  if (asked) return file.Wrong("is encrypted, wanted a key without a passphrase");
  if (!absl::StrContains(pem, kBegin)) return file.Wrong("holds no key, wanted PEM");
  return file.Wrong(
      absl::StrCat("is cut off or damaged, or no private key: it cannot be read (", reason, ")"));
}

// An expired one may stay beside its successor.
absl::Status CheckAuthorities(const NamedFile& file, const Certificates& all, absl::Time now) {
  std::string wrong;
  for (const CertificatePtr& one : all) {
    wrong = WrongTime(one.get(), now);
    if (wrong.empty()) return absl::OkStatus();
  }
  return file.Wrong(all.size() == 1
                        ? absl::StrCat("certificate 1 ", wrong)
                        : absl::StrCat("has no certificate that is valid now, the last ", wrong));
}

absl::Time FirstEnd(const Certificates& chain) {
  absl::Time first = absl::InfiniteFuture();
  for (const CertificatePtr& one : chain) {
    first = std::min(first, TimeOf(X509_get0_notAfter(one.get())));
  }
  return first;
}

}  // namespace

TlsFileStamps StampsOf(const TlsFiles& files) {
  TlsFileStamps stamps{};
  const std::string* const paths[] = {&files.certificate, &files.key, &files.client_ca};
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    struct stat found = {};
    if (paths[i]->empty() || stat(paths[i]->c_str(), &found) != 0) continue;
    stamps[i] = StateFrom(found);
  }
  return stamps;
}

absl::StatusOr<TlsMaterial> LoadTlsMaterial(const TlsFiles& files, absl::Time now) {
  const NamedFile certificate{"tls_cert", files.certificate};
  const NamedFile key{"tls_key", files.key};
  const NamedFile client_ca{"tls_client_ca", files.client_ca};
  TlsMaterial material;
  absl::StatusOr<std::string> text = ReadFile(certificate, /*secret=*/false);
  if (!text.ok()) return text.status();
  material.certificate = *std::move(text);
  text = ReadFile(key, /*secret=*/true);
  if (!text.ok()) return text.status();
  material.key = *std::move(text);

  const absl::StatusOr<Certificates> chain = ReadCertificates(certificate, material.certificate);
  if (!chain.ok()) return chain.status();
  const absl::StatusOr<KeyPtr> private_key = ReadKey(key, material.key);
  if (!private_key.ok()) return private_key.status();
  if (X509_check_private_key((*chain)[0].get(), private_key->get()) != 1) {
    ERR_clear_error();
    return key.Wrong(absl::StrCat("is not the key of certificate 1 of tls_cert, ",
                                  Printable(files.certificate)));
  }
  absl::Status status = CheckChain(certificate, *chain, now);
  if (!status.ok()) return status;
  material.not_after = FirstEnd(*chain);

  if (!files.client_ca.empty()) {
    text = ReadFile(client_ca, /*secret=*/false);
    if (!text.ok()) return text.status();
    material.client_ca = *std::move(text);
    const absl::StatusOr<Certificates> all = ReadCertificates(client_ca, material.client_ca);
    if (!all.ok()) return all.status();
    status = CheckAuthorities(client_ca, *all, now);
    if (!status.ok()) return status;
  }
  return material;
}

}  // namespace normd
