// Compressed messages. The input: a byte that says the encoding and how the rest is cut, one that
// says how large the message may be, and the message.

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/accept/inflate.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {
namespace {

// By zlib in one call, if it is a whole stream of at most `max_bytes` and nothing behind it.
bool InflatesAtOnce(absl::string_view wire, int window_bits, std::size_t max_bytes,
                    std::string& text) {
  z_stream stream{};
  if (inflateInit2(&stream, window_bits) != Z_OK) return false;
  text.resize(max_bytes + 1);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(wire.data()));
  stream.avail_in = static_cast<uInt>(wire.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  const int result = inflate(&stream, Z_FINISH);
  text.resize(text.size() - stream.avail_out);
  const bool all = result == Z_STREAM_END && stream.avail_in == 0 && text.size() <= max_bytes;
  inflateEnd(&stream);
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Script script(data, size);
  const std::uint8_t how = script.Byte();
  const Encoding encoding = how % 2 == 0 ? Encoding::kDeflate : Encoding::kGzip;
  const std::int64_t max_bytes = std::int64_t{script.Byte()} << (how % 3 * 5);
  const absl::string_view wire = script.Rest();
  std::vector<ConstBytes> parts;
  const std::size_t step = how % 5 == 0 ? std::max<std::size_t>(wire.size(), 1) : how % 5;
  for (std::size_t at = 0; at < wire.size(); at += step) {
    const absl::string_view part = wire.substr(at, step);
    parts.emplace_back(reinterpret_cast<const std::byte*>(part.data()), part.size());
  }
  std::int64_t taken = 0;
  // In memory of just that size, so that a sanitizer sees a byte behind it.
  struct Part {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes;
  };
  std::vector<Part> rooms;
  const auto room = [&](std::int64_t bytes) -> absl::StatusOr<MutableBytes> {
    taken += bytes;
    const auto count = static_cast<std::size_t>(bytes);
    rooms.push_back({std::make_unique<std::byte[]>(count), count});
    return MutableBytes(rooms.back().memory.get(), count);
  };
  const auto inflated = Inflate(encoding, parts, {max_bytes, room, "grpc-encoding"});
  const absl::Status status = inflated.status();
  Expect(taken <= max_bytes + 1, "no more is allocated than a message may have");
  std::string want;
  const bool whole = InflatesAtOnce(wire, encoding == Encoding::kGzip ? 31 : 15,
                                    static_cast<std::size_t>(max_bytes), want);
  Expect(whole == status.ok(), "what zlib inflates is taken, and nothing else", status.message());
  if (!status.ok()) {
    ExpectMessage(status.message(), 200);
    return 0;
  }
  std::string got;
  for (const Part& part : rooms) {
    got.append(reinterpret_cast<const char*>(part.memory.get()), part.bytes);
  }
  Expect(static_cast<std::size_t>(*inflated) <= got.size(), "it lies in the memory given");
  got.resize(static_cast<std::size_t>(*inflated));
  Expect(got == want, "what is inflated is what zlib makes of it");
  return 0;
}

}  // namespace normd::testing
