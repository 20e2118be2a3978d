#include "client/normctl/tensor_files.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output_specs.h"
#include "client/shared_region.h"

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

namespace {

std::vector<TensorSpec> SpecsOf(const std::vector<InputFile>& inputs) {
  std::vector<TensorSpec> specs;
  for (const InputFile& input : inputs) specs.push_back(input.spec());
  return specs;
}

}  // namespace

absl::Status ShareFiles(const SharedMemoryServer& server, const v1::ModelInfo& model,
                        const std::vector<InputFile>& inputs, NormalizeRequest& request) {
  const absl::StatusOr<std::vector<TensorSpec>> outputs =
      OutputSpecs(model, SpecsOf(inputs), request.outputs);
  if (!outputs.ok()) return outputs.status();
  std::size_t size = 0;
  for (const InputFile& input : inputs)
    size += WholePages(static_cast<std::size_t>(input.file.bytes()));
  std::vector<std::size_t> output_bytes;
  for (const TensorSpec& output : *outputs) {
    const absl::StatusOr<std::int64_t> bytes = TensorBytes(output.dtype, output.shape);
    if (!bytes.ok()) return bytes.status();
    output_bytes.push_back(static_cast<std::size_t>(*bytes));
    size += WholePages(output_bytes.back());
  }
  const auto region = SharedRegion::Create(server.address, size, server.token);
  if (!region.ok()) return region.status();
  std::size_t at = 0;
  for (const InputFile& input : inputs) {
    const TensorSpec spec = input.spec();
    absl::StatusOr<NamedTensor> tensor = (*region)->Input(spec.name, spec.dtype, spec.shape, at);
    if (!tensor.ok()) return tensor.status();
    const auto bytes = static_cast<std::size_t>(input.file.bytes());
    absl::Status read = input.file.ReadAt(0, {(*region)->data() + at, bytes});
    if (!read.ok()) return read;
    request.inputs.push_back(*std::move(tensor));
    at += WholePages(bytes);
  }
  for (std::size_t k = 0; k < outputs->size(); ++k) {
    absl::StatusOr<SharedOutput> output =
        (*region)->Output((*outputs)[k].name, at, output_bytes[k]);
    if (!output.ok()) return output.status();
    request.shared_outputs.push_back(*std::move(output));
    at += WholePages(output_bytes[k]);
  }
  return absl::OkStatus();
}

}  // namespace normd::client
