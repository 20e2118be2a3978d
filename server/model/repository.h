// The model repository as it lies on disk: names and versions, and the files of one version.

#ifndef NORMD_SERVER_MODEL_REPOSITORY_H_
#define NORMD_SERVER_MODEL_REPOSITORY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "normd/v1/model_config.pb.h"
#include "server/model/model.h"

namespace normd {

// Reads <root>/<name>/config.textproto and <root>/<name>/<version>/params.safetensors, and nothing
// outside the root: RootFolder says which symbolic links it follows. Errors name files without
// their folders and quote nothing of what is in them but names that a config or a header of ours
// has: they reach clients. Thread-safe.
class Repository {
 public:
  // `after_read` is called each time that files have been read and before they are checked; a test
  // writes to them there.
  explicit Repository(std::string root, std::function<void()> after_read = nullptr)
      : root_(std::move(root)), after_read_(std::move(after_read)) {}

  // The model folders, sorted. Left out: what begins with '.' or ends in ".tmp" or '~', as editors
  // and copying tools name what is not finished. A folder whose name no request could say is left
  // out with a line in the log. NotFound when the root is not a readable directory.
  absl::StatusOr<std::vector<std::string>> ModelNames() const;

  // The functions below require CheckModelName(name).ok().

  // OK; NotFound when there is no such folder; InvalidArgument when a link leads out.
  absl::Status CheckModel(absl::string_view name) const;
  // The folders named by a positive integer without sign and leading zeros, ascending. Empty also
  // when the model is not there.
  std::vector<std::int64_t> Versions(absl::string_view name) const;

  struct Files {
    v1::ModelConfig config;
    std::vector<Parameter> parameters;
  };
  // Reads and checks the config, then the header of the parameters' file, and then those tensors
  // that the config asks for. A config that asks for no parameters needs no file of them. What
  // comes back is of one state of both files: when one of them changes meanwhile, all is read
  // again, and after some 600 ms of changes the error is Aborted.
  absl::StatusOr<Files> Read(absl::string_view name, std::int64_t version,
                             std::int64_t max_parameter_bytes) const;

 private:
  absl::StatusOr<Files> ReadOnce(absl::string_view name, std::int64_t version,
                                 std::int64_t max_parameter_bytes) const;

  const std::string root_;
  const std::function<void()> after_read_;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_REPOSITORY_H_
