#include "server/model/repository.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "server/model/config.h"
#include "server/model/file.h"
#include "server/model/model_name.h"
#include "server/model/operations/operations.h"
#include "server/model/parameters.h"
#include "server/model/root_folder.h"
#include "server/model/safetensors.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

constexpr int kReadTries = 7;
constexpr auto kFirstPause = std::chrono::milliseconds(10);  // Doubled each time: 630 ms in all.

std::optional<std::int64_t> ParseVersion(absl::string_view name) {
  std::int64_t version = 0;
  const bool digits =
      std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c); });
  if (!digits || absl::StartsWith(name, "0") || !absl::SimpleAtoi(name, &version)) {
    return std::nullopt;
  }
  return version;
}

// The two files of a version, as far as they were opened.
struct OpenFiles {
  std::optional<InputFile> config;
  std::optional<InputFile> parameters;
};

absl::StatusOr<Repository::Files> ReadFiles(const RootFolder& root, const std::string& config_path,
                                            const std::string& parameters_path,
                                            std::int64_t max_parameter_bytes, OpenFiles& open) {
  absl::StatusOr<InputFile> config_file = root.OpenFile(config_path, kMaxConfigBytes);
  if (!config_file.ok()) return config_file.status();
  absl::StatusOr<v1::ModelConfig> config =
      ReadModelConfig(open.config.emplace(*std::move(config_file)));
  if (!config.ok()) return config.status();
  if (const absl::Status status = CheckModelConfig(*config); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("config.textproto: ", status.message()));
  }
  const absl::StatusOr<std::unique_ptr<const Operation>> operation = MakeOperation(*config);
  if (!operation.ok()) return operation.status();
  const ParameterRules& rules = (*operation)->parameters();
  absl::StatusOr<InputFile> file = root.OpenFile(parameters_path, max_parameter_bytes);
  if (absl::IsNotFound(file.status()) && rules.expected.empty()) {
    return Repository::Files{*std::move(config), {}};
  }
  if (!file.ok()) return file.status();
  absl::StatusOr<SafetensorsFile> tensors =
      SafetensorsFile::Open(open.parameters.emplace(*std::move(file)));
  if (!tensors.ok()) return tensors.status();
  // All that can be wrong is found before any data is read.
  const absl::StatusOr<std::vector<MatchedParameter>> matches =
      MatchParameters(*config, rules, tensors->tensors());
  if (!matches.ok()) return matches.status();
  std::vector<Parameter> parameters;
  for (const MatchedParameter& match : *matches) {
    absl::StatusOr<Parameter> parameter = tensors->Read(tensors->tensors()[match.tensor]);
    if (!parameter.ok()) return parameter.status();
    parameters.push_back(*std::move(parameter));
  }
  return Repository::Files{*std::move(config), std::move(parameters)};
}

// Whether `file`, if it was opened, is what its path leads to, and unchanged.
absl::Status CheckSettled(const RootFolder& root, const std::string& path,
                          std::optional<InputFile>& file) {
  if (!file) return absl::OkStatus();
  if (const absl::Status status = file->CheckUnchanged(); !status.ok()) return status;
  const absl::StatusOr<FileState> now = root.StateOf(path);
  if (now.ok() && *now == file->state()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(file->name(), ": replaced while it was read"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Repository::ModelNames() const {
  const absl::StatusOr<RootFolder> root = RootFolder::Open(root_);
  if (!root.ok()) return root.status();
  absl::StatusOr<std::vector<std::string>> listed = root->ListFolders("");
  if (!listed.ok()) {
    return absl::NotFoundError(
        absl::StrCat("model repository: \"", Printable(root_), "\" cannot be listed"));
  }
  std::vector<std::string> names = *std::move(listed);
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

absl::Status Repository::CheckModel(absl::string_view name) const {
  const absl::StatusOr<RootFolder> root = RootFolder::Open(root_);
  return root.ok() ? root->CheckFolder(name) : root.status();
}

std::vector<std::int64_t> Repository::Versions(absl::string_view name) const {
  std::vector<std::string> names;
  const absl::StatusOr<RootFolder> root = RootFolder::Open(root_);
  // A folder that cannot be listed has no versions to offer.
  if (root.ok()) names = root->ListFolders(name).value_or(names);
  std::vector<std::int64_t> versions;
  for (const std::string& folder : names) {
    if (const auto version = ParseVersion(folder)) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

absl::StatusOr<Repository::Files> Repository::ReadOnce(absl::string_view name, std::int64_t version,
                                                       std::int64_t max_parameter_bytes) const {
  const absl::StatusOr<RootFolder> root = RootFolder::Open(root_);
  if (!root.ok()) return root.status();
  const std::string config_path = absl::StrCat(name, "/config.textproto");
  const std::string parameters_path = absl::StrCat(name, "/", version, "/params.safetensors");
  OpenFiles open;
  absl::StatusOr<Files> files =
      ReadFiles(*root, config_path, parameters_path, max_parameter_bytes, open);
  if (after_read_) after_read_();
  // An error counts as little as a result when the file was half written.
  for (const absl::Status& status : {CheckSettled(*root, config_path, open.config),
                                     CheckSettled(*root, parameters_path, open.parameters)}) {
    if (!status.ok()) return status;
  }
  return files;
}

absl::StatusOr<Repository::Files> Repository::Read(absl::string_view name, std::int64_t version,
                                                   std::int64_t max_parameter_bytes) const {
  auto pause = kFirstPause;
  for (int tries = 1;; ++tries) {
    absl::StatusOr<Files> files = ReadOnce(name, version, max_parameter_bytes);
    if (!absl::IsAborted(files.status())) return files;
    if (tries == kReadTries) {
      return absl::AbortedError(absl::StrCat(files.status().message(), ", ", tries,
                                             " times: load it again when it is written, or put a "
                                             "whole file in its place with a rename"));
    }
    std::this_thread::sleep_for(pause);
    pause *= 2;
  }
}

}  // namespace normd
