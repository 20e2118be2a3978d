#include "tests/server/rpc/codec_agreement.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "normd/v1/norm_service.pb.h"

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

void Compare(const TensorView& got, const v1::Tensor& want, std::string& differences) {
  Expect("name", got.name, want.name(), differences);
  Expect("dtype", static_cast<int>(got.dtype), static_cast<int>(want.dtype()), differences);
  Expect("shape", absl::StrJoin(got.shape, ","), absl::StrJoin(want.shape(), ","), differences);
  Expect("data_bytes", got.data_bytes, static_cast<std::int64_t>(want.data().size()), differences);
  if (Join(got.data) != want.data()) absl::StrAppend(&differences, "data differs\n");
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

std::string Disagreement(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  v1::NormalizeRequest want;
  const bool parses = want.ParseFromArray(wire.data(), static_cast<int>(wire.size()));
  const Slices slices(wire, cuts);
  const auto got = DecodeNormalizeRequest(slices.views());
  if (!got.ok()) {
    if (got.status().code() != absl::StatusCode::kInvalidArgument) return got.status().ToString();
    if (!parses || IsCap(got.status())) return "";
    return absl::StrCat("refused what protobuf accepts: ", got.status().message());
  }
  if (!parses) return "accepted what protobuf refuses";
  if (want.inputs_size() < 1 || want.inputs_size() > static_cast<int>(kMaxInputs)) {
    return absl::StrCat("accepted ", want.inputs_size(), " inputs");
  }

  std::string differences;
  Expect("model", got->model, want.model(), differences);
  Expect("version", got->version, want.version(), differences);
  Expect("priority", static_cast<int>(got->priority), static_cast<int>(want.priority()),
         differences);
  Expect("precision", static_cast<int>(got->precision), static_cast<int>(want.precision()),
         differences);
  Expect("queue_timeout_ns", got->queue_timeout_ns, want.queue_timeout_ns(), differences);
  Expect("inputs", static_cast<int>(got->inputs.size()), want.inputs_size(), differences);
  for (int i = 0; i < want.inputs_size() && differences.empty(); ++i) {
    Compare(got->inputs[static_cast<std::size_t>(i)], want.inputs(i), differences);
  }
  return differences;
}

}  // namespace normd::testing
