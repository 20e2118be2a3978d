// One unary request of either protocol, from its message and the names that its call brings to its
// response or refusal and to its lines of the logs. The input: a byte that says which message it is
// and how it is cut; a request id and a traceparent, each up to the end of a line; the
// message.

#include <grpc/grpc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "google/protobuf/stubs/logging.h"
#include "inference/grpc_service.pb.h"
#include "nlohmann/json.hpp"
#include "normd/v1/norm_service.pb.h"
#include "server/accept/accept.h"
#include "server/accept/audit_log.h"
#include "server/rpc/infer_messages.h"
#include "tests/fuzz/expect.h"
#include "tests/server/rpc/script_models.h"
#include "tests/support/fake_clock.h"

namespace normd::testing {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxMessageBytes = 1000;
constexpr char kPeer[] = "ipv4:192.0.2.1:4711";

using Field = std::pair<const char*, absl::string_view>;

// A line of a log has one object, which says what came under each field, or nothing if that is
// empty.
void ExpectLine(const std::string& line, std::initializer_list<Field> fields) {
  Expect(std::none_of(line.begin(), line.end(), [](char c) { return absl::ascii_iscntrl(c); }),
         "a line of a log is one line", line);
  const json object = json::parse(line, nullptr, false);
  Expect(object.is_object(), "a line of a log is JSON", line);
  for (const auto& [field, came] : fields) {
    if (came.empty()) continue;
    Expect(object.at(field).get_ref<const std::string&>() == came, "a line says what came", line);
  }
}

// How many outputs the response to a request has that was accepted: those that it names, or all but
// those on request that it does not name.
std::size_t WantedOutputs(const Model& model, const RequestDescription& request) {
  if (request.only_named_outputs && !request.outputs.empty()) return request.outputs.size();
  std::size_t count = 0;
  for (const TensorSignature& output : model.outputs()) {
    const bool named = std::any_of(request.outputs.begin(), request.outputs.end(),
                                   [&](const auto& wanted) { return wanted.name == output.name; });
    count += output.on_request && !named ? 0 : 1;
  }
  return count;
}

OutputBuffers MakeOutputs(const Geometry& geometry) {
  OutputBuffers outputs;
  for (const auto& output : geometry.outputs) {
    const auto size = static_cast<std::size_t>(output.bytes);
    auto* const memory = new std::byte[size]();
    outputs.emplace_back(memory, size, [memory] { delete[] memory; });
  }
  return outputs;
}

std::string Bytes(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  Expect(message.Dump(&slices).ok(), "a response is a message");
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  return bytes;
}

// What `protocol` writes, its generated class reads.
void CheckResponse(FuzzedProtocol protocol, const std::string& bytes, const std::string& id,
                   std::size_t outputs) {
  std::size_t count = 0;
  if (protocol == FuzzedProtocol::kNormalize) {
    v1::NormalizeResponse response;
    Expect(response.ParseFromString(bytes), "a response parses", bytes);
    count = static_cast<std::size_t>(response.outputs_size());
  } else {
    inference::ModelStreamInferResponse streamed;
    inference::ModelInferResponse& response = *streamed.mutable_infer_response();
    Expect(protocol == FuzzedProtocol::kInfer ? response.ParseFromString(bytes)
                                              : streamed.ParseFromString(bytes),
           "a response parses", bytes);
    Expect(streamed.infer_response().id() == id, "a response has its request's id", id);
    count = static_cast<std::size_t>(streamed.infer_response().raw_output_contents_size());
  }
  Expect(count == outputs, "an output each");
}

class RequestPlay {
 public:
  RequestPlay(Script& script, FuzzedProtocol protocol, const RequestIds& ids)
      : admission_({}, ScriptModels::Get().metrics()),
        queue_({}, clock_),
        log_({.slow_threshold = Duration(0), .sample_every = 1},
             [this](const std::string& line) { line_ = line; }),
        accept_{{.max_request_bytes = ScriptModels::kMaxRequestBytes, .stream = {}},
                ScriptModels::Get().registry(),
                admission_,
                queue_,
                ScriptModels::Get().metrics(),
                clock_,
                &log_},
        protocol_(protocol),
        ids_(ids),
        message_(script.Rest()) {}
  ~RequestPlay() { queue_.Close(); }

  void Run(std::size_t step) {
    {
      CallArrival arrival;
      arrival.at = clock_.Now();
      arrival.caller = accept_.callers.Find(kPeer);
      arrival.ids = ids_;
      CallContext call(accept_, std::move(arrival));
      const CutMessage cut(message_, step);
      const absl::Status told = call.End(Perform(call, cut.views()));
      if (!told.ok()) ExpectMessage(told.message(), kMaxMessageBytes);
      call.RecordAndLog({}, {});
    }
    ExpectLine(line_, {{"request_id", ids_.request_id}, {"trace_id", ids_.trace_id()}});
    Expect(admission_.inflight_bytes() == 0 && admission_.inflight_requests() == 0,
           "an ended call holds nothing of the budgets");
    Expect(accept_.active.count() == 0, "an ended call is not counted");
  }

 private:
  absl::Status Perform(CallContext& call, absl::Span<const ConstBytes> views) {
    const MessageCodec& codec = CodecOf(protocol_);
    absl::StatusOr<RequestDescription> description = codec.Decode(views);
    if (!description.ok()) {
      // EncodeInferError repeats the id.
      grpc::ByteBuffer error = EncodeInferError("refused", codec.IdOf(views));
      inference::ModelStreamInferResponse response;
      Expect(response.ParseFromString(Bytes(error)), "a refusal with an id parses", message_);
      return description.status();
    }
    call.SetAskedModel(description->model);
    WriteAuditLine(description->model);
    AcceptedRequest accepted;
    if (absl::Status status = AcceptRequest(accept_, call, *description, accepted); !status.ok()) {
      return status;
    }
    CheckAccepted(accepted, *description);
    Completion completion;
    completion.outputs = MakeOutputs(accepted.geometry());
    absl::StatusOr<ResponseDescription> response = MakeResponse(call, accepted, completion);
    if (!response.ok()) return response.status();
    response->id = description->id;
    const std::size_t outputs = response->outputs.size();
    Expect(outputs == WantedOutputs(*call.model(), *description),
           "the outputs that are asked for, or all but those on request");
    CheckResponse(protocol_, Bytes(codec.Encode(*std::move(response))), description->id, outputs);
    return absl::OkStatus();
  }

  void WriteAuditLine(absl::string_view model) {
    std::string line;
    AuditLog audit(clock_, [&line](const std::string& written) { line = written; });
    audit.Write({AuditRecord::Event::kDenied, "nobody", "infer", "Normalize", model, kPeer,
                 ids_.request_id, absl::StatusCode::kPermissionDenied});
    ExpectLine(line, {{"request_id", ids_.request_id}});
  }

  FakeClock clock_;
  Admission admission_;
  BatchQueue queue_;
  std::string line_;
  RequestLog log_;
  AcceptEnvironment accept_;
  const FuzzedProtocol protocol_;
  const RequestIds ids_;
  const absl::string_view message_;
};

// What is repeated to the caller and to the logs is as it came or not there.
RequestIds TakeIds(absl::string_view request_id, absl::string_view traceparent) {
  RequestIds ids = FitRequestIds(request_id, traceparent);
  Expect(ids.request_id.empty() || ids.request_id == request_id, "an id is as it came");
  Expect(ids.traceparent.empty() || ids.traceparent == traceparent, "a traceparent likewise");
  for (const std::string& id : {ids.request_id, ids.traceparent}) {
    Expect(id.size() <= kMaxRequestIdBytes, "an id is short", id);
    Expect(std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 127; }),
           "an id is plain", id);
  }
  Expect(ids.traceparent.empty() || ids.trace_id().size() == 32, "a trace has 32 digits");
  return ids;
}

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Protobuf logs each text that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  using normd::testing::Script;
  Script script(data, size);
  const int first = script.Byte();
  const absl::string_view request_id = script.Until('\n');
  const normd::RequestIds ids = normd::testing::TakeIds(request_id, script.Until('\n'));
  normd::testing::RequestPlay play(script, static_cast<normd::testing::FuzzedProtocol>(first % 3),
                                   ids);
  play.Run(first / 3 % 2 == 0 ? 1 << 20 : static_cast<std::size_t>(first / 6 + 1));
  return 0;
}
