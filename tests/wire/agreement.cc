#include "tests/wire/agreement.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "normd/v1/norm_service.pb.h"
#include "wire/normalize_request.h"
#include "wire/normalize_response.h"

namespace normd::testing {
namespace {

// Refusals of messages that protobuf itself would parse.
bool IsCap(const absl::Status& status) {
  return absl::StrContains(status.message(), "wanted at most") ||
         absl::StrContains(status.message(), "wanted at least one");
}

template <typename A, typename B>
void Expect(absl::string_view field, const A& got, const B& want, std::string& differences) {
  if (got != want) absl::StrAppend(&differences, field, ": got ", got, ", want ", want, "\n");
}

void Compare(const ReceivedTensor& got, const v1::Tensor& want, std::string& differences) {
  Expect("name", got.name, want.name(), differences);
  Expect("dtype", static_cast<int>(got.dtype), static_cast<int>(want.dtype()), differences);
  Expect("shape", absl::StrJoin(got.shape, ","), absl::StrJoin(want.shape(), ","), differences);
  Expect("data_bytes", got.data_bytes, static_cast<std::int64_t>(want.data().size()), differences);
  if (Join(got.data) != want.data()) absl::StrAppend(&differences, "data differs\n");
  for (const ConstBytes view : got.data) {
    if (view.empty()) absl::StrAppend(&differences, "an empty view\n");
  }
}

template <typename Tensors>
void CompareAll(const ReceivedTensors& got, const Tensors& want, std::string& differences) {
  Expect("tensors", static_cast<int>(got.size()), want.size(), differences);
  for (int i = 0; i < want.size() && differences.empty(); ++i) {
    Compare(got[static_cast<std::size_t>(i)], want[i], differences);
  }
}

std::string Compare(const NormalizeRequestView& got, const v1::NormalizeRequest& want) {
  std::string differences;
  Expect("model", got.model, want.model(), differences);
  Expect("version", got.version, want.version(), differences);
  Expect("priority", static_cast<int>(got.priority), static_cast<int>(want.priority()),
         differences);
  Expect("precision", static_cast<int>(got.precision), static_cast<int>(want.precision()),
         differences);
  Expect("queue_timeout_ns", got.queue_timeout_ns, want.queue_timeout_ns(), differences);
  if (got.inputs.empty() || got.inputs.size() > kMaxTensors) {
    absl::StrAppend(&differences, "accepted ", got.inputs.size(), " inputs");
  }
  CompareAll(got.inputs, want.inputs(), differences);
  return differences;
}

std::string Compare(const NormalizeResponseView& got, const v1::NormalizeResponse& want) {
  std::string differences;
  Expect("model", got.model, want.model(), differences);
  Expect("version", got.version, want.version(), differences);
  Expect("stages", got.stages.SerializeAsString(), want.stages().SerializeAsString(), differences);
  Expect("batch", got.batch.SerializeAsString(), want.batch().SerializeAsString(), differences);
  if (got.outputs.size() > kMaxTensors) {
    absl::StrAppend(&differences, "accepted ", got.outputs.size(), " outputs");
  }
  CompareAll(got.outputs, want.outputs(), differences);
  return differences;
}

template <typename Generated, typename Decode>
std::string Disagreement(absl::string_view wire, absl::Span<const std::size_t> cuts,
                         Decode decode) {
  Generated want;
  const bool parses = want.ParseFromArray(wire.data(), static_cast<int>(wire.size()));
  const Slices slices(wire, cuts);
  const auto got = decode(slices.views());
  if (!got.ok()) {
    if (got.status().code() != absl::StatusCode::kInvalidArgument) return got.status().ToString();
    if (!parses || IsCap(got.status())) return "";
    return absl::StrCat("refused what protobuf accepts: ", got.status().message());
  }
  if (!parses) return "accepted what protobuf refuses";
  return Compare(*got, want);
}

}  // namespace

Slices::Slices(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  std::size_t begin = 0;
  auto add = [&](std::size_t end) {
    const std::size_t size = end - begin;
    auto memory = std::make_unique<std::byte[]>(size);
    if (size > 0) std::memcpy(memory.get(), wire.data() + begin, size);
    views_.emplace_back(memory.get(), size);
    memory_.push_back(std::move(memory));
    begin = end;
  };
  for (const std::size_t cut : cuts) add(std::min(cut, wire.size()));
  add(wire.size());
}

std::string Join(absl::Span<const ConstBytes> views) {
  std::string joined;
  for (const ConstBytes view : views) {
    joined.append(reinterpret_cast<const char*>(view.data()), view.size());
  }
  return joined;
}

std::string RequestDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  return Disagreement<v1::NormalizeRequest>(wire, cuts, DecodeNormalizeRequest);
}

std::string ResponseDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  return Disagreement<v1::NormalizeResponse>(wire, cuts, DecodeNormalizeResponse);
}

}  // namespace normd::testing
