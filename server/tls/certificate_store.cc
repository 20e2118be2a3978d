#include "server/tls/certificate_store.h"

#include <utility>

#include "spdlog/spdlog.h"

namespace normd {
namespace {

constexpr absl::Duration kRetry = absl::Minutes(1);

std::string Text(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<std::unique_ptr<CertificateStore>> CertificateStore::Create(
    CertificateStoreOptions options, TlsMetrics& metrics) {
  std::unique_ptr<CertificateStore> store(new CertificateStore(std::move(options), metrics));
  // judged_ stays empty: the files' times cannot show a change within the tick of this read, so the
  // first looks read once more.
  const absl::Status status = store->Load();
  if (!status.ok()) return status;
  return store;
}

CertificateStore::CertificateStore(CertificateStoreOptions options, TlsMetrics& metrics)
    : options_(std::move(options)), metrics_(metrics) {}

std::shared_ptr<const CertificateStore::State> CertificateStore::current() const {
  MutexLock lock(mutex_);
  return state_;
}

absl::Status CertificateStore::Load() {
  absl::StatusOr<TlsMaterial> material = LoadTlsMaterial(options_.files, options_.now());
  if (!material.ok()) return material.status();
  const std::shared_ptr<const State> old = current();
  if (old != nullptr && old->material == *material) return absl::OkStatus();
  auto context = MakeTlsContext(*material, options_.policy);
  if (!context.ok()) return context.status();
  auto state = std::make_shared<State>();
  state->generation = old != nullptr ? old->generation + 1 : 1;
  state->material = *std::move(material);
  state->context = *std::move(context);
  metrics_.SetNotAfter(absl::ToUnixSeconds(state->material.not_after));
  if (old != nullptr) metrics_.RecordReload(/*taken=*/true);
  spdlog::info("TLS: the certificate of {} is in use, valid until {}", options_.files.certificate,
               Text(state->material.not_after));
  MutexLock lock(mutex_);
  state_ = std::move(state);
  return absl::OkStatus();
}

void CertificateStore::Look() {
  const TlsFileStamps now = StampsOf(options_.files);
  const bool rested = now == std::exchange(seen_, now);
  if (!rested || (now == judged_ && options_.now() < retry_)) return;
  const absl::Status status = Load();
  // Files that changed during the read are read again.
  judged_ = StampsOf(options_.files) == now ? now : TlsFileStamps{};
  retry_ = status.ok() ? absl::InfiniteFuture() : options_.now() + kRetry;
  const std::string error(status.message());
  if (error == std::exchange(last_error_, error) || status.ok()) return;
  metrics_.RecordReload(/*taken=*/false);
  spdlog::error("TLS: the certificate in use stays, what its files hold now is not taken: {}",
                error);
}

void CertificateStore::Watch() {
  thread_.emplace("certificates", options_.interval, [this] { Look(); });
}

}  // namespace normd
