// The end of a connection whose last response is with the kernel.

#ifndef NORMD_SERVER_HTTP_CONNECTION_END_H_
#define NORMD_SERVER_HTTP_CONNECTION_END_H_

#include <openssl/ssl.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "boost/asio/any_io_executor.hpp"
#include "boost/asio/steady_timer.hpp"

namespace normd {

// The time for a client to end its side once it has the response.
inline constexpr Duration kLinger = std::chrono::seconds(2);

// Whether the client's kernel has acknowledged all that was written, or the connection is gone.
bool IsDelivered(int socket);

// Closing at once would cut off what the kernel has not delivered, and reset the connection if the
// client is still sending. Used on the thread of its executor.
class ConnectionEnd {
 public:
  // `delivered`: the socket may be closed. If not, only a reset frees what the kernel has.
  using Done = std::function<void(bool delivered)>;

  explicit ConnectionEnd(const boost::asio::any_io_executor& executor) : pause_(executor) {}

  // Ends the server's side of `stream`, whose descriptor is `socket`, and discards what comes.
  // Calls `done`, perhaps before it returns, when the client has the response and has ended its
  // side or had kLinger for it; at `deadline`; or when the client sends too much. `done` keeps this
  // object and the stream alive. Over TLS the caller bounds the time to write the close_notify.
  template <typename Stream>
  void Begin(Stream& stream, int socket, TimePoint deadline, Done done) {
    socket_ = socket;
    deadline_ = deadline;
    if constexpr (requires { typename Stream::handshake_type; }) {
      // The client's own close_notify is not waited for.
      SSL_set_shutdown(stream.native_handle(), SSL_RECEIVED_SHUTDOWN);
      stream.async_shutdown([this, done = std::move(done)](boost::system::error_code error) {
        if (socket_ < 0) return;
        error ? done(false) : EndSending(done);
      });
    } else {
      EndSending(std::move(done));
    }
  }
  // To be called before another closes the socket: `done` is not called any more.
  void Cancel();

 private:
  void EndSending(Done done);
  void Look(Done done);
  bool Discard();

  boost::asio::steady_timer pause_;
  Duration pause_length_ = std::chrono::milliseconds(5);
  int socket_ = -1;
  TimePoint deadline_ = kNever;
  bool delivered_ = false;
  std::size_t discarded_ = 0;  // Bytes.
};

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_CONNECTION_END_H_
