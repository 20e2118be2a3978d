#include "flags/byte_size.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace normd {
namespace {

struct Unit {
  absl::string_view name;
  std::int64_t bytes;
};

constexpr Unit kBinaryUnits[] = {{"TiB", std::int64_t{1} << 40},
                                 {"GiB", std::int64_t{1} << 30},
                                 {"MiB", std::int64_t{1} << 20},
                                 {"KiB", std::int64_t{1} << 10}};
constexpr Unit kDecimalUnits[] = {{"TB", 1'000'000'000'000},
                                  {"GB", 1'000'000'000},
                                  {"MB", 1'000'000},
                                  {"KB", 1000},
                                  {"kB", 1000}};

// Removes a unit from the end of `text` and returns its bytes; 1 without a unit.
std::int64_t ConsumeUnit(absl::string_view& text) {
  for (const Unit& unit : kBinaryUnits) {
    if (absl::ConsumeSuffix(&text, unit.name)) return unit.bytes;
  }
  for (const Unit& unit : kDecimalUnits) {
    if (absl::ConsumeSuffix(&text, unit.name)) return unit.bytes;
  }
  return 1;
}

}  // namespace

std::optional<std::int64_t> ParseByteSize(absl::string_view text) {
  const std::int64_t unit = ConsumeUnit(text);
  std::int64_t count = 0;
  if (!absl::SimpleAtoi(text, &count)) return std::nullopt;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / unit;
  if (count > most || count < -most) return std::nullopt;
  return count * unit;
}

std::string FormatByteSize(std::int64_t bytes) {
  for (const Unit& unit : kBinaryUnits) {
    if (bytes != 0 && bytes % unit.bytes == 0) return absl::StrCat(bytes / unit.bytes, unit.name);
  }
  return absl::StrCat(bytes);
}

}  // namespace normd
