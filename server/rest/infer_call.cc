#include "server/rest/infer_call.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/accept/client_status.h"
#include "server/accept/inflate.h"
#include "server/accept/message_limits.h"
#include "server/infer/infer_description.h"
#include "wire/data_type.h"
#include "wire/infer_json_response.h"

namespace normd {
namespace {

// More JSON takes longer than other connections of a thread should wait.
constexpr std::size_t kLongJson = std::size_t{64} << 10;

absl::StatusOr<std::optional<std::int64_t>> JsonBytesOf(const RestHead& head, std::size_t body) {
  if (head.json_bytes.empty()) return std::optional<std::int64_t>();
  std::uint64_t bytes = 0;
  const bool digits = head.json_bytes.find_first_not_of("0123456789") == std::string::npos;
  if (digits && absl::SimpleAtoi(head.json_bytes, &bytes) && bytes <= body) {
    return std::optional<std::int64_t>(static_cast<std::int64_t>(bytes));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Inference-Header-Content-Length: \"", Printable(head.json_bytes, 32),
                   "\", wanted a number of bytes up to the body's ", body));
}

absl::StatusOr<Encoding> EncodingOf(const RestHead& head) {
  const std::string name = absl::AsciiStrToLower(head.content_encoding);
  if (name.empty() || name == "identity") return Encoding::kIdentity;
  if (name == "gzip") return Encoding::kGzip;
  if (name == "deflate") return Encoding::kDeflate;
  return absl::UnimplementedError(absl::StrCat("Content-Encoding: \"", Printable(name, 32),
                                               "\", wanted gzip, deflate or none"));
}

}  // namespace

InferCall::InferCall(RestEnvironment& environment, const RestArrival& arrival, Reply reply)
    : RestCall(environment, arrival, Method::kInfer, std::move(reply)),
      exchange_(environment.accept, context_) {}

std::int64_t InferCall::max_body_bytes() const {
  return environment_.accept.limits.max_request_bytes + kMaxRequestOverheadBytes;
}

void InferCall::Run(RequestBody body) {
  body_ = std::move(body);
  // As over gRPC, a call's time begins when its message is there.
  context_.SetArrival(environment_.accept.clock.Now());
  const auto json = JsonBytesOf(head_, body_.size());
  // A compressed body may inflate to any length.
  const bool is_long = !head_.content_encoding.empty() ||
                       (json.ok() && static_cast<std::size_t>(json->value_or(
                                         static_cast<std::int64_t>(body_.size()))) > kLongJson);
  if (!is_long) return Begin();
  environment_.later([this] { Begin(); });
}

void InferCall::Begin() {
  const absl::Status status = CatchAll([this] { return Accept(); });
  // After an accepted Push the call may have ended: do not touch it any more.
  if (status.ok()) return;
  exchange_.LetGo();
  exchange_.LetHeldGo();
  body_ = RequestBody();  // The client may take its time to read the reason.
  Finish(OfModel(status));
}

absl::Status InferCall::OfModel(const absl::Status& status) {
  // A refusal by rights or budgets stays as it is.
  const bool unread = absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
  if (!unread || context_.model() != nullptr) return status;
  absl::Status found;
  const absl::Status looked = CatchAll([&] {
    InferRequestView path;
    path.model = route_.model;
    path.version = route_.version;
    const auto request = DescribeInferRequest(std::move(path));
    if (request.ok()) found = AcceptModel(environment_.accept, context_, *request);
    return request.status();
  });
  const bool denied = absl::IsPermissionDenied(found) || absl::IsUnauthenticated(found);
  return looked.ok() && denied ? found : status;
}

absl::Status InferCall::Accept() {
  absl::Status status = exchange_.Receive(static_cast<std::int64_t>(body_.size()));
  if (status.ok()) status = Inflate();
  if (!status.ok()) return status;
  absl::StatusOr<RequestDescription> description = Decode();
  if (!description.ok()) return description.status();
  absl::StatusOr<std::unique_ptr<Request>> request = exchange_.Accept(*std::move(description));
  if (!request.ok()) return request.status();
  // The text in front of binary tensors is kept with them.
  if (body_.size() > 0) {
    const auto text = JsonBytesOf(head_, body_.size());
    status = exchange_.Hold(text.ok() ? text->value_or(0) : 0);
    if (!status.ok()) return status;
  }
  (*request)->done = [this](Completion&& completion) { Complete(std::move(completion)); };
  pushed_.store((*request)->id, std::memory_order_relaxed);
  return environment_.accept.queue.Push(*request);
}

absl::Status InferCall::Inflate() {
  const absl::StatusOr<Encoding> encoding = EncodingOf(head_);
  if (!encoding.ok()) return encoding.status();
  if (*encoding == Encoding::kIdentity) return absl::OkStatus();
  RequestBody inflated;
  std::size_t before = 0;
  const auto room = [&](std::int64_t bytes) -> absl::StatusOr<MutableBytes> {
    if (absl::Status status = exchange_.Hold(bytes); !status.ok()) return status;
    inflated.Commit(before);
    before = static_cast<std::size_t>(bytes);
    return inflated.Room(before);
  };
  const auto total =
      normd::Inflate(*encoding, {body_.bytes()}, {max_body_bytes(), room, "Content-Encoding"});
  if (!total.ok()) return total.status();
  inflated.Commit(static_cast<std::size_t>(*total) - inflated.size());
  body_ = std::move(inflated);
  return absl::OkStatus();
}

absl::StatusOr<RequestDescription> InferCall::Decode() {
  const auto json_bytes = JsonBytesOf(head_, body_.size());
  if (!json_bytes.ok()) return json_bytes.status();
  const InferJsonBody body = {body_.bytes(), *json_bytes};
  const auto take = [this](std::int64_t bytes) { return exchange_.Hold(bytes); };
  absl::StatusOr<InferJsonRequest> decoded = DecodeInferJson(body, take);
  if (!decoded.ok()) return decoded.status();
  InferRequestView& view = decoded->view;
  view.model = route_.model;
  view.version = route_.version;
  all_binary_ = decoded->all_binary;
  for (std::size_t i = 0; i < view.outputs.size(); ++i) {
    wanted_.emplace_back(view.outputs[i].name, decoded->binary[i]);
  }
  // What the request keeps of a text is its own; only binary tensors lie in the body.
  const bool only_text =
      !json_bytes->has_value() || **json_bytes == static_cast<std::int64_t>(body_.size());
  absl::StatusOr<RequestDescription> description = DescribeInferRequest(std::move(view));
  if (only_text) body_ = RequestBody();
  return description;
}

bool InferCall::IsBinary(absl::string_view output) const {
  for (const auto& [name, binary] : wanted_) {
    if (name.empty() || name == output) return binary;
  }
  return all_binary_;
}

void InferCall::Complete(Completion&& completion) {
  completion_ = std::move(completion);
  std::size_t text = 0;
  for (std::size_t k = 0; k < completion_.outputs.size(); ++k) {
    if (!IsBinary(context_.model()->outputs()[k].name)) text += completion_.outputs[k].size();
  }
  const bool is_later = text * 2 > kLongJson && CatchAll([this] {
                                                  environment_.later([this] { End(); });
                                                  return absl::OkStatus();
                                                }).ok();
  if (!is_later) End();
}

void InferCall::End() {
  const absl::Status status = exchange_.End(
      completion_, [this](ResponseDescription&& response) { return Encode(std::move(response)); });
  body_ = RequestBody();
  if (status.ok()) Compress();
  stages_ = completion_.stages;
  batch_ = std::move(completion_.batch);
  Finish(status);
}

// Without room for a second text beside the first, the response goes as it is.
void InferCall::Compress() {
  if (head_.accept_encoding.empty() || !reply_.data.empty()) return;
  const absl::Status held =
      CatchAll([this] { return exchange_.Hold(static_cast<std::int64_t>(reply_.text.size())); });
  if (held.ok()) CompressReply(head_.accept_encoding, reply_);
}

absl::StatusOr<std::int64_t> InferCall::Encode(ResponseDescription&& response) {
  absl::InlinedVector<InferJsonOutput, kInlinedOutputs> outputs;
  for (OutputDescription& output : response.outputs) {
    InferJsonOutput& out = outputs.emplace_back();
    out.name = output.name;
    out.dtype = output.dtype;
    out.shape = output.shape;
    if (output.region != nullptr) {
      out.shared_memory = {output.region->region, output.region->offset, output.region->bytes};
      continue;
    }
    out.data = {output.data.data(), output.data.size()};
    out.binary = IsBinary(output.name);
  }
  const std::string version = absl::StrCat(response.version);
  const auto take = [this](std::int64_t bytes) { return exchange_.Hold(bytes); };
  auto text = EncodeInferJson({response.model, version, response.id, outputs}, take);
  if (!text.ok()) return text.status();
  reply_.text = *std::move(text);
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].binary) reply_.data.push_back(std::move(response.outputs[k].data));
  }
  return static_cast<std::int64_t>(reply_.body_bytes());
}

void InferCall::Leave() {
  RestCall::Leave();
  environment_.accept.queue.Cancel(pushed_.load(std::memory_order_relaxed));
}

}  // namespace normd
