// A request of the Open Inference Protocol over HTTP, with binary tensors, and its response.

#ifndef NORMD_CLIENT_NORMLOAD_HTTP_MESSAGE_H_
#define NORMD_CLIENT_NORMLOAD_HTTP_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "client/load/workload.h"
#include "client/tensor/tensor.h"

namespace normd::load {

// What comes before the item's tensors: the head and the JSON. `extra`: further lines of the head,
// each with its end. The model is loaded, so its name needs no escapes.
std::string HttpRequestText(const Item& item, std::int64_t version, absl::string_view host,
                            absl::string_view extra);

struct HttpOutputs {
  std::int64_t version = 0;
  std::vector<client::TensorSpec> specs;
  std::vector<ConstBytes> bytes;  // One for each; they borrow the body.
};

// The outputs in the body of a response, which begins with `json_bytes` of JSON. Internal names
// what is wrong with it: anything but tensors in binary form, with bytes that fit the body.
absl::StatusOr<HttpOutputs> ReadHttpOutputs(ConstBytes body, std::size_t json_bytes);

// The error that a response of this HTTP status tells.
absl::Status HttpError(unsigned status, ConstBytes body);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_HTTP_MESSAGE_H_
