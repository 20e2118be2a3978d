#include "client/health.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "client/stream_transport.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
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

bool DecodeResponse(grpc::ByteBuffer& buffer, HealthStatus* status) {
  std::uint32_t value = 0;
  if (buffer.Length() > 0) {
    grpc::ProtoBufferReader stream(&buffer);
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

void CheckHealthAsync(grpc::GenericStub& stub, const std::string& service, Duration timeout,
                      absl::AnyInvocable<void(const grpc::Status&, HealthStatus) &&> done) {
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
    absl::AnyInvocable<void(const grpc::Status&, HealthStatus) &&> done;
  };
  auto call = std::make_shared<Call>();  // shared: gRPC's function has to be copyable.
  SetTimeout(call->context, timeout);
  call->request = EncodeRequest(service);
  call->done = std::move(done);
  Call& c = *call;
  stub.UnaryCall(&c.context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &c.request,
                 &c.response, [call = std::move(call)](const grpc::Status& status) {
                   HealthStatus health = HealthStatus::kUnknown;
                   const bool decoded = status.ok() && DecodeResponse(call->response, &health);
                   const bool malformed = status.ok() && !decoded;
                   std::move(call->done)(malformed ? Malformed() : status, health);
                 });
}

grpc::Status WatchHealth(grpc::GenericStub& stub, const std::string& service, Duration timeout,
                         const std::function<bool(HealthStatus)>& on_change) {
  StreamTransport stream(stub, "/grpc.health.v1.Health/Watch", timeout);
  if (stream.Write(EncodeRequest(service))) stream.WritesDone();
  while (std::optional<grpc::ByteBuffer> message = stream.Read()) {
    HealthStatus status = HealthStatus::kUnknown;
    const bool malformed = !DecodeResponse(*message, &status);
    if (!malformed && on_change(status)) continue;
    stream.Cancel();
    static_cast<void>(stream.Finish());
    return malformed ? Malformed() : grpc::Status::OK;
  }
  return stream.Finish();
}

}  // namespace normd::client
