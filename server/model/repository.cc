#include "server/model/repository.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/printable.h"
#include "operations/operations.h"
#include "operations/parameters.h"
#include "server/model/config.h"
#include "server/model/model_name.h"
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

// The opened files of a version.
struct OpenFiles {
  std::optional<InputFile> config;
  std::optional<InputFile> parameters;
};

absl::StatusOr<v1::ModelConfig> ReadCheckedConfig(const RootFolder& root, const std::string& path,
                                                  OpenFiles& open) {
  absl::StatusOr<InputFile> file = root.OpenFile(path, kMaxConfigBytes);
  if (!file.ok()) return file.status();
  return ReadModelConfig(open.config.emplace(*std::move(file)));
}

absl::StatusOr<Repository::Files> ReadFiles(const RootFolder& root, const std::string& config_path,
                                            const std::string& parameters_path,
                                            std::int64_t max_parameter_bytes, OpenFiles& open) {
  absl::StatusOr<v1::ModelConfig> config = ReadCheckedConfig(root, config_path, open);
  if (!config.ok()) return config.status();
  const absl::StatusOr<std::unique_ptr<const Operation>> operation = MakeOperation(*config);
  if (!operation.ok()) return operation.status();
  const ParameterRules& rules = (*operation)->parameters();
  absl::StatusOr<InputFile> file = root.OpenFile(parameters_path, max_parameter_bytes);
  if (absl::IsNotFound(file.status()) && rules.expected.empty()) {
    return Repository::Files{*std::move(config), {}};
  }
  if (!file.ok()) return file.status();
  absl::StatusOr<std::vector<Parameter>> parameters =
      ReadParameters(*config, rules, open.parameters.emplace(*std::move(file)));
  if (!parameters.ok()) return parameters.status();
  return Repository::Files{*std::move(config), *std::move(parameters)};
}

// Whether `file`, if it was opened, is still the one at its path, and unchanged.
absl::Status CheckSettled(const RootFolder& root, const std::string& path,
                          std::optional<InputFile>& file) {
  if (!file) return absl::OkStatus();
  if (const absl::Status status = file->CheckUnchanged(); !status.ok()) return status;
  const absl::StatusOr<FileState> now = root.StateOf(path);
  if (now.ok() && *now == file->state()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(file->name(), ": replaced while it was read"));
}

std::string ConfigPath(absl::string_view name) { return absl::StrCat(name, "/config.textproto"); }

std::string ParametersPath(absl::string_view name, std::int64_t version) {
  return absl::StrCat(name, "/", version, "/params.safetensors");
}

bool IsUnfinished(absl::string_view name) {
  return absl::StartsWith(name, ".") || absl::EndsWith(name, ".tmp") || absl::EndsWith(name, "~");
}

// The root's model folders, in no order.
absl::StatusOr<std::vector<std::string>> ListModels(const RootFolder& root,
                                                    const std::string& path) {
  absl::StatusOr<std::vector<std::string>> names = root.ListFolders("");
  if (!names.ok()) {
    // The message names no folder, but begins with the colon behind it.
    return absl::NotFoundError(absl::StrCat("model repository: \"", Printable(path), "\"",
                                            absl::StripPrefix(names.status().message(), ":")));
  }
  std::erase_if(*names, IsUnfinished);
  return names;
}

absl::StatusOr<std::vector<std::int64_t>> ListVersions(const RootFolder& root,
                                                       absl::string_view name) {
  const absl::StatusOr<std::vector<std::string>> folders = root.ListFolders(name);
  if (!folders.ok()) return folders.status();
  std::vector<std::int64_t> versions;
  for (const std::string& folder : *folders) {
    if (const auto version = ParseVersion(folder)) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

std::optional<FileState> StateAt(const RootFolder& root, const std::string& path) {
  const absl::StatusOr<FileState> state = root.StateOf(path);
  return state.ok() ? std::optional(*state) : std::nullopt;
}

VersionFiles FilesIn(const RootFolder& root, absl::string_view name, std::int64_t version) {
  return {StateAt(root, ConfigPath(name)), StateAt(root, ParametersPath(name, version))};
}

absl::Status InTwoRoots(absl::string_view name, const std::string& a, const std::string& b) {
  return absl::InvalidArgumentError(absl::StrCat("model ", name, ": it lies in \"", Printable(a),
                                                 "\" and in \"", Printable(b),
                                                 "\", wanted one folder of --model_repository"));
}

// Nullopt when the model vanished after it was listed.
std::optional<RepositoryScan::Model> ScanModel(const RootFolder& root, const std::string& name) {
  RepositoryScan::Model model;
  const absl::StatusOr<std::vector<std::int64_t>> versions = ListVersions(root, name);
  if (absl::IsNotFound(versions.status())) return std::nullopt;
  if (!versions.ok()) {
    model.status = versions.status();
    return model;
  }
  for (const std::int64_t version : *versions) {
    model.versions[version] = FilesIn(root, name, version);
  }
  return model;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Repository::ModelNames() const {
  std::map<std::string, const std::string*> roots;  // By model.
  for (const std::string& path : roots_) {
    const absl::StatusOr<RootFolder> root = RootFolder::Open(path);
    if (!root.ok()) return root.status();
    const absl::StatusOr<std::vector<std::string>> names = ListModels(*root, path);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      if (const absl::Status status = CheckModelName(name); !status.ok()) {
        spdlog::warn("model repository: folder skipped: {}", status.ToString());
        continue;
      }
      const auto [entry, is_new] = roots.emplace(name, &path);
      if (!is_new) return InTwoRoots(name, *entry->second, path);
    }
  }
  std::vector<std::string> sorted;
  for (const auto& [name, root] : roots) sorted.push_back(name);
  return sorted;
}

RepositoryScan Repository::Scan() const {
  RepositoryScan scan;
  std::map<std::string, const std::string*> roots;  // By model.
  for (const std::string& path : roots_) {
    RepositoryScan::Root& seen = scan.roots.emplace_back();
    const absl::StatusOr<RootFolder> root = RootFolder::Open(path);
    const absl::StatusOr<std::vector<std::string>> names =
        root.ok() ? ListModels(*root, path) : root.status();
    seen.path = path;
    seen.status = names.status();
    if (!names.ok()) continue;
    seen.device = root->device();
    seen.models = names->size();
    for (const std::string& name : *names) {
      if (!CheckModelName(name).ok()) continue;
      const auto [entry, is_new] = roots.emplace(name, &path);
      if (is_new) {
        if (auto model = ScanModel(*root, name)) scan.models.emplace(name, *std::move(model));
      } else {
        scan.models[name] = {InTwoRoots(name, *entry->second, path), {}};
      }
    }
  }
  return scan;
}

absl::StatusOr<RootFolder> Repository::RootOf(absl::string_view name) const {
  for (const std::string& path : roots_) {
    absl::StatusOr<RootFolder> root = RootFolder::Open(path);
    if (roots_.size() == 1) return root;
    if (root.ok() && !absl::IsNotFound(root->CheckFolder(name))) return root;
  }
  return RootFolder::Open(roots_.front());
}

absl::Status Repository::CheckModel(absl::string_view name) const {
  absl::Status found = absl::NotFoundError("");
  std::size_t first = 0;
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    const absl::StatusOr<RootFolder> root = RootFolder::Open(roots_[i]);
    const absl::Status status = root.ok() ? root->CheckFolder(name) : root.status();
    if (roots_.size() == 1) return status;
    if (!root.ok() || absl::IsNotFound(status)) continue;
    if (!absl::IsNotFound(found)) {
      return absl::InvalidArgumentError(absl::StrCat("it lies in folders ", first + 1, " and ",
                                                     i + 1, " of --model_repository, wanted one"));
    }
    found = status;
    first = i;
  }
  return found;
}

absl::StatusOr<std::vector<std::int64_t>> Repository::Versions(absl::string_view name) const {
  const absl::StatusOr<RootFolder> root = RootOf(name);
  if (!root.ok()) return root.status();
  return ListVersions(*root, name);
}

VersionFiles Repository::FilesOf(absl::string_view name, std::int64_t version) const {
  const absl::StatusOr<RootFolder> root = RootOf(name);
  return root.ok() ? FilesIn(*root, name, version) : VersionFiles();
}

absl::StatusOr<v1::ModelConfig> Repository::ReadConfig(absl::string_view name) const {
  const absl::StatusOr<RootFolder> root = RootOf(name);
  if (!root.ok()) return root.status();
  OpenFiles open;
  return ReadCheckedConfig(*root, ConfigPath(name), open);
}

absl::StatusOr<Repository::Files> Repository::ReadOnce(absl::string_view name, std::int64_t version,
                                                       std::int64_t max_parameter_bytes) const {
  const absl::StatusOr<RootFolder> root = RootOf(name);
  if (!root.ok()) return root.status();
  const std::string config_path = ConfigPath(name);
  const std::string parameters_path = ParametersPath(name, version);
  OpenFiles open;
  absl::StatusOr<Files> files =
      ReadFiles(*root, config_path, parameters_path, max_parameter_bytes, open);
  if (after_read_) after_read_();
  // When the file was half written, an error is as meaningless as a result.
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
