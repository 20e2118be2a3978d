// The body of a request while it comes.

#ifndef NORMD_SERVER_REST_INCOMING_BODY_H_
#define NORMD_SERVER_REST_INCOMING_BODY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "base/buffer_pool.h"
#include "boost/asio/buffer.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "server/rest/request_body.h"
#include "server/rest/request_reader.h"
#include "server/rest/rest_call.h"
#include "server/rest/rest_options.h"

namespace normd {

// The bytes that a connection reads ahead at once.
inline constexpr std::size_t kReadBytes = 4096;

// Takes a body into memory that its call's budgets grant first, or discards it. Knows no socket.
class IncomingBody {
 public:
  using Progress = RequestReader::Progress;

  // Borrows all, as Begin does. `buffer` has what the connection has read ahead.
  IncomingBody(const RestOptions& options, BufferPool& pool, boost::beast::flat_buffer& buffer)
      : options_(options), pool_(pool), buffer_(buffer) {}

  // For the next request, behind its head. Without a call all is discarded.
  void Begin(const RestHead& head, RequestReader& reader, RestCall* call);
  // Discards what is left, unless it is discarded already.
  void Refuse(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  // Takes what the connection has read ahead: the beginning.
  Progress TakeBuffered();
  // Memory for more, of which Take says how many bytes have come. Room may throw std::bad_alloc.
  boost::asio::mutable_buffer Room();
  Progress Take(std::size_t bytes);

  // Whether at least min_bytes_per_second have come for message_timeout, since the last call.
  bool BringsEnough();
  // Why the body is discarded.
  const absl::Status& status() const { return status_; }
  RequestBody Release() { return std::move(body_); }

 private:
  bool serves() const { return call_ != nullptr && status_.ok(); }
  // Whether bytes come into buffer_ before they are the body's.
  bool ReadsAhead() const { return head_->chunked || !serves(); }
  std::uint64_t Left() const { return *head_->content_length - reader_->wire_bytes(); }
  void Grant(std::uint64_t bytes);
  void TakeChunk(ConstBytes bytes);
  template <typename Act>
  void Try(Act act);

  const RestOptions& options_;
  BufferPool& pool_;
  boost::beast::flat_buffer& buffer_;
  const RestHead* head_ = nullptr;
  RequestReader* reader_ = nullptr;
  RestCall* call_ = nullptr;
  absl::Status status_;
  RequestBody body_;
  std::uint64_t granted_ = 0;       // Bytes.
  std::uint64_t bytes_before_ = 0;  // When its present time began.
};

}  // namespace normd

#endif  // NORMD_SERVER_REST_INCOMING_BODY_H_
