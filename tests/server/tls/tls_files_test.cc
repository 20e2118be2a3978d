#include "server/tls/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <utility>
#include <vector>

#include "server/tls/tls_context.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace normd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TlsFilesTest : public ::testing::Test {
 protected:
  TlsFilesTest()
      : files_{folder_.Write("tls.crt", pki_.server.certificate),
               folder_.Write("tls.key", pki_.server.key),
               folder_.Write("ca.crt", pki_.authority.certificate)} {}

  void WriteServer(const TestCertificate& server) {
    folder_.Write("tls.crt", server.certificate);
    folder_.Write("tls.key", server.key);
  }
  absl::Status Load() { return LoadTlsMaterial(files_, absl::Now()).status(); }
  // The error of files that were good before and are not now.
  std::string Error() {
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  }

  const SecretFolder folder_;
  const TestPki pki_ = {};
  const TlsFiles files_;
};

TEST_F(TlsFilesTest, TakesWhatIsGood) {
  const auto material = LoadTlsMaterial(files_, absl::Now());
  ASSERT_TRUE(material.ok()) << material.status();
  EXPECT_EQ(material->certificate, pki_.server.certificate);
  EXPECT_EQ(material->key, pki_.server.key);
  EXPECT_EQ(material->client_ca, pki_.authority.certificate);
  EXPECT_GT(material->not_after, absl::Now() + absl::Hours(23));
}

TEST_F(TlsFilesTest, TakesEveryKindOfKeyAndAChain) {
  const TestCertificate middle = MakeCertificate(
      {.name = "middle", .end = absl::Now() + absl::Hours(2), .authority = true}, &pki_.authority);
  for (const CertificateSpec& spec :
       {CertificateSpec{.rsa_bits = 2048}, CertificateSpec{.curve = "P-384"},
        CertificateSpec{.extended_usage = "serverAuth,clientAuth"}}) {
    TestCertificate server = MakeCertificate(spec, &middle);
    server.certificate += middle.certificate;
    WriteServer(server);
    const auto material = LoadTlsMaterial(files_, absl::Now());
    ASSERT_TRUE(material.ok()) << material.status();
    // The first of the chain to expire.
    EXPECT_LT(material->not_after, absl::Now() + absl::Hours(3));
  }
}

TEST_F(TlsFilesTest, RefusesACertificateOutsideItsTime) {
  WriteServer(MakeCertificate({.end = absl::Now() - absl::Minutes(1)}, &pki_.authority));
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("tls_cert: "), HasSubstr("tls.crt certificate 1 expired on")));
  WriteServer(MakeCertificate({.begin = absl::Now() + absl::Minutes(1)}, &pki_.authority));
  EXPECT_THAT(Error(), HasSubstr("certificate 1 is not valid before 20"));
}

TEST_F(TlsFilesTest, RefusesAChainOfWhichACertificateHasExpired) {
  const TestCertificate middle =
      MakeCertificate({.name = "middle", .end = absl::Now() - absl::Minutes(1), .authority = true},
                      &pki_.authority);
  folder_.Write("tls.crt", pki_.server.certificate + middle.certificate);
  EXPECT_THAT(Error(), HasSubstr("certificate 2 expired on"));
}

TEST_F(TlsFilesTest, RefusesAWeakKey) {
  WriteServer(MakeCertificate({.rsa_bits = 1024}, &pki_.authority));
  EXPECT_THAT(Error(), AllOf(HasSubstr("tls_cert: "),
                             HasSubstr("tls.crt certificate 1 has a key of 1024 bits, wanted RSA "
                                       "of 2048 or a curve of 224, or more")));
}

TEST_F(TlsFilesTest, RefusesAClientsCertificate) {
  WriteServer(pki_.client);
  EXPECT_THAT(Error(), HasSubstr("certificate 1 is not for a TLS server"));
}

TEST_F(TlsFilesTest, RefusesAKeyOfAnotherCertificate) {
  folder_.Write("tls.key", pki_.client.key);
  EXPECT_THAT(Error(), AllOf(HasSubstr("tls_key: "), HasSubstr("tls.key is not the key of "),
                             HasSubstr("tls.crt")));
}

TEST_F(TlsFilesTest, RefusesAnEncryptedKey) {
  folder_.Write("tls.key", pki_.server.EncryptedKey());
  EXPECT_THAT(Error(), HasSubstr("tls.key is encrypted, wanted a key without a passphrase"));
}

TEST_F(TlsFilesTest, RefusesFilesThatAreCutOffAnywhere) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {"tls.crt", pki_.server.certificate},
      {"tls.key", pki_.server.key},
      {"ca.crt", pki_.authority.certificate}};
  for (const auto& [name, text] : all) {
    // The last line's end may be missing; of the end line every character counts.
    for (std::size_t size = 0; size + 1 < text.size(); size += size + 40 < text.size() ? 7 : 1) {
      folder_.Write(name, text.substr(0, size));
      ASSERT_FALSE(Load().ok()) << name << " of " << size << " bytes";
    }
    EXPECT_THAT(Error(), HasSubstr("is cut off or damaged"));
    folder_.Write(name, text.substr(0, text.size() - 1));
    EXPECT_TRUE(Load().ok()) << Load();
    folder_.Write(name, text);
  }
}

TEST_F(TlsFilesTest, RefusesAChainOfWhichTheLastIsCutOff) {
  const std::string& whole = pki_.authority.certificate;
  folder_.Write("tls.crt", pki_.server.certificate + whole.substr(0, whole.size() / 2));
  EXPECT_THAT(Error(), HasSubstr("is cut off or damaged: certificate 2 of 2 cannot be read"));
}

TEST_F(TlsFilesTest, RefusesWhatIsNoPem) {
  folder_.Write("tls.crt", "a certificate");
  EXPECT_THAT(Error(), HasSubstr("holds no certificate, wanted PEM"));
  folder_.Write("tls.crt", pki_.server.key);
  EXPECT_THAT(Error(), HasSubstr("holds no certificate, wanted PEM"));
  folder_.Write("tls.crt", pki_.server.certificate);
  folder_.Write("tls.key", "a key");
  EXPECT_THAT(Error(), HasSubstr("holds no key, wanted PEM"));
  folder_.Write("tls.key", pki_.server.certificate);
  EXPECT_THAT(Error(), HasSubstr("or no private key"));
}

TEST_F(TlsFilesTest, RefusesAKeyThatOthersCanReadOrWrite) {
  for (int mode = 0; mode < 0100; ++mode) {
    // The owner's rights do not matter, as long as the server can read: here it may.
    folder_.Write("tls.key", pki_.server.key, 0600 | mode);
    const bool good = (mode & 07) == 0 && (mode & 020) == 0;
    const absl::Status status = Load();
    EXPECT_EQ(status.ok(), good) << std::oct << mode;
    if (good) continue;
    EXPECT_THAT(status.message(), HasSubstr("tls.key has mode 06"));
  }
  // Certificates are no secrets.
  folder_.Write("tls.key", pki_.server.key);
  folder_.Write("tls.crt", pki_.server.certificate, 0666);
  EXPECT_TRUE(Load().ok());
}

TEST_F(TlsFilesTest, RefusesWhatIsNotThereOrNoFile) {
  for (const char* name : {"tls.crt", "tls.key", "ca.crt"}) {
    const std::string path = folder_.File(name);
    ASSERT_EQ(rename(path.c_str(), (path + ".away").c_str()), 0);
    EXPECT_THAT(Error(), AllOf(HasSubstr(name), HasSubstr("cannot be opened: No such file")));
    // Opening a pipe that nobody writes to would wait for ever.
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_THAT(Error(), AllOf(HasSubstr(name), HasSubstr("is not a regular file")));
    ASSERT_EQ(unlink(path.c_str()), 0);
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    EXPECT_THAT(Error(), AllOf(HasSubstr(name), HasSubstr("is not a regular file")));
    ASSERT_EQ(rmdir(path.c_str()), 0);
    ASSERT_EQ(rename((path + ".away").c_str(), path.c_str()), 0);
  }
}

TEST_F(TlsFilesTest, RefusesAFileOfAnySize) {
  folder_.Write("ca.crt", std::string((std::size_t{1} << 20) + 1, 'x'));
  EXPECT_THAT(Error(), HasSubstr("ca.crt is larger than 1 MiB"));
}

TEST_F(TlsFilesTest, ShowsNothingOfTheKey) {
  for (const std::string& text : {pki_.server.key.substr(0, 100), "secret " + pki_.server.key}) {
    folder_.Write("tls.key", text);
    const std::string error(Load().message());
    for (std::size_t i = 40; i + 8 < text.size(); i += 4) {
      EXPECT_THAT(error, Not(HasSubstr(text.substr(i, 8))));
    }
  }
}

TEST_F(TlsFilesTest, OneAuthorityThatIsValidIsEnough) {
  const TestCertificate old =
      MakeCertificate({.name = "old", .end = absl::Now() - absl::Minutes(1), .authority = true});
  folder_.Write("ca.crt", old.certificate + pki_.authority.certificate);
  EXPECT_TRUE(Load().ok()) << Load();
  folder_.Write("ca.crt", old.certificate);
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("tls_client_ca: "), HasSubstr("ca.crt certificate 1 expired")));
  folder_.Write("ca.crt", old.certificate + old.certificate);
  EXPECT_THAT(Error(), HasSubstr("has no certificate that is valid now"));
}

TEST_F(TlsFilesTest, StampsTellEveryChange) {
  TlsFileStamps last = StampsOf(files_);
  EXPECT_EQ(StampsOf(files_), last);
  const auto changed = [&] { return std::exchange(last, StampsOf(files_)) != StampsOf(files_); };
  for (const char* name : {"tls.crt", "tls.key", "ca.crt"}) {
    const std::string path = folder_.File(name);
    ASSERT_EQ(rename(path.c_str(), (path + ".away").c_str()), 0);
    EXPECT_TRUE(changed()) << name;
    ASSERT_EQ(rename((path + ".away").c_str(), path.c_str()), 0);
    EXPECT_TRUE(changed()) << name;
    ASSERT_EQ(chmod(path.c_str(), 0640), 0);
    EXPECT_TRUE(changed()) << name;
    folder_.Write(name, "another");
    EXPECT_TRUE(changed()) << name;
    EXPECT_FALSE(changed()) << name;
  }
}

TEST(TlsContextTest, RefusesWeakKeysAndSaysWhichFile) {
  const TestCertificate weak = MakeCertificate({.rsa_bits = 1024});
  const auto context = MakeTlsContext({weak.certificate, weak.key, "", {}}, {});
  ASSERT_FALSE(context.ok());
  EXPECT_THAT(context.status().message(), AllOf(HasSubstr("tls_cert: "), HasSubstr("too small")));
}

TEST(TlsContextTest, RefusesKeysWithWhichTls13WouldBecome12) {
  const TestCertificate odd = MakeCertificate({.curve = "secp256k1"});
  const TlsMaterial material{odd.certificate, odd.key, "", {}};
  EXPECT_TRUE(MakeTlsContext(material, {}).ok());
  const auto context = MakeTlsContext(material, {.min_version = TlsVersion::k13});
  ASSERT_FALSE(context.ok());
  EXPECT_THAT(context.status().message(), HasSubstr("tls_key: TLS 1.3 has no signatures"));
  for (const CertificateSpec& spec :
       {CertificateSpec{}, CertificateSpec{.rsa_bits = 2048}, CertificateSpec{.curve = "P-521"}}) {
    const TestCertificate good = MakeCertificate(spec);
    EXPECT_TRUE(
        MakeTlsContext({good.certificate, good.key, "", {}}, {.min_version = TlsVersion::k13})
            .ok());
  }
}

}  // namespace
}  // namespace normd::testing
