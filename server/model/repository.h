// The model repository on disk: names and versions, and the files of one version.

#ifndef NORMD_SERVER_MODEL_REPOSITORY_H_
#define NORMD_SERVER_MODEL_REPOSITORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "normd/v1/model_config.pb.h"
#include "server/model/model.h"
#include "server/model/root_folder.h"

namespace normd {

// The state of one version's files; empty if they cannot be read.
struct VersionFiles {
  std::optional<FileState> config;
  std::optional<FileState> parameters;

  friend bool operator==(const VersionFiles&, const VersionFiles&) = default;
};

// The whole repository at one moment.
struct RepositoryScan {
  struct Model {
    // The reason if the versions are not known; for the log, because it has folders' paths.
    absl::Status status;
    std::map<std::int64_t, VersionFiles> versions;
  };
  struct Root {
    std::string path;
    absl::Status status;  // The reason if its models are not known; for the log.
    std::uint64_t device = 0;
    std::size_t models = 0;
  };
  // Without the folders that Repository::ModelNames leaves out.
  std::map<std::string, Model> models;
  std::vector<Root> roots;  // In their order.
};

// Reads <root>/<name>/config.textproto and <root>/<name>/<version>/params.safetensors, of one or
// several roots, and nothing outside them: RootFolder says which symbolic links it follows. A model
// lies in one root. Errors name files without their folders and quote none of their contents but
// names of a config's or header's fields: they reach clients. Thread-safe.
class Repository {
 public:
  // `after_read` is called each time after files have been read and before they are checked; a test
  // writes to them there.
  explicit Repository(std::vector<std::string> roots, std::function<void()> after_read = nullptr)
      : roots_(std::move(roots)), after_read_(std::move(after_read)) {}

  // The model folders of all roots, sorted. Leaves out names that begin with '.' or end in ".tmp"
  // or '~', which editors and copying tools give unfinished files. A folder whose name no request
  // could contain is left out with a line in the log. NotFound when a root is not a readable
  // directory, InvalidArgument when two roots have a folder of one name; both name the roots, for
  // the log.
  absl::StatusOr<std::vector<std::string>> ModelNames() const;

  // Looks at all folders and files, without reading any.
  RepositoryScan Scan() const;

  // The functions below require CheckModelName(name).ok().

  // OK; NotFound when there is no such folder; InvalidArgument when a link leads out, and when two
  // roots have one.
  absl::Status CheckModel(absl::string_view name) const;
  // The folders named by a positive integer without sign and leading zeros, ascending. NotFound
  // when the model does not exist; otherwise the reason why its folder cannot be listed.
  absl::StatusOr<std::vector<std::int64_t>> Versions(absl::string_view name) const;
  VersionFiles FilesOf(absl::string_view name, std::int64_t version) const;
  // Reads and checks it.
  absl::StatusOr<v1::ModelConfig> ReadConfig(absl::string_view name) const;

  struct Files {
    v1::ModelConfig config;
    std::vector<Parameter> parameters;
  };
  // Reads and checks the config, then the header of the parameters' file, and then the tensors that
  // the config asks for, which must not have NaN. A config without parameters needs no such file.
  // The result is from one state of both files: when one of them changes meanwhile, both are read
  // again, and after some 600 ms of changes the error is Aborted.
  absl::StatusOr<Files> Read(absl::string_view name, std::int64_t version,
                             std::int64_t max_parameter_bytes) const;

 private:
  // The root that has the model, else the first.
  absl::StatusOr<RootFolder> RootOf(absl::string_view name) const;
  absl::StatusOr<Files> ReadOnce(absl::string_view name, std::int64_t version,
                                 std::int64_t max_parameter_bytes) const;

  const std::vector<std::string> roots_;
  const std::function<void()> after_read_;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_REPOSITORY_H_
