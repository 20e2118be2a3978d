#include "server/tls/certificate_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/certificates.h"
#include "tests/support/metric_value.h"
#include "tests/support/temp_folder.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;

class CertificateStoreTest : public ::testing::Test {
 protected:
  CertificateStoreTest() {
    Write(pki_.server);
    folder_.Write("ca.crt", pki_.authority.certificate);
    options_.files = {folder_.File("tls.crt"), folder_.File("tls.key"), folder_.File("ca.crt")};
    options_.now = [this] { return now_; };
    store_ = Make();
    Settle();
  }

  std::unique_ptr<CertificateStore> Make() {
    auto store = CertificateStore::Create(options_, metrics_.ForTls());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  void Write(const TestCertificate& server) {
    folder_.Write("tls.crt", server.certificate);
    folder_.Write("tls.key", server.key);
  }
  // As many looks as a change may take to be seen.
  void Settle() {
    store_->Look();
    store_->Look();
  }
  TestCertificate NewServer() { return MakeCertificate({}, &pki_.authority); }
  std::int64_t Reloads(absl::string_view result) {
    return MetricValue(metrics_, families::kCertificateReloads, {result});
  }
  const std::string& InUse() const { return store_->current()->material.certificate; }

  const SecretFolder folder_;
  const TestPki pki_ = {};
  absl::Time now_ = absl::Now();
  Metrics metrics_;
  CertificateStoreOptions options_;
  std::unique_ptr<CertificateStore> store_;
};

TEST_F(CertificateStoreTest, StartFailsOverFilesThatAreNotGood) {
  folder_.Write("tls.key", pki_.client.key);
  const auto store = CertificateStore::Create(options_, metrics_.ForTls());
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(store.status().message(), HasSubstr("tls_key: "));
}

TEST_F(CertificateStoreTest, LooksChangeNothingWhileTheFilesStay) {
  const auto before = store_->current();
  EXPECT_EQ(before->generation, 1u);
  for (int i = 0; i < 10; ++i) store_->Look();
  // The same bytes in new files are nothing new.
  Write(pki_.server);
  Settle();
  EXPECT_EQ(store_->current(), before);
  EXPECT_EQ(Reloads("taken"), 0);
  EXPECT_EQ(Reloads("refused"), 0);
  EXPECT_EQ(MetricValue(metrics_, families::kCertificateNotAfter),
            absl::ToUnixSeconds(before->material.not_after));
}

TEST_F(CertificateStoreTest, TakesAChangeOfEachFileOnceItHasRested) {
  const TestCertificate next = NewServer();
  Write(next);
  store_->Look();
  EXPECT_EQ(InUse(), pki_.server.certificate);
  store_->Look();
  EXPECT_EQ(InUse(), next.certificate);
  EXPECT_EQ(store_->current()->generation, 2u);
  const TestPki other = {};
  folder_.Write("ca.crt", pki_.authority.certificate + other.authority.certificate);
  Settle();
  EXPECT_EQ(store_->current()->generation, 3u);
  EXPECT_THAT(store_->current()->material.client_ca, HasSubstr(other.authority.certificate));
  EXPECT_EQ(Reloads("taken"), 2);
  EXPECT_EQ(Reloads("refused"), 0);
}

TEST_F(CertificateStoreTest, TakesAPairThatComesInTwoStepsWithoutAWordOfError) {
  for (const bool key_first : {false, true}) {
    const TestCertificate next = NewServer();
    const auto write_one = [&](bool key) {
      folder_.Write(key ? "tls.key" : "tls.crt", key ? next.key : next.certificate);
    };
    write_one(key_first);
    store_->Look();
    write_one(!key_first);
    Settle();
    EXPECT_EQ(InUse(), next.certificate);
  }
  EXPECT_EQ(Reloads("taken"), 2);
  EXPECT_EQ(Reloads("refused"), 0);
}

TEST_F(CertificateStoreTest, KeepsWhatItHasOverFilesThatAreNotGoodAndCountsThemOnce) {
  const auto before = store_->current();
  std::int64_t refused = 0;
  const auto expect_refused = [&](const char* what) {
    for (int i = 0; i < 5; ++i) store_->Look();
    EXPECT_EQ(store_->current(), before) << what;
    EXPECT_EQ(Reloads("refused"), ++refused) << what;
  };
  const TestCertificate next = NewServer();
  folder_.Write("tls.crt", next.certificate);
  expect_refused("half a pair");
  Write(MakeCertificate({.end = now_ - absl::Minutes(1)}, &pki_.authority));
  expect_refused("expired");
  folder_.Write("tls.key", next.key, 0604);
  expect_refused("a key that all may read");
  Write({pki_.server.certificate, pki_.server.EncryptedKey()});
  expect_refused("an encrypted key");
  Write(MakeCertificate({.rsa_bits = 1024}));
  expect_refused("a short key");
  ASSERT_EQ(unlink(options_.files.key.c_str()), 0);
  expect_refused("no key");
  Write(next);
  Settle();
  EXPECT_EQ(InUse(), next.certificate);
  EXPECT_EQ(Reloads("taken"), 1);
}

TEST_F(CertificateStoreTest, CountsTheSameFaultAgainAfterItWasMended) {
  for (int i = 1; i <= 3; ++i) {
    folder_.Write("tls.key", pki_.client.key);
    Settle();
    EXPECT_EQ(Reloads("refused"), i);
    folder_.Write("tls.key", pki_.server.key);
    Settle();
  }
}

TEST_F(CertificateStoreTest, TakesACertificateWhenItsTimeHasCome) {
  const TestCertificate next = MakeCertificate({.begin = now_ + absl::Minutes(5)}, &pki_.authority);
  Write(next);
  for (int i = 0; i < 4; ++i) {
    Settle();
    EXPECT_EQ(InUse(), pki_.server.certificate);
    now_ += absl::Minutes(1);
  }
  EXPECT_EQ(Reloads("refused"), 1);
  now_ += absl::Minutes(2);
  Settle();
  EXPECT_EQ(InUse(), next.certificate);
}

// As Kubernetes changes a mounted secret: a link to a folder is exchanged.
TEST_F(CertificateStoreTest, FollowsALinkThatIsExchanged) {
  const TestCertificate next = NewServer();
  ASSERT_EQ(mkdir(folder_.File("one").c_str(), 0700), 0);
  ASSERT_EQ(mkdir(folder_.File("two").c_str(), 0700), 0);
  folder_.Write("one/tls.crt", pki_.server.certificate);
  folder_.Write("one/tls.key", pki_.server.key);
  folder_.Write("two/tls.crt", next.certificate);
  folder_.Write("two/tls.key", next.key);
  ASSERT_EQ(symlink("one", folder_.File("data").c_str()), 0);
  options_.files = {folder_.File("data/tls.crt"), folder_.File("data/tls.key"), ""};
  store_ = Make();
  Settle();
  ASSERT_EQ(symlink("two", folder_.File("data.new").c_str()), 0);
  ASSERT_EQ(rename(folder_.File("data.new").c_str(), folder_.File("data").c_str()), 0);
  Settle();
  EXPECT_EQ(InUse(), next.certificate);
}

// Whatever order files are written, damaged and looked at in, what is in use is one of the pairs
// that were whole, and in the end the last of them.
TEST_F(CertificateStoreTest, NeverHoldsAPairThatWasNotOne) {
  std::mt19937 random(20261122);
  std::vector<TestCertificate> pairs = {pki_.server, NewServer(), NewServer(), NewServer()};
  for (int round = 0; round < 200; ++round) {
    const TestCertificate& one = pairs[random() % pairs.size()];
    switch (random() % 5) {
      case 0: folder_.Write("tls.crt", one.certificate); break;
      case 1: folder_.Write("tls.key", one.key); break;
      case 2: folder_.Write("tls.crt", one.certificate.substr(0, random() % 600)); break;
      case 3: folder_.Write("tls.key", one.key.substr(0, random() % 200)); break;
      default: Write(one);
    }
    for (auto looks = random() % 3; looks > 0; --looks) store_->Look();
    const auto state = store_->current();
    ASSERT_TRUE(std::any_of(pairs.begin(), pairs.end(), [&](const TestCertificate& pair) {
      return pair.certificate == state->material.certificate && pair.key == state->material.key;
    }));
  }
  Write(pairs[2]);
  Settle();
  EXPECT_EQ(InUse(), pairs[2].certificate);
}

TEST_F(CertificateStoreTest, IsReadByManyWhileItChanges) {
  options_.interval = std::chrono::microseconds(200);
  store_ = Make();
  store_->Watch();
  const TestCertificate next = NewServer();
  std::thread reader([&] {
    for (;;) {
      const auto state = store_->current();
      EXPECT_NE(state->context, nullptr);
      if (state->material.certificate == next.certificate) return;
    }
  });
  Write(next);
  reader.join();
}

}  // namespace
}  // namespace normd::testing
