#include "server/rest/incoming_body.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/accept/client_status.h"

namespace normd {
namespace {

namespace asio = boost::asio;

// The bytes that are taken of the budgets before they come; then as many as have come.
constexpr std::uint64_t kFirstStep = std::uint64_t{64} << 10;

}  // namespace

void IncomingBody::Begin(const RestHead& head, RequestReader& reader, RestCall* call) {
  head_ = &head;
  reader_ = &reader;
  call_ = call;
  status_ = absl::OkStatus();
  body_ = RequestBody();
  granted_ = 0;
  bytes_before_ = 0;
}

IncomingBody::Progress IncomingBody::TakeBuffered() {
  if (head_->chunked) {
    return reader_->ReadChunksFrom(buffer_, [this](ConstBytes bytes) { TakeChunk(bytes); });
  }
  const std::size_t bytes = std::min<std::uint64_t>(buffer_.size(), Left());
  Try([&] {
    body_ = RequestBody(*head_->content_length, pool_, options_.pooled_bytes);
    body_.Append({static_cast<const std::byte*>(buffer_.data().data()), bytes});
  });
  reader_->Count(bytes);
  buffer_.consume(bytes);
  return Left() == 0 ? Progress::kDone : Progress::kNeedsMore;
}

void IncomingBody::TakeChunk(ConstBytes bytes) {
  Grant(std::max<std::uint64_t>(std::min(2 * granted_, reader_->limit()),
                                body_.size() + bytes.size()));
  Try([&] { body_.Append(bytes); });
}

asio::mutable_buffer IncomingBody::Room() {
  if (!head_->chunked) {
    Grant(std::min(*head_->content_length, std::max(2 * granted_, kFirstStep)));
  }
  if (ReadsAhead()) return buffer_.prepare(kReadBytes);
  const MutableBytes memory = body_.Room(std::min<std::uint64_t>(Left(), granted_ - body_.size()));
  return asio::buffer(memory.data(), memory.size());
}

IncomingBody::Progress IncomingBody::Take(std::size_t bytes) {
  if (ReadsAhead()) {
    buffer_.commit(bytes);
    return TakeBuffered();
  }
  body_.Commit(bytes);
  reader_->Count(bytes);
  return Left() == 0 ? Progress::kDone : Progress::kNeedsMore;
}

bool IncomingBody::BringsEnough() {
  const std::uint64_t bytes =
      reader_->wire_bytes() - std::exchange(bytes_before_, reader_->wire_bytes());
  const double seconds = std::chrono::duration<double>(options_.message_timeout).count();
  return options_.min_bytes_per_second > 0 &&
         static_cast<double>(bytes) >= seconds * static_cast<double>(options_.min_bytes_per_second);
}

// Has the budgets grant `bytes` in all.
void IncomingBody::Grant(std::uint64_t bytes) {
  if (!serves() || bytes <= granted_ || body_.size() < granted_) return;
  status_ = CatchAll([&] { return call_->Hold(static_cast<std::int64_t>(bytes - granted_)); });
  granted_ = bytes;
  if (!status_.ok()) body_ = RequestBody();
}

// Runs what may throw std::bad_alloc.
template <typename Act>
void IncomingBody::Try(Act act) {
  if (!serves()) return;
  status_ = CatchAll([&] {
    act();
    return absl::OkStatus();
  });
}

}  // namespace normd
