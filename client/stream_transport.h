// A streaming call in bytes, for one thread that writes and one that reads.

#ifndef NORMD_CLIENT_STREAM_TRANSPORT_H_
#define NORMD_CLIENT_STREAM_TRANSPORT_H_

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"

namespace normd::client {

// The end of a call that begins now. A timeout beyond the largest time ends there.
std::chrono::system_clock::time_point DeadlineOf(Duration timeout);
// Duration::max(): no time limit.
void SetTimeout(grpc::ClientContext& context, Duration timeout);

// Write and WritesDone are called by one thread at a time, Read likewise; Cancel by any. Finish
// comes last.
//
// Keeps a few messages in each direction, so that gRPC has the next one at hand and need not wait
// for a thread to wake.
class StreamTransport final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // Begins the call.
  StreamTransport(grpc::GenericStub& stub, const std::string& method, Duration timeout);
  // Requires Finish.
  ~StreamTransport() override = default;

  // Queues a message; waits while the queue is full. False when the call takes no more.
  bool Write(const grpc::ByteBuffer& message);
  // Call after the last message. Waits until that is sent.
  void WritesDone();
  // Waits for the next message; nullopt when there will be none.
  std::optional<grpc::ByteBuffer> Read();
  void Cancel() { context_.TryCancel(); }
  // Waits for the end of the call.
  grpc::Status Finish();

 private:
  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  // For the operations in progress.
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<grpc::ByteBuffer> to_write_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<grpc::ByteBuffer> read_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  bool read_all_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_STREAM_TRANSPORT_H_
