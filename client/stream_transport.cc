#include "client/stream_transport.h"

#include <cstddef>
#include <utility>

namespace normd::client {
namespace {

constexpr std::size_t kMessages = 2;  // Messages that wait in each direction.

}  // namespace

std::chrono::system_clock::time_point DeadlineOf(Duration timeout) {
  using Time = std::chrono::system_clock::time_point;
  const Time now = std::chrono::system_clock::now();
  return timeout < Time::max() - now ? now + timeout : Time::max();
}

void SetTimeout(grpc::ClientContext& context, Duration timeout) {
  if (timeout != Duration::max()) context.set_deadline(DeadlineOf(timeout));
}

StreamTransport::StreamTransport(grpc::GenericStub& stub, const std::string& method,
                                 Duration timeout) {
  SetTimeout(context_, timeout);
  stub.PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
  // Until Finish, because operations begin outside gRPC's callbacks.
  AddHold();
  StartRead(&incoming_);
  StartCall();
}

bool StreamTransport::Write(const grpc::ByteBuffer& message) {
  {
    MutexLock lock(mutex_);
    while (to_write_.size() >= kMessages && !broken_) changed_.Wait(mutex_);
    if (broken_) return false;
    if (writing_) {
      to_write_.push_back(message);
      return true;
    }
    writing_ = true;
    outgoing_ = message;
  }
  StartWrite(&outgoing_);
  return true;
}

void StreamTransport::WritesDone() {
  {
    MutexLock lock(mutex_);
    while (writing_ && !broken_) changed_.Wait(mutex_);
    if (broken_) return;
  }
  StartWritesDone();
}

void StreamTransport::OnWriteDone(bool ok) {
  outgoing_.Clear();
  {
    MutexLock lock(mutex_);
    if (!ok) {
      broken_ = true;
      to_write_.clear();
    }
    writing_ = !to_write_.empty();
    changed_.SignalAll();
    if (!writing_) return;
    outgoing_ = std::move(to_write_.front());
    to_write_.pop_front();
  }
  StartWrite(&outgoing_);
}

std::optional<grpc::ByteBuffer> StreamTransport::Read() {
  std::optional<grpc::ByteBuffer> message;
  {
    MutexLock lock(mutex_);
    while (read_.empty() && !read_all_) changed_.Wait(mutex_);
    if (read_.empty()) return std::nullopt;
    message = std::move(read_.front());
    read_.pop_front();
    if (reading_ || read_all_) return message;
    reading_ = true;
  }
  StartRead(&incoming_);
  return message;
}

void StreamTransport::OnReadDone(bool ok) {
  {
    MutexLock lock(mutex_);
    if (ok) {
      read_.push_back(std::move(incoming_));
      incoming_ = grpc::ByteBuffer();
    } else {
      read_all_ = true;
    }
    reading_ = ok && read_.size() < kMessages;
    changed_.SignalAll();
    if (!reading_) return;
  }
  StartRead(&incoming_);
}

void StreamTransport::OnDone(const grpc::Status& status) {
  MutexLock lock(mutex_);
  status_ = status;
  changed_.SignalAll();
}

grpc::Status StreamTransport::Finish() {
  RemoveHold();
  MutexLock lock(mutex_);
  while (!status_.has_value()) changed_.Wait(mutex_);
  return *status_;
}

}  // namespace normd::client
