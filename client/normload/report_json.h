// The JSON within the HTML report. It is no contract: page/page.js is its only reader.

#ifndef NORMD_CLIENT_NORMLOAD_REPORT_JSON_H_
#define NORMD_CLIENT_NORMLOAD_REPORT_JSON_H_

#include <string>

#include "client/normload/report.h"

namespace normd::load {

// As JsonReport, but each histogram has a `curve` instead of its buckets: a list of [percentile,
// microseconds], evenly spread over the nines.
std::string JsonForPage(const Report& report);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_REPORT_JSON_H_
