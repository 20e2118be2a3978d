// What passes over the socket at which clients hand over memory: a packet that is taken is the one
// that its message makes.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/expect.h"
#include "wire/region_message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using normd::testing::Expect;
  const std::string packet(reinterpret_cast<const char*>(data), size);
  if (const auto request = normd::DecodeRegionRequest(packet); request.ok()) {
    Expect(normd::EncodeRegionRequest(*request) == packet, "a request says what it said");
  } else {
    normd::testing::ExpectMessage(request.status().message(), 128);
  }
  if (const auto reply = normd::DecodeRegionReply(packet); reply.ok()) {
    Expect(normd::EncodeRegionReply(*reply) == packet, "a reply says what it said");
    Expect(reply->bytes >= 0, "a size is no less than nothing");
  } else {
    normd::testing::ExpectMessage(reply.status().message(), 128);
  }
  return 0;
}
