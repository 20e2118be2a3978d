// The server's certificate, which follows its files.

#ifndef NORMD_SERVER_TLS_CERTIFICATE_STORE_H_
#define NORMD_SERVER_TLS_CERTIFICATE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
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

// Holds what the files held when they were last good. Files that change are read once they have
// rested from one look to the next, so that a certificate and its key that are put in place one
// after the other are taken together. What LoadTlsMaterial refuses then leaves everything as it is,
// and the log says so once; it is tried again when the files change, and every minute, because a
// certificate may become valid. Thread-safe.
class CertificateStore {
 public:
  // What new connections begin with; those that have begun keep what they began with.
  struct State {
    TlsMaterial material;
    std::shared_ptr<SSL_CTX> context;  // shared: with connections of the metrics port.
    std::uint64_t generation = 0;      // From 1 on, one more for each.
  };

  // Reads the files; LoadTlsMaterial's error when they are not good. `metrics` outlives it.
  static absl::StatusOr<std::unique_ptr<CertificateStore>> Create(CertificateStoreOptions options,
                                                                  TlsMetrics& metrics);
  ~CertificateStore();
  CertificateStore(const CertificateStore&) = delete;
  CertificateStore& operator=(const CertificateStore&) = delete;

  // shared: whoever begins a connection keeps the state until it has done so. Never null.
  std::shared_ptr<const State> current() const;
  const TlsPolicy& policy() const { return options_.policy; }

  // Looks at the files every `interval` from here on, on a thread of its own.
  void Watch();
  // One such look. By one thread at a time, and not beside Watch.
  void Look();

 private:
  CertificateStore(CertificateStoreOptions options, TlsMetrics& metrics);
  absl::Status Load();
  void Run();

  const CertificateStoreOptions options_;
  TlsMetrics& metrics_;

  mutable Mutex mutex_;
  CondVar wake_;
  std::shared_ptr<const State> state_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;

  // Used by the one who looks.
  TlsFileStamps seen_{};    // At the last look,
  TlsFileStamps judged_{};  // and when the files were last read.
  std::string last_error_;  // Of that reading; empty when it was good.
  absl::Time retry_ = absl::InfiniteFuture();

  std::thread thread_;  // Last: it uses the rest.
};

}  // namespace normd

#endif  // NORMD_SERVER_TLS_CERTIFICATE_STORE_H_
