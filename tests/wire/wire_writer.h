// Protobuf's wire format by hand, for messages that no generated class would write.

#ifndef NORMD_TESTS_WIRE_WIRE_WRITER_H_
#define NORMD_TESTS_WIRE_WIRE_WRITER_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace normd::testing {

std::string Varint(std::uint64_t value);
std::string IntField(int field, std::uint64_t value);
std::string BytesField(int field, absl::string_view bytes);

// A valid NormalizeRequest with one input or a few, as awkward as the format allows: fields in any
// order, some repeated, shapes packed, unpacked and both, unknown fields of every wire type between
// them.
std::string RandomRequest(std::mt19937_64& random);
// A NormalizeResponse likewise, with no output or a few.
std::string RandomResponse(std::mt19937_64& random);

// Up to `most` ascending offsets in [0, size], repeats among them.
std::vector<std::size_t> RandomCuts(std::mt19937_64& random, std::size_t size, int most);

}  // namespace normd::testing

#endif  // NORMD_TESTS_WIRE_WIRE_WRITER_H_
