// The model repository as it lies on disk: names and versions, and the files of one version.

#ifndef NORMD_SERVER_MODEL_REPOSITORY_H_
#define NORMD_SERVER_MODEL_REPOSITORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "normd/v1/model_config.pb.h"
#include "server/model/model.h"

namespace normd {

// Reads <root>/<name>/config.textproto and <root>/<name>/<version>/params.safetensors. Symbolic
// links are followed. Errors name files without their folders: they reach clients. Thread-safe.
class Repository {
 public:
  explicit Repository(std::string root) : root_(std::move(root)) {}

  // The model folders, sorted. Left out: what begins with '.' or ends in ".tmp" or '~', as editors
  // and copying tools name what is not finished. A folder whose name no request could say is left
  // out with a line in the log. NotFound when the root is not a readable directory.
  absl::StatusOr<std::vector<std::string>> ModelNames() const;

  // The functions below require CheckModelName(name).ok().

  bool HasModel(absl::string_view name) const;
  bool HasVersion(absl::string_view name, std::int64_t version) const;
  // The folders named by a positive integer without sign and leading zeros, ascending. Empty also
  // when the model is not there.
  std::vector<std::int64_t> Versions(absl::string_view name) const;

  struct Files {
    v1::ModelConfig config;
    std::vector<Parameter> parameters;
  };
  // Reads and checks the config, then reads the parameters. A config that asks for no parameters
  // needs no params.safetensors.
  absl::StatusOr<Files> Read(absl::string_view name, std::int64_t version,
                             std::int64_t max_parameter_bytes) const;

 private:
  std::string ModelFolder(absl::string_view name) const;
  std::string VersionFolder(absl::string_view name, std::int64_t version) const;

  const std::string root_;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_REPOSITORY_H_
