#include "client/retry_hint.h"

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace normd::client {
namespace {

constexpr char kKey[] = "grpc-retry-pushback-ms";

}  // namespace

void SetRetryHint(const grpc::ClientContext& context, absl::Status& status) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(kKey);
  if (found == metadata.end()) return;
  status.SetPayload(kKey,
                    absl::Cord(absl::string_view(found->second.data(), found->second.size())));
}

std::optional<RetryHint> RetryHintOf(const absl::Status& status) {
  const absl::optional<absl::Cord> text = status.GetPayload(kKey);
  if (!text) return std::nullopt;
  std::uint32_t ms = 0;
  if (!absl::SimpleAtoi(std::string(*text), &ms)) return RetryHint{false, Duration{0}};
  return RetryHint{true, std::chrono::milliseconds(ms)};
}

}  // namespace normd::client
