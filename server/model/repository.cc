#include "server/model/repository.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/printable.h"
#include "server/model/config.h"
#include "server/model/model_name.h"
#include "server/model/safetensors.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

// The names of the directories in `path`; an error when it cannot be listed to its end.
std::error_code ListDirectories(const std::string& path, std::vector<std::string>& names) {
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code unreadable;
    if (entry->is_directory(unreadable)) names.push_back(entry->path().filename().string());
  }
  return error;
}

std::optional<std::int64_t> ParseVersion(absl::string_view name) {
  std::int64_t version = 0;
  const bool digits =
      std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c); });
  if (!digits || absl::StartsWith(name, "0") || !absl::SimpleAtoi(name, &version)) {
    return std::nullopt;
  }
  return version;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Repository::ModelNames() const {
  std::vector<std::string> names;
  if (const std::error_code error = ListDirectories(root_, names)) {
    return absl::NotFoundError(absl::StrCat("model repository: \"", Printable(root_),
                                            "\" cannot be listed: ", error.message()));
  }
  std::erase_if(names, [](const std::string& name) {
    if (absl::StartsWith(name, ".") || absl::EndsWith(name, ".tmp") || absl::EndsWith(name, "~")) {
      return true;
    }
    const absl::Status status = CheckModelName(name);
    if (!status.ok()) spdlog::warn("model repository: folder skipped: {}", status.ToString());
    return !status.ok();
  });
  std::sort(names.begin(), names.end());
  return names;
}

bool Repository::HasModel(absl::string_view name) const { return IsDirectory(ModelFolder(name)); }

bool Repository::HasVersion(absl::string_view name, std::int64_t version) const {
  return IsDirectory(VersionFolder(name, version));
}

std::vector<std::int64_t> Repository::Versions(absl::string_view name) const {
  std::vector<std::string> names;
  // A folder that cannot be listed has no versions to offer.
  static_cast<void>(ListDirectories(ModelFolder(name), names));
  std::vector<std::int64_t> versions;
  for (const std::string& folder : names) {
    if (const auto version = ParseVersion(folder)) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

absl::StatusOr<Repository::Files> Repository::Read(absl::string_view name, std::int64_t version,
                                                   std::int64_t max_parameter_bytes) const {
  absl::StatusOr<v1::ModelConfig> config =
      ReadModelConfig(absl::StrCat(ModelFolder(name), "/config.textproto"));
  if (!config.ok()) return config.status();
  if (const absl::Status status = CheckModelConfig(*config); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("config.textproto: ", status.message()));
  }
  absl::StatusOr<std::vector<Parameter>> parameters = ReadSafetensors(
      absl::StrCat(VersionFolder(name, version), "/params.safetensors"), max_parameter_bytes);
  if (absl::IsNotFound(parameters.status()) && ExpectedParameters(*config).empty()) {
    parameters = std::vector<Parameter>();
  }
  if (!parameters.ok()) return parameters.status();
  return Files{*std::move(config), *std::move(parameters)};
}

std::string Repository::ModelFolder(absl::string_view name) const {
  return absl::StrCat(root_, "/", name);
}

std::string Repository::VersionFolder(absl::string_view name, std::int64_t version) const {
  return absl::StrCat(root_, "/", name, "/", version);
}

}  // namespace normd
