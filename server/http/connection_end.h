// The end of a connection whose last response is with the kernel.

#ifndef NORMD_SERVER_HTTP_CONNECTION_END_H_
#define NORMD_SERVER_HTTP_CONNECTION_END_H_

#include <openssl/ssl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "boost/asio/any_io_executor.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/system/error_code.hpp"

namespace normd {

// The time for a client to end its side once it has the response.
inline constexpr Duration kLinger = std::chrono::seconds(2);

// What was written and the client's kernel has not acknowledged; 0 if the connection is gone.
std::int64_t UndeliveredBytes(int socket);

// Closing at once would cut off what the kernel has not delivered, and reset the connection if the
// client is still sending. Used on the thread of its executor.
class ConnectionEnd {
 public:
  // Closes the socket: if not `delivered`, by a reset, which frees what the kernel has.
  using Done = std::function<void(bool delivered)>;

  explicit ConnectionEnd(const boost::asio::any_io_executor& executor) : pause_(executor) {}

  // Ends the server's side of `stream`, which is over `socket`, and discards what comes.
  // Calls `done`, perhaps before it returns, when the client has the response and has ended its
  // side or had kLinger for it; at `deadline`; if the client sends too much; for lack of memory.
  // `done` keeps this object and the stream alive. Over TLS the caller bounds the time to write the
  // close_notify.
  template <typename Stream, typename Socket>
  void Begin(Stream& stream, Socket& socket, TimePoint deadline, Done then) {
    const auto done = std::make_shared<const Done>(std::move(then));
    socket_ = socket.native_handle();
    deadline_ = deadline;
    await_bytes_ = [&socket](Wake wake) { socket.async_wait(Socket::wait_read, std::move(wake)); };
    if constexpr (requires { typename Stream::handshake_type; }) {
      // The client's own close_notify is not waited for.
      SSL_set_shutdown(stream.native_handle(), SSL_RECEIVED_SHUTDOWN);
      stream.async_shutdown([this, done](boost::system::error_code error) {
        if (socket_ < 0) return;
        error ? Finish(done, false) : EndSending(done);
      });
    } else {
      EndSending(done);
    }
  }
  // To be called before another closes the socket: `done` is not called any more.
  void Cancel();

 private:
  using SharedDone = std::shared_ptr<const Done>;  // shared: by the handlers.

  // A handler. Asio copies it, for which there may be no memory: it needs none.
  struct Wake {
    ConnectionEnd& end;
    bool by_bytes;
    SharedDone done;

    void operator()(boost::system::error_code error) const {
      if (by_bytes) end.awaits_bytes_ = false;
      if (!error && end.socket_ >= 0) end.Look(done);
    }
  };

  void EndSending(const SharedDone& done);
  void Look(const SharedDone& done);
  void LookLater(TimePoint now, bool client_ended, const SharedDone& done);
  void Finish(const SharedDone& done, bool delivered);
  bool Discard();

  // Calls its argument when the client sends something or ends its side.
  std::function<void(Wake)> await_bytes_;
  bool awaits_bytes_ = false;
  boost::asio::steady_timer pause_;
  Duration pause_length_ = std::chrono::milliseconds(5);
  int socket_ = -1;
  TimePoint deadline_ = kNever;
  bool delivered_ = false;
  std::size_t discarded_ = 0;  // Bytes.
};

}  // namespace normd

#endif  // NORMD_SERVER_HTTP_CONNECTION_END_H_
