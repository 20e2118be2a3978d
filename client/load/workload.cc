#include "client/load/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "flags/byte_size.h"

namespace normd::load {
namespace {

constexpr std::array<const char*, 4> kPriorityNames = {"", "low", "normal", "high"};

// The seed of input `k` of an entry. No entry's first input has the seed of another entry's later
// one.
std::uint64_t SeedOf(std::uint64_t entry_seed, std::size_t k) {
  return k == 0 ? entry_seed : ~entry_seed ^ (static_cast<std::uint64_t>(k - 1) << 32);
}

bool IsOption(absl::string_view field) {
  return absl::StrContains(field, '=') || field == "stream";
}

// Applies one "key=value", or "stream"; returns the error, or an empty string.
std::string SetOption(absl::string_view option, MixEntry& entry) {
  const std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(option, absl::MaxSplits('=', 1));
  if (halves.first == "stream") {
    entry.stream_chunk_bytes =
        option == "stream" ? kDefaultChunkBytes : ParseByteSize(halves.second).value_or(0);
    if (entry.stream_chunk_bytes > 0 && entry.stream_chunk_bytes <= kMaxChunkBytes) return "";
    return absl::StrCat(option, " is not a size from 1 to 1GiB, such as 256KiB");
  }
  if (halves.first == "outputs") {
    entry.outputs = absl::StrSplit(halves.second, '+', absl::SkipEmpty());
    return entry.outputs.empty() ? absl::StrCat(option, " names no output") : "";
  }
  if (halves.first == "priority") {
    const auto name = std::find(kPriorityNames.begin() + 1, kPriorityNames.end(), halves.second);
    if (name == kPriorityNames.end()) return absl::StrCat(option, " is not low, normal or high");
    entry.priority = static_cast<Priority>(name - kPriorityNames.begin());
    return "";
  }
  if (halves.first != "timeout" && halves.first != "queue_timeout") {
    // A shape begins with a digit.
    if (halves.first.empty() || halves.second.empty() ||
        !absl::ascii_isdigit(static_cast<unsigned char>(halves.second.front()))) {
      return absl::StrCat("unknown option ", option);
    }
    absl::StatusOr<Shape> shape = client::ParseShape(halves.second);
    if (!shape.ok()) return absl::StrCat(option, ": ", shape.status().message());
    entry.SetInput(halves.first, *std::move(shape));
    return "";
  }
  absl::Duration time;
  if (!absl::ParseDuration(halves.second, &time) || time <= absl::ZeroDuration()) {
    return absl::StrCat(option, " is not a time above 0");
  }
  if (halves.first == "timeout") {
    entry.timeout = absl::ToChronoNanoseconds(time);
  } else {
    entry.queue_timeout = absl::ToChronoNanoseconds(time);
  }
  return "";
}

absl::StatusOr<MixEntry> ParseEntry(absl::string_view text) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("mix: \"", text, "\": ", what,
                                                   "; wanted model:shape:dtype:weight, such as "
                                                   "instance_norm_64:2x64x56x56:float32:3, and "
                                                   "after it y=2x512, outputs=y+mean, "
                                                   "priority=high, timeout=20ms, "
                                                   "queue_timeout=5ms or stream=1MiB"));
  };
  MixEntry entry;
  std::vector<absl::string_view> fields = absl::StrSplit(text, ':');
  std::vector<absl::string_view> options;
  for (; !fields.empty() && IsOption(fields.back()); fields.pop_back()) {
    options.push_back(fields.back());
  }
  if (fields.empty() || fields.size() > 4) {
    return wrong(absl::StrCat(fields.size(), " fields"));
  }
  entry.model = std::string(fields[0]);
  if (entry.model.empty()) return wrong("no model");
  entry.shape_from_model = fields.size() < 2 || fields[1].empty();
  if (!entry.shape_from_model) {
    absl::StatusOr<Shape> shape = client::ParseShape(fields[1]);
    if (!shape.ok()) return wrong(shape.status().message());
    entry.inputs.front().shape = *std::move(shape);
  }
  if (fields.size() > 2 && !fields[2].empty()) {
    const absl::StatusOr<norm::DType> dtype = client::ParseDType(fields[2]);
    if (!dtype.ok()) return wrong(dtype.status().message());
    entry.dtype = *dtype;
  }
  if (fields.size() > 3 && !fields[3].empty() &&
      (!absl::SimpleAtod(fields[3], &entry.weight) || !std::isfinite(entry.weight) ||
       entry.weight <= 0)) {
    return wrong("the weight is not a number above 0");
  }
  for (auto option = options.rbegin(); option != options.rend(); ++option) {
    if (const std::string error = SetOption(*option, entry); !error.empty()) return wrong(error);
  }
  return entry;
}

}  // namespace

void MixEntry::SetInput(absl::string_view name, Shape shape) {
  if (inputs.front().name.empty()) inputs.front().name = std::string(client::kFirstInput);
  for (InputShape& input : inputs) {
    if (input.name != name) continue;
    if (&input == &inputs.front()) shape_from_model = false;
    input.shape = std::move(shape);
    return;
  }
  inputs.push_back({std::string(name), std::move(shape)});
}

std::string MixEntry::ToString() const {
  std::string text = absl::StrCat(model, ":", absl::StrJoin(inputs.front().shape.dims(), "x"), ":",
                                  norm::Name(dtype));
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    absl::StrAppend(&text, ":", inputs[i].name, "=", absl::StrJoin(inputs[i].shape.dims(), "x"));
  }
  if (priority != Priority::kUnspecified) {
    absl::StrAppend(&text, ":priority=", kPriorityNames[static_cast<std::size_t>(priority)]);
  }
  if (timeout) {
    absl::StrAppend(&text, ":timeout=", absl::FormatDuration(absl::FromChrono(*timeout)));
  }
  if (queue_timeout > Duration{0}) {
    absl::StrAppend(&text,
                    ":queue_timeout=", absl::FormatDuration(absl::FromChrono(queue_timeout)));
  }
  if (!outputs.empty()) absl::StrAppend(&text, ":outputs=", absl::StrJoin(outputs, "+"));
  if (streamed()) absl::StrAppend(&text, ":stream=", FormatByteSize(stream_chunk_bytes));
  return text;
}

absl::StatusOr<std::vector<MixEntry>> ParseMix(absl::string_view text) {
  std::vector<MixEntry> mix;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    absl::StatusOr<MixEntry> entry = ParseEntry(part);
    if (!entry.ok()) return entry.status();
    mix.push_back(*std::move(entry));
  }
  return mix;
}

std::int64_t Item::input_bytes() const {
  std::int64_t bytes = 0;
  for (const client::Tensor& input : inputs) {
    bytes += static_cast<std::int64_t>(input.bytes().size());
  }
  return bytes;
}

std::vector<client::NamedTensor> Item::NamedInputs() const {
  std::vector<client::NamedTensor> named;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    named.push_back(inputs[i].named(entry.inputs[i].name));
  }
  return named;
}

std::vector<client::TensorSpec> Item::Specs() const {
  std::vector<client::TensorSpec> specs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    specs.push_back(inputs[i].spec(entry.inputs[i].name));
  }
  return specs;
}

absl::StatusOr<Workload> Workload::Create(std::vector<MixEntry> mix, std::uint64_t seed) {
  if (mix.empty()) return absl::InvalidArgumentError("mix: empty, wanted at least one entry");
  double total = 0;
  for (const MixEntry& entry : mix) total += entry.weight;
  Workload workload;
  double sum = 0;
  for (MixEntry& entry : mix) {
    const std::size_t index = workload.items_.size();
    std::vector<client::Tensor> inputs;
    for (const InputShape& input : entry.inputs) {
      const std::uint64_t input_seed = SeedOf(seed + index, inputs.size());
      absl::StatusOr<client::Tensor> tensor =
          input.values > 0 ? client::RandomIndexes(input.shape, input.values, input_seed)
                           : client::RandomTensor(entry.dtype, input.shape, 0, 1, input_seed);
      if (!tensor.ok()) return tensor.status();
      inputs.push_back(*std::move(tensor));
    }
    sum += entry.weight;
    workload.cumulative_.push_back(sum / total);
    workload.items_.push_back({index, std::move(entry), std::move(inputs)});
  }
  workload.cumulative_.back() = 1;
  return workload;
}

const Item& Workload::Pick(client::SplitMix64& random) const {
  if (items_.size() == 1) return items_.front();
  const auto it = std::upper_bound(cumulative_.begin(), cumulative_.end(), random.NextDouble());
  return items_[static_cast<std::size_t>(it - cumulative_.begin())];
}

}  // namespace normd::load
