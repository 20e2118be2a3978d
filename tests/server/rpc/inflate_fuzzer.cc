// Compressed messages. The input: a byte that says the encoding and how the rest is cut, one that
// says how large the message may be, and the message.

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/rpc/inflate.h"
#include "tests/fuzz/expect.h"
#include "wire/grpc_slices.h"

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
  const auto take = [&](std::int64_t bytes) {
    taken += bytes;
    return absl::OkStatus();
  };
  std::vector<grpc::Slice> slices;
  const absl::Status status = Inflate(encoding, parts, {max_bytes, take}, slices);
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
  for (const grpc::Slice& slice : slices) {
    got.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  Expect(got == want, "what is inflated is what zlib makes of it");
  return 0;
}

}  // namespace normd::testing
