#include "server/accept/request_ids.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace normd {
namespace {

// A traceparent is version-trace-parent-flags, 00-<32 digits>-<16 digits>-00.
constexpr std::size_t kTraceBegin = 3;
constexpr std::size_t kTraceDigits = 32;
constexpr std::size_t kParentBegin = 36;
constexpr std::size_t kParentDigits = 16;
constexpr std::size_t kFlagsBegin = 53;
constexpr std::size_t kTraceParentBytes = 55;

bool IsRequestId(absl::string_view text) {
  constexpr absl::string_view kOthers = "._:/+=@-";
  return !text.empty() && text.size() <= kMaxRequestIdBytes &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  kOthers.find(c) != absl::string_view::npos;
         });
}

bool IsHex(absl::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

bool IsHexButZero(absl::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != absl::string_view::npos;
}

bool IsTraceParent(absl::string_view text) {
  if (text.size() < kTraceParentBytes || text.size() > kMaxRequestIdBytes) return false;
  const absl::string_view version = text.substr(0, 2);
  if (!IsHex(version) || version == "ff") return false;
  // A later version may append fields, which are repeated to the caller and not read.
  if (text.size() > kTraceParentBytes) {
    const bool graphic = std::all_of(text.begin(), text.end(), [](char c) {
      return absl::ascii_isgraph(static_cast<unsigned char>(c));
    });
    if (version == "00" || text[kTraceParentBytes] != '-' || !graphic) return false;
  }
  return text[kTraceBegin - 1] == '-' && text[kParentBegin - 1] == '-' &&
         text[kFlagsBegin - 1] == '-' && IsHexButZero(text.substr(kTraceBegin, kTraceDigits)) &&
         IsHexButZero(text.substr(kParentBegin, kParentDigits)) &&
         IsHex(text.substr(kFlagsBegin, 2));
}

}  // namespace

absl::string_view RequestIds::trace_id() const {
  if (traceparent.empty()) return {};
  return absl::string_view(traceparent).substr(kTraceBegin, kTraceDigits);
}

RequestIds FitRequestIds(absl::string_view request_id, absl::string_view traceparent) {
  RequestIds ids;
  if (IsRequestId(request_id)) ids.request_id = std::string(request_id);
  if (IsTraceParent(traceparent)) ids.traceparent = std::string(traceparent);
  return ids;
}

}  // namespace normd
