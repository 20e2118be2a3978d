// A strict reader of Prometheus' text format, so that tests see what a scraper sees.
// Source: https://prometheus.io/docs/instrumenting/exposition_formats/

#ifndef NORMD_TESTS_SERVER_METRICS_EXPOSITION_H_
#define NORMD_TESTS_SERVER_METRICS_EXPOSITION_H_

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace normd::testing {

using Labels = std::map<std::string, std::string>;

struct Exposition {
  std::map<std::string, std::string> help;                   // By family.
  std::map<std::string, std::string> type;                   // By family.
  std::map<std::pair<std::string, Labels>, double> samples;  // By name and labels.

  // nullopt: no such series.
  std::optional<double> Value(const std::string& name, const Labels& labels = {}) const;
  // How many series have this name.
  int Count(const std::string& name) const;
};

// InvalidArgument, with the line, for anything that is not in the format, for a series that comes
// twice and for one whose family has no TYPE before it.
absl::StatusOr<Exposition> ParseExposition(absl::string_view text);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_METRICS_EXPOSITION_H_
