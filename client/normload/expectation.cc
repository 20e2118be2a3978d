#include "client/normload/expectation.h"

#include "absl/strings/str_cat.h"

namespace normd::load {

const Expectation* ExpectationFor(const std::vector<Expectation>& expectations,
                                  const Outgoing& outgoing) {
  if (!outgoing.verify || expectations.empty()) return nullptr;
  return &expectations[outgoing.item->index];
}

void Verify(const Item& item, const Expectation& expectation,
            absl::Span<const client::ReceivedTensor> received, Outcome& outcome) {
  const absl::StatusOr<client::Comparison> comparison =
      client::CompareOutputs(received, expectation.outputs);
  if (comparison.ok() && comparison->ok()) {
    outcome.verdict = Verdict::kRight;
    return;
  }
  outcome.verdict = Verdict::kWrong;
  outcome.message =
      absl::StrCat(item.entry.ToString(), ": ",
                   comparison.ok() ? client::Describe(*comparison) : comparison.status().message());
}

}  // namespace normd::load
