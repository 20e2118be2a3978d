#include "server/http/connection_end.h"

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <memory>

#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "tests/support/failing_allocations.h"

namespace normd {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;

// As the servers do: what an exception leaves is gone, and the others are served.
void RunFor(asio::io_context& context, Duration time) {
  const TimePoint end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
    try {
      context.restart();
      context.run_until(end);
      if (context.stopped()) return;
    } catch (const std::exception&) {
    }
  }
}

// The client never ends its side, so the end is not noticed otherwise.
TEST(ConnectionEndTest, ComesWithoutMemoryToWaitForIt) {
  for (int succeed = 0; succeed < 8; ++succeed) {
    asio::io_context context(1);
    tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
    tcp::socket client(context);
    client.connect(acceptor.local_endpoint());
    tcp::socket server = acceptor.accept();
    ConnectionEnd end(context.get_executor());
    const auto calls = std::make_shared<int>(0);
    end.Begin(server, server, std::chrono::steady_clock::now() + milliseconds(100),
              [calls, &server](bool) {
                ++*calls;
                server.close();
              });
    {
      const FailingAllocations failing(succeed);
      RunFor(context, milliseconds(30));
    }
    RunFor(context, milliseconds(300));
    EXPECT_EQ(*calls, 1) << succeed;
  }
}

}  // namespace
}  // namespace normd
