#include "server/metrics/families.h"

#include <cassert>
#include <string>

namespace normd {

prometheus::ClientMetric& FamilyList::NewSeries(const Family& family, Labels labels) {
  const auto [found, is_new] = indexes_.try_emplace(&family, families_.size());
  if (is_new) families_.push_back({family.name, family.help, family.type, {}});
  prometheus::ClientMetric& series = families_[found->second].metric.emplace_back();
  std::size_t next = 0;
  for (const absl::string_view value : labels) {
    assert(next < family.labels.size() && family.labels[next] != nullptr);
    series.label.push_back({family.labels[next++], std::string(value)});
  }
  assert(next == family.labels.size() || family.labels[next] == nullptr);
  return series;
}

void FamilyList::Add(const Family& family, Labels labels, double value) {
  prometheus::ClientMetric& series = NewSeries(family, labels);
  const bool counter = family.type == prometheus::MetricType::Counter;
  (counter ? series.counter.value : series.gauge.value) = value;
}

void FamilyList::Add(const Family& family, Labels labels, const Histogram& histogram) {
  assert(family.type == prometheus::MetricType::Histogram);
  NewSeries(family, labels).histogram = histogram.Collect();
}

}  // namespace normd
