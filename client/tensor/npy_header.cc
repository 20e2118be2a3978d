#include "client/tensor/npy_header.h"

#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "wire/data_type.h"

namespace normd::client {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("npy header: ", what));
}

std::string Quote(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, 32)), text.size() > 32 ? "...'" : "'");
}

// Reads the subset of Python's literals that the format allows: one dictionary of strings, booleans
// and tuples of integers.
class LiteralReader {
 public:
  explicit LiteralReader(absl::string_view text) : rest_(text) {}

  // Skips white space, then takes `c` if it is next.
  bool Take(char c) {
    SkipSpace();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::optional<absl::string_view> String() {
    SkipSpace();
    absl::string_view text = rest_;
    absl::ConsumePrefix(&text, "u");  // Python 2's prefix.
    if (text.empty() || (text.front() != '\'' && text.front() != '"')) return std::nullopt;
    rest_ = text;
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == absl::string_view::npos) return std::nullopt;
    const absl::string_view value = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return value;
  }

  std::optional<bool> Bool() {
    SkipSpace();
    if (Word("True")) return true;
    if (Word("False")) return false;
    return std::nullopt;
  }

  // Up to kMaxRank + 1 integers: one too many shows that the rank is too high.
  std::optional<std::vector<std::int64_t>> Tuple() {
    std::vector<std::int64_t> values;
    if (!Take('(')) return std::nullopt;
    bool after_comma = true;
    while (!Take(')')) {
      if (!after_comma) return std::nullopt;
      const std::optional<std::int64_t> value = Integer();
      if (!value || values.size() > kMaxRank) return std::nullopt;
      values.push_back(*value);
      after_comma = Take(',');
    }
    return values;
  }

  absl::string_view rest() {
    SkipSpace();
    return rest_;
  }

 private:
  void SkipSpace() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }

  bool Word(absl::string_view word) {
    if (!absl::StartsWith(rest_, word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  std::optional<std::int64_t> Integer() {
    SkipSpace();
    std::size_t length = 0;
    while (length < rest_.size() &&
           (absl::ascii_isdigit(static_cast<unsigned char>(rest_[length])) ||
            (length == 0 && rest_[length] == '-'))) {
      ++length;
    }
    std::int64_t value = 0;
    if (!absl::SimpleAtoi(rest_.substr(0, length), &value)) return std::nullopt;
    rest_.remove_prefix(length);
    absl::ConsumePrefix(&rest_, "L");  // Python 2's suffix.
    return value;
  }

  absl::string_view rest_;
};

// NumPy's one-letter codes, which may also follow a byte order.
constexpr std::pair<absl::string_view, absl::string_view> kCodes[] = {
    {"f", "f4"}, {"d", "f8"}, {"e", "f2"}, {"b", "i1"}, {"q", "i8"}};

// The line of Python that converts a file with other elements.
std::string Conversion(absl::string_view descr) {
  if (absl::StartsWith(descr, "[")) {
    return "one field of it in Python: numpy.save(path, numpy.load(path)[\"FIELD\"])";
  }
  const bool is_object = absl::EndsWith(descr, "O");
  return absl::StrCat("in Python: numpy.save(path, numpy.load(path",
                      is_object ? ", allow_pickle=True" : "", ").astype(\"float32\"))",
                      is_object ? ", if you trust who wrote the file" : "");
}

// Fills the type and the byte order.
absl::Status ParseDescr(absl::string_view descr, NpyHeader& header) {
  // Written for types without a name in the format.
  if (descr == "bfloat16") descr = "<V2";
  if (descr == "float8_e4m3fn") descr = "<V1";
  absl::string_view name = descr;
  const bool has_order = !name.empty() && absl::StrContains("<>=|", name.substr(0, 1));
  if (has_order) name.remove_prefix(1);
  for (const auto& [code, known] : kCodes) {
    if (name == code) name = known;
  }
  for (const DataTypeNames& type : kDataTypes) {
    const bool is_raw = absl::StartsWith(type.npy, "<V");
    const bool swapped = absl::StartsWith(descr, ">") && norm::SizeOf(type.dtype) > 1;
    if (is_raw ? swapped || name != type.npy.substr(1)
               : name != type.npy.substr(1) && descr != type.name) {
      continue;
    }
    header.dtype = type.dtype;
    header.big_endian = swapped;
    return absl::OkStatus();
  }
  const std::string wanted = absl::StrCat(
      "wanted ", absl::StrJoin(kDataTypes, ", ", [](std::string* out, const DataTypeNames& type) {
        const bool is_raw = absl::StartsWith(type.npy, "<V");
        const bool is_last = &type == std::end(kDataTypes) - 1;
        absl::StrAppend(out, is_last ? "or '" : "'", type.npy, is_raw ? "' for " : "'",
                        is_raw ? type.name : "");
      }));
  return Bad(absl::StrCat("descr: ", Quote(descr), ", ", wanted, "; ", Conversion(descr)));
}

// The three entries, in any order, each once.
struct Entries {
  std::optional<absl::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

absl::Status ReadEntry(LiteralReader& reader, Entries& entries) {
  const std::optional<absl::string_view> key = reader.String();
  if (!key || !reader.Take(':')) {
    return Bad(absl::StrCat("a key was wanted at ", Quote(reader.rest())));
  }
  const auto wanted = [&](absl::string_view what) {
    return Bad(absl::StrCat(*key, ": ", what, " was wanted at ", Quote(reader.rest())));
  };
  if (*key == "descr") {
    if (entries.descr) return Bad("descr is there twice");
    entries.descr = reader.String();
    if (!entries.descr) {
      const std::string list = Conversion(absl::StartsWith(reader.rest(), "[") ? "[" : "");
      return wanted(absl::StrCat("a string (structured types are not taken; ", list, ")"));
    }
  } else if (*key == "fortran_order") {
    if (entries.fortran_order) return Bad("fortran_order is there twice");
    entries.fortran_order = reader.Bool();
    if (!entries.fortran_order) return wanted("True or False");
  } else if (*key == "shape") {
    if (entries.shape) return Bad("shape is there twice");
    entries.shape = reader.Tuple();
    if (!entries.shape) {
      return wanted(absl::StrCat("a tuple of at most ", kMaxRank, " integers below 2^63"));
    }
  } else {
    return Bad(absl::StrCat("unknown key ", Quote(*key)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Entries> ReadDictionary(absl::string_view text) {
  LiteralReader reader(text);
  Entries entries;
  if (!reader.Take('{')) return Bad("no dictionary");
  while (!reader.Take('}')) {
    if (absl::Status status = ReadEntry(reader, entries); !status.ok()) return status;
    if (!reader.Take(',')) {
      if (reader.Take('}')) break;
      return Bad(absl::StrCat("a comma was wanted at ", Quote(reader.rest())));
    }
  }
  if (!reader.rest().empty()) {
    return Bad(absl::StrCat("unexpected text after the dictionary: ", Quote(reader.rest())));
  }
  if (!entries.descr) return Bad("descr is missing");
  if (!entries.fortran_order) return Bad("fortran_order is missing");
  if (!entries.shape) return Bad("shape is missing");
  return entries;
}

// The dictionary's place in the file.
struct Extent {
  std::size_t begin = 0;
  std::size_t size = 0;
};

absl::StatusOr<Extent> FindDictionary(absl::string_view prefix) {
  if (!absl::StartsWith(prefix, kMagic)) return Bad("the file does not begin with \\x93NUMPY");
  if (prefix.size() < 8) return Bad("the file ends before the format's version");
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(prefix[i]); };
  const int major = byte(6);
  if (major < 1 || major > 3 || byte(7) != 0) {
    return Bad(absl::StrCat("format version ", major, ".", byte(7), ", wanted 1.0, 2.0 or 3.0"));
  }
  // The length takes two bytes in version 1 and four in later ones; little-endian.
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  Extent extent;
  extent.begin = 8 + length_bytes;
  if (prefix.size() < extent.begin) return Bad("the file ends before the header's length");
  for (std::size_t i = 0; i < length_bytes; ++i) {
    extent.size |= std::size_t{byte(8 + i)} << (8 * i);
  }
  if (extent.size > kMaxNpyHeaderBytes - extent.begin) {
    return Bad(absl::StrCat("its length ", extent.size, " exceeds ", kMaxNpyHeaderBytes, " bytes"));
  }
  if (prefix.size() - extent.begin < extent.size) {
    return Bad(absl::StrCat("its length ", extent.size, " exceeds the ",
                            prefix.size() - extent.begin, " bytes that follow"));
  }
  return extent;
}

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view prefix) {
  const absl::StatusOr<Extent> extent = FindDictionary(prefix);
  if (!extent.ok()) return extent.status();
  const absl::StatusOr<Entries> entries =
      ReadDictionary(prefix.substr(extent->begin, extent->size));
  if (!entries.ok()) return entries.status();
  NpyHeader header;
  if (absl::Status status = ParseDescr(*entries->descr, header); !status.ok()) return status;
  absl::StatusOr<Shape> shape = Shape::Create(*entries->shape);
  if (!shape.ok()) return Bad(shape.status().message());
  header.fortran_order = *entries->fortran_order;
  header.shape = *std::move(shape);
  header.data_offset = static_cast<std::int64_t>(extent->begin + extent->size);
  return header;
}

std::string MakeNpyHeader(norm::DType dtype, const Shape& shape) {
  constexpr std::size_t kAlignment = 64;
  constexpr std::size_t kFixed = 10;  // Magic, version and length.
  // A tuple of one element needs its comma.
  std::string text =
      absl::StrCat("{'descr': '", NamesOf(dtype).npy, "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(shape.dims(), ", "), shape.rank() == 1 ? "," : "", "), }");
  const std::size_t total = (kFixed + text.size() + 1 + kAlignment - 1) / kAlignment * kAlignment;
  text.append(total - kFixed - text.size() - 1, ' ');
  text.push_back('\n');
  std::string header(kMagic);
  header.push_back('\x01');
  header.push_back('\x00');
  header.push_back(static_cast<char>(text.size() & 0xff));
  header.push_back(static_cast<char>(text.size() >> 8));
  return header + text;
}

}  // namespace normd::client
