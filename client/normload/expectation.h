// The responses that --verify expects.

#ifndef NORMD_CLIENT_NORMLOAD_EXPECTATION_H_
#define NORMD_CLIENT_NORMLOAD_EXPECTATION_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "client/load/sender.h"
#include "client/verify/compare.h"
#include "client/verify/reference_model.h"

namespace normd::load {

// The expected responses of one item.
struct Expectation {
  std::int64_t version = 0;  // Responses of another version are not checked.
  std::vector<client::ReferenceOutput> outputs;
};

// The expectation of the call's item; null: the response is not verified.
const Expectation* ExpectationFor(const std::vector<Expectation>& expectations,
                                  const Outgoing& outgoing);

// Sets the verdict, and the message for a wrong response; the response has the expectation's
// version.
void Verify(const Item& item, const Expectation& expectation,
            absl::Span<const client::ReceivedTensor> received, Outcome& outcome);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_EXPECTATION_H_
