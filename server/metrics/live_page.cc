#include "server/metrics/live_page.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>
#include <exception>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "prometheus/metric_family.h"
#include "server/metrics/page_text.h"

namespace normd {
namespace {

constexpr Duration kShared = std::chrono::seconds(1);
constexpr char kNeverStored[] =
    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: "
    "no-referrer\r\n";

// The source expression that allows exactly this inline text.
// Source: Content Security Policy Level 3, 2.3.1.
std::string HashSource(absl::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::array<unsigned char, 4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1> base64{};
  EVP_EncodeBlock(base64.data(), digest.data(), digest.size());
  return absl::StrCat("'sha256-", reinterpret_cast<const char*>(base64.data()), "'");
}

HttpResponse MakePage() {
  HttpResponse page;
  page.content_type = "text/html; charset=utf-8";
  page.fields =
      absl::StrCat(kNeverStored, "Content-Security-Policy: default-src 'none'; script-src ",
                   HashSource(kStatusPageJs), "; style-src ", HashSource(kStatusPageCss),
                   "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                   "frame-ancestors 'none'\r\n");
  page.body = std::make_shared<const std::string>(absl::StrReplaceAll(
      kStatusPageHtml, {{"{{style}}", kStatusPageCss}, {"{{script}}", kStatusPageJs}}));
  return page;
}

}  // namespace

LivePage::LivePage(Metrics& metrics, LivePageSources sources)
    : metrics_(metrics), sources_(std::move(sources)), scraper_([this] { return MakeText(); }) {
  reader_.emplace("page", kInterval, [this] { ReadTraffic(); });
}

HttpResponse LivePage::Page() const {
  // Made once: it is the same for every server of this build.
  static const HttpResponse* const page = new HttpResponse(MakePage());
  return *page;
}

void LivePage::Status(bool gzip, std::function<void(HttpResponse)> respond) {
  scraper_.Ask(gzip, [gzip, respond = std::move(respond)](Scraper::Text text) {
    if (text == nullptr) return respond({503, "text/plain; charset=utf-8", false, nullptr});
    respond({200, "application/json", gzip, std::move(text), kNeverStored});
  });
}

void LivePage::Stop() {
  reader_.reset();
  scraper_.Stop();
}

void LivePage::ReadTraffic() {
  try {
    const TimePoint now = clock_.Now();
    history_.Add(metrics_.ReadTraffic(), now);
  } catch (const std::exception&) {
    // No memory for a reading: the next interval is a longer one.
  }
}

std::string LivePage::MakeText() {
  const TimePoint now = clock_.Now();
  if (text_.empty() || now >= text_at_ + kShared) {
    text_.clear();
    text_ = MakeStatusJson(sources_.facts ? sources_.facts() : ServerFacts{}, history_.Recent(),
                           now, sources_.families());
    text_at_ = now;
  }
  return text_;
}

}  // namespace normd
