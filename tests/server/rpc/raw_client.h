// Calls in bytes: for messages that are no messages, and for services without generated code here
// (health, reflection).

#ifndef NORMD_TESTS_SERVER_RPC_RAW_CLIENT_H_
#define NORMD_TESTS_SERVER_RPC_RAW_CLIENT_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace normd::testing {

// The bytes of a message; none if it cannot be read.
std::string BytesOf(const grpc::ByteBuffer& buffer);

// A unary call of `method` ("/package.Service/Method") with the message `wire`.
grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& wire, std::string* answer = nullptr);

// A streaming call that sends one message and reads any number. Cancelled on destruction.
class RawStream final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
            const std::string& wire);
  ~RawStream() override;

  // Waits for the next message; nullopt when the stream has ended.
  std::optional<std::string> Read();

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer incoming_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> messages_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

// grpc.health.v1.HealthCheckRequest, and the response's status.
std::string HealthRequest(const std::string& service);
enum class Health { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };
Health ParseHealth(const std::string& answer);
// Health/Check; an error for a service that the server does not know.
grpc::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                         Health* health);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_RAW_CLIENT_H_
