#include "client/scrape/metrics_text.h"

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace normd::client {
namespace {

// Takes `name="value"` off the front, with the value's escapes. False if it is not there.
bool TakeLabel(absl::string_view& text, std::map<std::string, std::string>& labels) {
  const std::size_t equals = text.find("=\"");
  if (equals == absl::string_view::npos) return false;
  std::string& value = labels[std::string(absl::StripAsciiWhitespace(text.substr(0, equals)))];
  text.remove_prefix(equals + 2);
  while (!text.empty() && text.front() != '"') {
    if (text.front() == '\\' && text.size() > 1) {
      text.remove_prefix(1);
      value += text.front() == 'n' ? '\n' : text.front();
    } else {
      value += text.front();
    }
    text.remove_prefix(1);
  }
  return absl::ConsumePrefix(&text, "\"");
}

bool ParseSample(absl::string_view line, MetricSample& sample) {
  const std::size_t end = line.find_first_of("{ \t");
  if (end == 0 || end == absl::string_view::npos) return false;
  sample.name = std::string(line.substr(0, end));
  line.remove_prefix(end);
  if (absl::ConsumePrefix(&line, "{")) {
    while (!absl::ConsumePrefix(&line, "}")) {
      if (!TakeLabel(line, sample.labels)) return false;
      absl::ConsumePrefix(&line, ",");
    }
  }
  // A timestamp may follow the value.
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  return !fields.empty() && fields.size() <= 2 && absl::SimpleAtod(fields[0], &sample.value);
}

std::string LabelOf(const MetricSample& sample, const char* name) {
  const auto it = sample.labels.find(name);
  return it == sample.labels.end() ? "" : it->second;
}

// Adds one of a histogram's three kinds of series; `suffix` is the rest of its name.
void AddToHistogram(const MetricSample& sample, absl::string_view suffix, HistogramGrowth& h) {
  if (suffix == "_count") h.count += sample.value;
  if (suffix == "_sum") h.sum_s += sample.value;
  double bound = 0;
  if (suffix == "_bucket" && absl::SimpleAtod(LabelOf(sample, "le"), &bound)) {
    h.below[bound] += sample.value;
  }
}

}  // namespace

absl::StatusOr<std::vector<MetricSample>> ParseMetrics(absl::string_view text) {
  std::vector<MetricSample> samples;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    MetricSample sample;
    if (!ParseSample(line, sample)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", line.substr(0, 80), "\" is no line of metrics"));
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

double HistogramGrowth::Quantile(double share) const {
  if (count <= 0) return 0;
  const double rank = share * count;
  double lower_bound = 0;
  double lower_count = 0;
  for (const auto& [bound, cumulative] : below) {
    if (std::isinf(bound)) break;
    if (cumulative >= rank && cumulative > lower_count) {
      return lower_bound +
             (bound - lower_bound) * (rank - lower_count) / (cumulative - lower_count);
    }
    lower_bound = bound;
    lower_count = cumulative;
  }
  return lower_bound;
}

ServerGrowth GrowthBetween(const std::vector<MetricSample>& before,
                           const std::vector<MetricSample>& after) {
  std::map<std::pair<std::string, std::map<std::string, std::string>>, double> start;
  for (const MetricSample& sample : before) start[{sample.name, sample.labels}] = sample.value;

  ServerGrowth growth;
  std::map<std::string, ServerGrowth::Model> models;
  for (MetricSample sample : after) {
    const auto it = start.find({sample.name, sample.labels});
    if (it != start.end()) sample.value -= it->second;
    absl::string_view suffix = sample.name;
    if (absl::ConsumePrefix(&suffix, "normd_stage_duration_seconds")) {
      AddToHistogram(sample, suffix,
                     models[LabelOf(sample, "model")].stages[LabelOf(sample, "stage")]);
    } else if (absl::ConsumePrefix(&suffix, "normd_request_duration_seconds")) {
      const std::string method = LabelOf(sample, "method");
      const bool unary = method == "Normalize" || method == "ModelInfer" || method == "Infer";
      if (!unary && method != "NormalizeStream") continue;
      ServerGrowth::Model& model = models[LabelOf(sample, "model")];
      AddToHistogram(sample, suffix, unary ? model.request : model.stream);
    } else if (sample.name == "normd_lane_busy_seconds_total") {
      growth.lane_busy_s[absl::StrCat(LabelOf(sample, "device"), " ", LabelOf(sample, "lane"))] +=
          sample.value;
    } else if (sample.name == "process_cpu_seconds_total") {
      growth.cpu_s += sample.value;
    }
  }
  for (auto& [name, model] : models) {
    // Requests of no model were cancelled or refused before any stage.
    if (name.empty() || model.request.count + model.stream.count <= 0) continue;
    model.model = name;
    growth.models.push_back(std::move(model));
  }
  return growth;
}

}  // namespace normd::client
