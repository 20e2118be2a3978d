#include "tests/server/rpc/raw_client.h"

#include <utility>
#include <vector>

#include "tests/wire/wire_writer.h"

namespace normd::testing {
namespace {

grpc::ByteBuffer ToBuffer(const std::string& wire) {
  const grpc::Slice slice(wire);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& wire, std::string* answer) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  const grpc::ByteBuffer request = ToBuffer(wire);
  grpc::ByteBuffer response;
  Mutex mutex;
  CondVar ended;
  std::optional<grpc::Status> status;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                 [&](grpc::Status result) {
                   MutexLock lock(mutex);
                   status = std::move(result);
                   ended.SignalAll();
                 });
  MutexLock lock(mutex);
  while (!status) ended.Wait(mutex);
  if (answer != nullptr) *answer = BytesOf(response);
  return *status;
}

RawStream::RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& wire)
    : stub_(channel), request_(ToBuffer(wire)) {
  stub_.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
  StartWriteLast(&request_, grpc::WriteOptions());
  StartRead(&incoming_);
  StartCall();
}

RawStream::~RawStream() {
  context_.TryCancel();
  MutexLock lock(mutex_);
  while (!done_) changed_.Wait(mutex_);
}

std::optional<std::string> RawStream::Read() {
  MutexLock lock(mutex_);
  while (messages_.empty() && !done_) changed_.Wait(mutex_);
  if (messages_.empty()) return std::nullopt;
  std::string message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

void RawStream::OnReadDone(bool ok) {
  if (!ok) return;
  {
    MutexLock lock(mutex_);
    messages_.push_back(BytesOf(incoming_));
    changed_.SignalAll();
  }
  StartRead(&incoming_);
}

void RawStream::OnDone(const grpc::Status&) {
  MutexLock lock(mutex_);
  done_ = true;
  changed_.SignalAll();
}

std::string HealthRequest(const std::string& service) { return BytesField(1, service); }

Health ParseHealth(const std::string& answer) {
  // One field, the enum `status`; left out when it is 0.
  if (answer.size() != 2 || answer[0] != 8) return Health::kUnknown;
  return static_cast<Health>(answer[1]);
}

grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                         Health* health) {
  std::string answer;
  const grpc::Status status =
      RawCall(channel, "/grpc.health.v1.Health/Check", HealthRequest(service), &answer);
  *health = ParseHealth(answer);
  return status;
}

}  // namespace normd::testing
