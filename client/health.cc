#include "client/health.h"

#include <cstdint>
#include <utility>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace normd::client {
namespace {

// The two messages have one field each, both with the number 1: a string `service` and an enum
// `status`. Written by hand, they cannot clash with the protocol's generated code when a server is
// linked into the same program.
constexpr std::uint32_t kServiceTag = (1 << 3) | 2;
constexpr std::uint32_t kStatusTag = (1 << 3) | 0;

grpc::ByteBuffer EncodeRequest(const std::string& service) {
  std::uint8_t head[16];
  std::uint8_t* end =
      google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(kServiceTag, head);
  end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(service.size(), end);
  std::string message(head, end);
  message += service;
  const grpc::Slice slice(message);
  return grpc::ByteBuffer(&slice, 1);
}

bool DecodeResponse(grpc::ByteBuffer* buffer, HealthStatus* status) {
  std::uint32_t value = 0;
  if (buffer->Length() > 0) {
    grpc::ProtoBufferReader stream(buffer);
    google::protobuf::io::CodedInputStream in(&stream);
    while (const std::uint32_t tag = in.ReadTag()) {
      const bool ok = tag == kStatusTag
                          ? in.ReadVarint32(&value)
                          : google::protobuf::internal::WireFormatLite::SkipField(&in, tag);
      if (!ok) return false;
    }
    if (!in.ConsumedEntireMessage()) return false;
  }
  if (value > static_cast<std::uint32_t>(HealthStatus::kServiceUnknown)) value = 0;
  *status = static_cast<HealthStatus>(value);
  return true;
}

grpc::Status Malformed() {
  return grpc::Status(grpc::StatusCode::INTERNAL,
                      "the server's response is not a HealthCheckResponse");
}

// Waits for the one operation in progress; false: the stream has ended.
bool Wait(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue.Next(&tag, &ok) && ok;
}

}  // namespace

const char* Name(HealthStatus status) {
  switch (status) {
    case HealthStatus::kUnknown: return "UNKNOWN";
    case HealthStatus::kServing: return "SERVING";
    case HealthStatus::kNotServing: return "NOT_SERVING";
    case HealthStatus::kServiceUnknown: return "SERVICE_UNKNOWN";
  }
  return "UNKNOWN";
}

grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                         grpc::ClientContext& context, const std::string& service,
                         HealthStatus* status) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ByteBuffer response;
  grpc::Status result;
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                          EncodeRequest(service), &queue);
  call->StartCall();
  call->Finish(&response, &result, nullptr);
  Wait(queue);
  if (result.ok() && !DecodeResponse(&response, status)) return Malformed();
  return result;
}

void CheckHealthAsync(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                      std::chrono::system_clock::time_point deadline,
                      absl::AnyInvocable<void(const grpc::Status&, HealthStatus) &&> done) {
  struct Call {
    explicit Call(const std::shared_ptr<grpc::Channel>& c) : stub(c) {}
    grpc::GenericStub stub;
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
    absl::AnyInvocable<void(const grpc::Status&, HealthStatus) &&> done;
  };
  auto call = std::make_shared<Call>(channel);  // shared: gRPC's function has to be copyable.
  call->context.set_deadline(deadline);
  call->request = EncodeRequest(service);
  call->done = std::move(done);
  Call& c = *call;
  c.stub.UnaryCall(&c.context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &c.request,
                   &c.response, [call = std::move(call)](const grpc::Status& status) {
                     HealthStatus health = HealthStatus::kUnknown;
                     const bool decoded = status.ok() && DecodeResponse(&call->response, &health);
                     const bool malformed = status.ok() && !decoded;
                     std::move(call->done)(malformed ? Malformed() : status, health);
                   });
}

grpc::Status WatchHealth(const std::shared_ptr<grpc::Channel>& channel,
                         grpc::ClientContext& context, const std::string& service,
                         const std::function<bool(HealthStatus)>& on_change) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, "/grpc.health.v1.Health/Watch", &queue);
  bool open = true;
  bool stopped = false;
  bool malformed = false;
  stream->StartCall(nullptr);
  open = Wait(queue);
  if (open) {
    stream->WriteLast(EncodeRequest(service), grpc::WriteOptions(), nullptr);
    open = Wait(queue);
  }
  while (open && !stopped && !malformed) {
    grpc::ByteBuffer message;
    HealthStatus status = HealthStatus::kUnknown;
    stream->Read(&message, nullptr);
    open = Wait(queue);
    if (!open) break;
    malformed = !DecodeResponse(&message, &status);
    stopped = malformed || !on_change(status);
  }
  if (stopped) context.TryCancel();
  grpc::Status result;
  stream->Finish(&result, nullptr);
  Wait(queue);
  if (malformed) return Malformed();
  return stopped ? grpc::Status::OK : result;
}

}  // namespace normd::client
