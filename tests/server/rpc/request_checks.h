// What the fuzzers of calls have in common.

#ifndef NORMD_TESTS_SERVER_RPC_REQUEST_CHECKS_H_
#define NORMD_TESTS_SERVER_RPC_REQUEST_CHECKS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "server/accept/accept.h"
#include "server/accept/description.h"
#include "server/rpc/message_codec.h"

namespace normd::testing {

// Views of `message` in memory of their own, cut after every `step` bytes.
class CutMessage {
 public:
  CutMessage(absl::string_view message, std::size_t step);
  absl::Span<const ConstBytes> views() const { return views_; }

 private:
  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<ConstBytes> views_;
};

// The messages that a unary call, or a request of ModelStreamInfer, may bring.
enum class FuzzedProtocol { kNormalize, kInfer, kStreamInfer };
const MessageCodec& CodecOf(FuzzedProtocol protocol);

// Aborts unless a request is accepted with as many bytes as its shapes ask for.
void CheckAccepted(const AcceptedRequest& accepted, const RequestDescription& description);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_REQUEST_CHECKS_H_
