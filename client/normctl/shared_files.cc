#include "client/normctl/shared_files.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "client/output_specs.h"
#include "client/shared_region.h"

namespace normd::client {
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
