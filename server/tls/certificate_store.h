// The server's certificate, which follows its files.

#ifndef NORMD_SERVER_TLS_CERTIFICATE_STORE_H_
#define NORMD_SERVER_TLS_CERTIFICATE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/periodic_thread.h"
#include "server/metrics/metrics.h"
#include "server/tls/tls_context.h"
#include "server/tls/tls_files.h"

namespace normd {

struct CertificateStoreOptions {
  TlsFiles files;
  TlsPolicy policy;
  // Between two looks at the files.
  Duration interval = std::chrono::seconds(1);
  std::function<absl::Time()> now = absl::Now;
};

// Holds the last good state of the files. Changed files are read once they have been unchanged
// between two looks, so that a certificate and its key that are replaced one after the other are
// taken together. An error of LoadTlsMaterial then leaves everything unchanged, and is logged once.
// They are tried again when the files change, and every minute, because a certificate may become
// valid. Thread-safe.
class CertificateStore {
 public:
  // The state for new connections; existing ones keep theirs.
  struct State {
    TlsMaterial material;
    std::shared_ptr<SSL_CTX> context;  // shared: with connections of the metrics port.
    std::uint64_t generation = 0;      // From 1 on, one more for each.
  };

  // Reads the files; LoadTlsMaterial's error when they are not good. `metrics` outlives it.
  static absl::StatusOr<std::unique_ptr<CertificateStore>> Create(CertificateStoreOptions options,
                                                                  TlsMetrics& metrics);
  CertificateStore(const CertificateStore&) = delete;
  CertificateStore& operator=(const CertificateStore&) = delete;

  // shared: a connection that begins keeps the state until it has begun. Never null.
  std::shared_ptr<const State> current() const;
  const TlsPolicy& policy() const { return options_.policy; }

  // Looks at the files every `interval` from here on, on a thread of its own.
  void Watch();
  // One such look. By one thread at a time, and not beside Watch.
  void Look();

 private:
  CertificateStore(CertificateStoreOptions options, TlsMetrics& metrics);
  absl::Status Load();

  const CertificateStoreOptions options_;
  TlsMetrics& metrics_;

  mutable Mutex mutex_;
  std::shared_ptr<const State> state_ ABSL_GUARDED_BY(mutex_);

  // Used by the thread that looks.
  TlsFileStamps seen_{};    // At the last look,
  TlsFileStamps judged_{};  // and when the files were last read.
  std::string last_error_;  // From that read; empty when it was good.
  absl::Time retry_ = absl::InfiniteFuture();

  std::optional<PeriodicThread> thread_;  // Last: it uses the rest.
};

}  // namespace normd

#endif  // NORMD_SERVER_TLS_CERTIFICATE_STORE_H_
