// A call with a stream of messages each way: its facts under one lock, and the driver that acts on
// them.
//
// Its life: the handler creates it, calls Start once and returns it to gRPC (BeginStream). Events
// (a message arrived, one was sent, a request is computed, a timer rang, the client left, a stop
// aborts it) are recorded under the lock. Then one thread at a time, the driver, acts on them. So
// no two operations on the call race, none runs under the lock, and none comes after the last,
// Finish. After it the driver touches nothing of the call: gRPC calls OnDone when the handlers have
// returned, and that drops the call's own reference.

#ifndef NORMD_SERVER_RPC_DRIVEN_STREAM_H_
#define NORMD_SERVER_RPC_DRIVEN_STREAM_H_

#include <memory>
#include <new>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/accept/call_context.h"

namespace normd {

class DrivenStream : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                     public ActiveCalls::Stream {
 public:
  // Starts to read the first message, or ends the call without reading one if its caller may not
  // make it. Never blocks.
  void Start();

  void OnCancel() final;
  void OnDone() final;
  void Abort(const absl::Status& status) final;

 protected:
  // What it holds is dropped without the lock, too.
  using Action = absl::AnyInvocable<void() &&>;

  // Both references outlive the call.
  DrivenStream(AcceptEnvironment& accept, grpc::CallbackServerContext& context,
               CallArrival arrival);

  // Counts the stream as active; it keeps itself until OnDone.
  void Enter(const std::shared_ptr<DrivenStream>& self);
  // Tells the connection's watch whether the stream reads; at first it does not.
  void SetReads(bool reads);

  // Records the facts of an event, and acts on them if no other thread does.
  template <typename Facts>
  void Record(const Facts& facts) {
    bool drive = false;
    {
      MutexLock lock(mutex_);
      facts();
      drive = BecomeDriver();
    }
    if (drive) Drive();
  }
  // Whether the caller is the driver now; it then calls Drive after releasing the lock.
  bool BecomeDriver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !std::exchange(driving_, true);
  }
  void Drive();

  // The driver's next action, which counts as taken, by the facts of a stream without or with an
  // error. Null: there is none until the next event. The last one sets `finished_`, and never
  // throws. Another one that throws fails the stream, for which it leaves nothing unfinished.
  virtual Action Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  virtual Action NextOfFailed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Counts the call when it is over.
  virtual void OnEnd() = 0;

  // Ends the stream with `status`, unless it ends already.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  AcceptEnvironment& accept_;
  grpc::CallbackServerContext& context_;
  CallContext call_;      // Before the members that it outlives.
  bool refused_ = false;  // By Start. Constant after it.

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_queue_ ABSL_GUARDED_BY(mutex_) = false;  // To cancel what waits.

 private:
  bool InternalInlineable() override { return true; }

  std::shared_ptr<DrivenStream> self_;  // shared: with an abort in progress. Until OnDone.
  bool driving_ ABSL_GUARDED_BY(mutex_) = false;
};

// The result of a service's handler: a `Stream` that is created with these arguments and started.
template <typename Stream, typename... Args>
DrivenStream* BeginStream(Args&... args) {
  try {
    const std::shared_ptr<Stream> stream = Stream::Create(args...);
    stream->Start();
    return stream.get();  // It keeps itself until gRPC is done with it.
  } catch (const std::bad_alloc&) {
    // Streams have no reactor that needs no memory; gRPC ends the call with UNIMPLEMENTED.
    return nullptr;
  }
}

}  // namespace normd

#endif  // NORMD_SERVER_RPC_DRIVEN_STREAM_H_
