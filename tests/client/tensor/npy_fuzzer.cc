// .npy files, by what follows from a header that is taken: the file holds what it says, in whatever
// order, by a second decoder, and a header written anew says the same. The input is the file; with
// a first byte of 0, the dictionary and the elements as TEXT\0DATA, to which magic, version and
// length are added.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/tensor/npy.h"
#include "tests/fuzz/expect.h"

namespace normd::client {
namespace {

using normd::testing::Expect;
using normd::testing::ExpectMessage;

constexpr std::size_t kMaxMessageBytes = 400;

void CheckHeader(const NpyHeader& header, absl::string_view content) {
  const auto offset = static_cast<std::size_t>(header.data_offset);
  Expect(offset <= content.size(), "the elements begin within the file");
  const absl::string_view text = content.substr(0, offset);
  for (const char* part : {"descr", "fortran_order", "shape", "(", ")"}) {
    Expect(absl::StrContains(text, part), "a header has its parts", part);
  }
  Expect(absl::StrContains(text, header.fortran_order ? "True" : "False"), "an order is said");
  Expect(!header.big_endian || absl::StrContains(text, ">"), "a byte order is said");
  Expect(!ParseNpyHeader(content.substr(0, offset - 1)).ok(), "all of it is needed");
  const absl::StatusOr<NpyHeader> longer = ParseNpyHeader(absl::StrCat(content, "more"));
  Expect(longer.ok() && longer->shape == header.shape && longer->data_offset == header.data_offset,
         "what follows says nothing");
  const std::string written = MakeNpyHeader(header.dtype, header.shape);
  const absl::StatusOr<NpyHeader> again = ParseNpyHeader(written);
  Expect(again.ok() && again->dtype == header.dtype && again->shape == header.shape &&
             static_cast<std::size_t>(again->data_offset) == written.size() &&
             written.size() % 64 == 0,
         "a header written anew says the same", written);
}

// The elements in row-major order, least byte first: each is looked up in `elements`, the file's.
std::string Decoded(const NpyHeader& header, absl::string_view elements) {
  const std::size_t size = norm::SizeOf(header.dtype);
  const absl::Span<const std::int64_t> dims = header.shape.dims();
  std::string decoded;
  for (std::int64_t i = 0; i < header.shape.elements(); ++i) {
    std::int64_t rest = i;
    std::int64_t place = 0;
    for (std::size_t d = dims.size(); d-- > 0; rest /= dims[d]) {
      place = place * dims[d] + rest % dims[d];
    }
    const std::int64_t from = header.fortran_order ? place : i;
    std::string element(elements.substr(static_cast<std::size_t>(from) * size, size));
    if (header.big_endian) std::reverse(element.begin(), element.end());
    decoded += element;
  }
  return decoded;
}

absl::string_view BytesOf(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void TryFile(absl::string_view content) {
  const absl::StatusOr<NpyHeader> header = ParseNpyHeader(content.substr(0, kMaxNpyHeaderBytes));
  if (header.ok()) {
    CheckHeader(*header, content);
  } else {
    ExpectMessage(header.status().message(), kMaxMessageBytes);
  }

  static const normd::testing::MemoryFile memory;
  memory.Write(content);
  const absl::StatusOr<NpyReader> reader = NpyReader::Open(memory.path());
  if (!reader.ok()) return ExpectMessage(reader.status().message(), kMaxMessageBytes);
  Expect(header.ok(), "a file that opens has a header");
  const absl::string_view elements = content.substr(static_cast<std::size_t>(header->data_offset));
  Expect(reader->bytes() == static_cast<std::int64_t>(elements.size()) &&
             reader->bytes() == *TensorBytes(header->dtype, header->shape),
         "a file that opens has its elements and no more");
  const absl::StatusOr<Tensor> tensor = reader->ReadAll();
  Expect(tensor.ok(), "a tensor is read", tensor.status().message());
  const std::string decoded = Decoded(*header, elements);
  Expect(BytesOf(tensor->bytes()) == decoded, "a tensor has the file's elements");
  for (const std::size_t cut : {std::size_t{1}, decoded.size() / 3, decoded.size() / 2}) {
    if (cut > decoded.size()) continue;
    std::vector<std::byte> part(decoded.size() - cut);
    Expect(reader->ReadAt(static_cast<std::int64_t>(cut), absl::MakeSpan(part)).ok() &&
               BytesOf(part) == absl::string_view(decoded).substr(cut),
           "a part has the tensor's bytes");
  }
}

}  // namespace
}  // namespace normd::client

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  normd::testing::Script script(data, size);
  if (size == 0 || data[0] != 0) {
    normd::client::TryFile(script.Rest());
    return 0;
  }
  script.Byte();
  const absl::string_view text = script.Until('\0');
  std::string content("\x93NUMPY\x01\x00", 8);
  content.push_back(static_cast<char>(text.size() & 255));
  content.push_back(static_cast<char>(text.size() >> 8));
  absl::StrAppend(&content, text, script.Rest());
  normd::client::TryFile(content);
  return 0;
}
