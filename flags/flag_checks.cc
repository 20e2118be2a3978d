#include "flags/flag_checks.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace normd {

FlagCheck<std::int64_t> From(std::int64_t low, std::int64_t high) {
  return [low, high](std::int64_t value) -> std::string {
    if (value >= low && value <= high) return "";
    if (high == kUnbounded) return absl::StrCat("at least ", low);
    return absl::StrCat("from ", low, " to ", high);
  };
}

FlagCheck<double> FromReal(double low, double high) {
  return [low, high](double value) -> std::string {
    if (value >= low && value <= high) return "";  // NaN is in no range.
    if (high == std::numeric_limits<double>::infinity()) return absl::StrCat("at least ", low);
    return absl::StrCat("from ", low, " to ", high);
  };
}

FlagCheck<absl::Duration> FromTime(absl::Duration low, absl::Duration high) {
  return [low, high](absl::Duration value) -> std::string {
    if (value >= low && value <= high) return "";
    if (high == absl::InfiniteDuration())
      return absl::StrCat("at least ", absl::FormatDuration(low));
    return absl::StrCat("from ", absl::FormatDuration(low), " to ", absl::FormatDuration(high));
  };
}

FlagCheck<absl::Duration> UpTo(absl::Duration high) { return FromTime(absl::ZeroDuration(), high); }

FlagCheck<std::string> BeOneOf(std::vector<std::string> known) {
  return [known = std::move(known)](const std::string& value) -> std::string {
    if (std::find(known.begin(), known.end(), value) != known.end()) return "";
    return absl::StrCat(absl::StrJoin(known.begin(), known.end() - 1, ", "), " or ", known.back());
  };
}

std::string BeAShare(double value) { return value > 0 && value <= 1 ? "" : "above 0, at most 1"; }

std::string BePositive(absl::Duration value) {
  return value > absl::ZeroDuration() ? "" : "more than 0";
}

bool IsSameFile(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::equivalent(a, b, error)) return fs::is_regular_file(a, error);
  if (fs::exists(a, error) || fs::exists(b, error)) return false;
  // Empty where a folder cannot be searched.
  const auto place = [](fs::path path) {
    std::error_code failed;
    constexpr int kMostLinks = 40;  // As Linux.
    for (int i = 0; i < kMostLinks && fs::is_symlink(path, failed); ++i) {
      path = path.parent_path() / fs::read_symlink(path, failed);
    }
    const fs::path found = fs::weakly_canonical(fs::absolute(path, failed), failed);
    return failed ? fs::path() : found;
  };
  return !place(a).empty() && place(a) == place(b);
}

absl::Status CheckFilesDiffer(absl::Span<const FileFlag> files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (files[i].path.empty() || files[j].path.empty()) continue;
      if (!IsSameFile(files[i].path, files[j].path)) continue;
      return absl::InvalidArgumentError(absl::StrCat(files[i].flag, ": ", files[i].path,
                                                     ", which is also the file of ", files[j].flag,
                                                     ", wanted another"));
    }
  }
  return absl::OkStatus();
}

}  // namespace normd
