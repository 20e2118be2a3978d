#include "client/normctl/tensor_files.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace normd::client {
namespace {

bool IsNameCharacter(char c) {
  return c == '_' || absl::ascii_isalnum(static_cast<unsigned char>(c));
}

}  // namespace

TensorPath ParseTensorPath(absl::string_view text) {
  const std::size_t equals = text.find('=');
  const absl::string_view name = text.substr(0, equals);
  const bool is_named = equals != absl::string_view::npos && !name.empty() &&
                        std::all_of(name.begin(), name.end(), IsNameCharacter);
  if (!is_named) return {"", std::string(text)};
  return {std::string(name), std::string(text.substr(equals + 1))};
}

absl::StatusOr<std::vector<InputFile>> OpenInputs(std::vector<TensorPath> paths) {
  bool has_nameless = false;
  for (TensorPath& path : paths) {
    if (!path.name.empty() || paths.size() == 1) continue;
    if (std::exchange(has_nameless, true)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path.path, ": a second input without a name, wanted NAME=FILE"));
    }
    path.name = std::string(kFirstInput);
  }
  std::vector<InputFile> inputs;
  for (TensorPath& path : paths) {
    absl::StatusOr<NpyReader> file = NpyReader::Open(path.path);
    if (!file.ok()) return file.status();
    inputs.push_back({std::move(path.name), *std::move(file)});
  }
  return inputs;
}

absl::StatusOr<std::vector<std::string>> OutputPaths(absl::Span<const TensorSpec> outputs,
                                                     absl::Span<const TensorPath> given) {
  std::vector<std::string> paths(outputs.size());
  for (const TensorPath& path : given) {
    auto output = std::find_if(outputs.begin(), outputs.end(),
                               [&](const TensorSpec& spec) { return spec.name == path.name; });
    if (path.name.empty()) output = outputs.size() == 1 ? outputs.begin() : outputs.end();
    if (output == outputs.end()) {
      const std::string names =
          absl::StrJoin(outputs, ", ", [](std::string* out, const TensorSpec& spec) {
            absl::StrAppend(out, spec.name.empty() ? "FILE" : spec.name + "=FILE");
          });
      return absl::InvalidArgumentError(absl::StrCat(
          "-o: ", path.name.empty() ? path.path : path.name + "=" + path.path, ", wanted ", names));
    }
    paths[static_cast<std::size_t>(output - outputs.begin())] = path.path;
  }
  return paths;
}

}  // namespace normd::client
