#include "server/rpc/received_message.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/retry_after.h"
#include "grpc/compression.h"
#include "grpc/grpc.h"
#include "server/accept/inflate.h"
#include "server/accept/message_limits.h"
#include "server/rpc/status.h"
#include "wire/grpc_slices.h"

// If gRPC does not inflate messages itself, it passes a compressed one on as if it were plain: only
// these functions give the flag and the encoding. Its library exports them without a public header.
std::uint32_t grpc_call_test_only_get_message_flags(grpc_call* call);
grpc_compression_algorithm grpc_call_test_only_get_compression_algorithm(grpc_call* call);

namespace normd {
namespace {

// The encoding of the last received message.
absl::StatusOr<Encoding> EncodingOf(grpc::CallbackServerContext& context) {
  constexpr std::uint32_t kCompressed = 0x80000000;  // GRPC_WRITE_INTERNAL_COMPRESS
  grpc_call* const call = context.c_call();
  // A call without a transport has none of gRPC's calls.
  if (call == nullptr || (grpc_call_test_only_get_message_flags(call) & kCompressed) == 0) {
    return Encoding::kIdentity;
  }
  switch (grpc_call_test_only_get_compression_algorithm(call)) {
    case GRPC_COMPRESS_DEFLATE: return Encoding::kDeflate;
    case GRPC_COMPRESS_GZIP: return Encoding::kGzip;
    default:
      return absl::UnimplementedError(
          "grpc-encoding: missing or unknown beside a message with the compressed flag, wanted "
          "gzip, deflate, or an uncompressed message");
  }
}

// Appends slices with the inflated bytes.
absl::Status InflateSlices(Encoding encoding, absl::Span<const ConstBytes> compressed,
                           const InflateLimits& limits, std::vector<grpc::Slice>& slices) {
  struct Part {
    std::unique_ptr<std::byte[]> memory;
    std::int64_t bytes;
  };
  std::vector<Part> parts;
  const auto room = [&](std::int64_t bytes) -> absl::StatusOr<MutableBytes> {
    if (absl::Status status = limits.take(bytes); !status.ok()) return status;
    const auto size = static_cast<std::size_t>(bytes);
    parts.push_back({std::make_unique_for_overwrite<std::byte[]>(size), bytes});
    return MutableBytes(parts.back().memory.get(), size);
  };
  const auto inflated = Inflate(encoding, compressed, {limits.max_bytes, room, "grpc-encoding"});
  if (!inflated.ok()) return inflated.status();
  std::int64_t left = *inflated;
  for (Part& part : parts) {
    const std::int64_t used = std::min(part.bytes, left);
    left -= used;
    if (used == 0) break;
    const ConstBytes written(part.memory.get(), static_cast<std::size_t>(used));
    slices.push_back(SliceHolding(written, std::move(part.memory)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMessageBytes(const grpc::ByteBuffer& message, const AcceptLimits& limits) {
  const std::int64_t most = limits.max_request_bytes + kMaxRequestOverheadBytes;
  const auto bytes = static_cast<std::int64_t>(message.Length());
  if (bytes <= most) return absl::OkStatus();
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("Received message larger than max (", bytes, " vs. ", most, ")"));
  SetRetryAfter(kNoRetry, status);
  return status;
}

absl::StatusOr<MessageViews> OpenMessage(grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& message,
                                         const InflateLimits& limits,
                                         std::vector<grpc::Slice>& slices) {
  if (!message.Valid()) {
    return absl::InvalidArgumentError(
        "request: no whole message before the client's end of the call, wanted one");
  }
  const absl::StatusOr<Encoding> encoding = EncodingOf(context);
  if (!encoding.ok()) return encoding.status();
  if (!message.Dump(&slices).ok()) {
    return absl::InvalidArgumentError("request: the message cannot be read");
  }
  if (*encoding == Encoding::kIdentity || message.Length() == 0) return ViewsOf(slices);
  const std::vector<grpc::Slice> compressed = std::exchange(slices, {});
  if (absl::Status status = InflateSlices(*encoding, ViewsOf(compressed), limits, slices);
      !status.ok()) {
    slices.clear();
    return status;
  }
  return ViewsOf(slices);
}

absl::Status ParseControl(grpc::CallbackServerContext& context, const grpc::ByteBuffer& message,
                          google::protobuf::MessageLite& parsed) {
  std::vector<grpc::Slice> slices;
  const absl::StatusOr<MessageViews> views = OpenMessage(
      context, message, {kMaxControlBytes, [](std::int64_t) { return absl::OkStatus(); }}, slices);
  if (!views.ok()) return views.status();
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    if (bytes.size() + slice.size() > static_cast<std::size_t>(kMaxControlBytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("request: ", message.Length(), " bytes, wanted at most ", kMaxControlBytes));
    }
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  if (!parsed.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("request: malformed protobuf");
  }
  return absl::OkStatus();
}

}  // namespace normd
