// An HTTP server that sends each body back: what a call costs by Boost.Beast alone, on one thread,
// for http_cost.py. Prints its port.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <utility>

#include "boost/asio/awaitable.hpp"
#include "boost/asio/co_spawn.hpp"
#include "boost/asio/detached.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/use_awaitable.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http.hpp"

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Body = http::vector_body<char>;

asio::awaitable<void> Echo(tcp::socket socket) {
  boost::beast::flat_buffer buffer;
  try {
    for (;;) {
      http::request_parser<Body> parser;
      parser.body_limit(std::uint64_t{1} << 30);
      co_await http::async_read(socket, buffer, parser, asio::use_awaitable);
      http::response<Body> response(http::status::ok, 11);
      response.body() = std::move(parser.get().body());
      response.prepare_payload();
      co_await http::async_write(socket, response, asio::use_awaitable);
    }
  } catch (const std::exception&) {
    // The client has left.
  }
}

asio::awaitable<void> Accept(tcp::acceptor acceptor) {
  for (;;) {
    tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
    socket.set_option(tcp::no_delay(true));
    asio::co_spawn(acceptor.get_executor(), Echo(std::move(socket)), asio::detached);
  }
}

}  // namespace

int main() {
  asio::io_context context(1);
  tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
  std::printf("%d\n", acceptor.local_endpoint().port());
  std::fflush(stdout);
  asio::co_spawn(context, Accept(std::move(acceptor)), asio::detached);
  context.run();
}
