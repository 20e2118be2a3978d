#include "tests/wire/wire_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace normd::testing {
namespace {

std::uint64_t Below(std::mt19937_64& random, std::uint64_t end) { return random() % end; }

std::string Text(std::mt19937_64& random, std::size_t most) {
  std::string text(Below(random, most + 1), ' ');
  for (char& c : text) c = static_cast<char>('a' + Below(random, 26));
  return text;
}

std::string Bytes(std::mt19937_64& random, std::size_t most) {
  std::string bytes(Below(random, most + 1), '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// Small and large values, negative ones among them.
std::uint64_t Number(std::mt19937_64& random) { return random() >> Below(random, 64); }

std::string Unknown(std::mt19937_64& random) {
  const int field = static_cast<int>(7 + Below(random, 3000));
  switch (Below(random, 5)) {
    case 0: return IntField(field, Number(random));
    case 1: return absl::StrCat(Varint(field << 3 | 1), std::string(8, 'q'));
    case 2: return BytesField(field, Bytes(random, 20));
    case 3:
      return absl::StrCat(Varint(field << 3 | 3), IntField(1, 5), BytesField(4, "group"),
                          Varint(field << 3 | 4));
    default: return absl::StrCat(Varint(field << 3 | 5), std::string(4, 'w'));
  }
}

std::string Shuffled(std::mt19937_64& random, std::vector<std::string> fields) {
  for (auto unknown = Below(random, 3); unknown > 0; --unknown) fields.push_back(Unknown(random));
  std::shuffle(fields.begin(), fields.end(), random);
  return absl::StrJoin(fields, "");
}

// A SharedMemory message, with fields that are missing and fields that come twice.
std::string RandomPart(std::mt19937_64& random) {
  std::vector<std::string> fields;
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(BytesField(1, Text(random, 40)));
  for (int field = 2; field <= 3; ++field) {
    for (auto n = Below(random, 3); n > 0; --n) fields.push_back(IntField(field, Number(random)));
  }
  return Shuffled(random, std::move(fields));
}

std::string RandomTensor(std::mt19937_64& random) {
  std::vector<std::string> fields;
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(BytesField(1, Text(random, 9)));
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(IntField(2, Number(random)));
  for (auto n = Below(random, 3); n > 0; --n) {
    std::string packed;
    for (auto dims = Below(random, 5); dims > 0; --dims) packed += Varint(Number(random));
    fields.push_back(BytesField(3, packed));
  }
  for (auto n = Below(random, 4); n > 0; --n) fields.push_back(IntField(3, Number(random)));
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(BytesField(4, Bytes(random, 300)));
  // Two messages add up.
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(BytesField(5, RandomPart(random)));
  return Shuffled(random, std::move(fields));
}

// A message of some of the integer fields 1 to `most`.
std::string Numbers(std::mt19937_64& random, int most) {
  std::vector<std::string> fields;
  for (int field = 1; field <= most; ++field) {
    if (Below(random, 2) == 0) fields.push_back(IntField(field, Number(random)));
  }
  return Shuffled(random, std::move(fields));
}

}  // namespace

std::string Varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

std::string IntField(int field, std::uint64_t value) {
  return absl::StrCat(Varint(static_cast<std::uint64_t>(field) << 3), Varint(value));
}

std::string BytesField(int field, absl::string_view bytes) {
  return absl::StrCat(Varint(static_cast<std::uint64_t>(field) << 3 | 2), Varint(bytes.size()),
                      bytes);
}

std::string RandomRequest(std::mt19937_64& random) {
  std::vector<std::string> fields;
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(BytesField(1, Text(random, 40)));
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(IntField(2, Number(random)));
  for (auto n = 1 + Below(random, 4); n > 0; --n) {
    fields.push_back(BytesField(3, RandomTensor(random)));
  }
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(IntField(4, Number(random)));
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(IntField(5, Number(random)));
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(IntField(6, Number(random)));
  for (auto n = Below(random, 3); n > 0; --n) {
    fields.push_back(
        BytesField(7, BytesField(1, Text(random, 9)) + BytesField(2, RandomPart(random))));
  }
  return Shuffled(random, std::move(fields));
}

std::string RandomResponse(std::mt19937_64& random) {
  std::vector<std::string> fields;
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(BytesField(1, Text(random, 40)));
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(IntField(2, Number(random)));
  // Each submessage sometimes in two parts, which add up.
  for (auto n = Below(random, 3); n > 0; --n) fields.push_back(BytesField(3, Numbers(random, 6)));
  for (auto n = Below(random, 3); n > 0; --n) {
    fields.push_back(BytesField(4, Numbers(random, 3) + BytesField(4, Text(random, 9))));
  }
  for (auto n = Below(random, 4); n > 0; --n) {
    fields.push_back(BytesField(5, RandomTensor(random)));
  }
  return Shuffled(random, std::move(fields));
}

std::vector<std::size_t> RandomCuts(std::mt19937_64& random, std::size_t size, int most) {
  std::vector<std::size_t> cuts(Below(random, static_cast<std::uint64_t>(most) + 1));
  for (std::size_t& cut : cuts) cut = Below(random, size + 1);
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace normd::testing
