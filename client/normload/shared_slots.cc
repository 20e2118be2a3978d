#include "client/normload/shared_slots.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd::load {
namespace {

// The places of a request's tensors in its region, one after another.
struct Layout {
  std::size_t inputs = 0;            // Bytes of all inputs; the first slot begins there.
  std::size_t slot = 0;              // Bytes of a slot.
  std::vector<std::size_t> outputs;  // Bytes of each output.
};

absl::StatusOr<Layout> LayoutOf(const client::NormalizeRequest& request,
                                absl::Span<const client::TensorSpec> outputs) {
  Layout layout;
  for (const client::NamedTensor& input : request.inputs) {
    layout.inputs += client::WholePages(input.tensor.bytes.size());
  }
  for (const client::TensorSpec& output : outputs) {
    const absl::StatusOr<std::int64_t> bytes = client::TensorBytes(output.dtype, output.shape);
    if (!bytes.ok()) return bytes.status();
    layout.outputs.push_back(static_cast<std::size_t>(*bytes));
    layout.slot += client::WholePages(layout.outputs.back());
  }
  return layout;
}

// Copies the inputs into the region, and makes the request name them there.
absl::Status PlaceInputs(const client::Region& region, client::NormalizeRequest& request) {
  std::size_t at = 0;
  for (client::NamedTensor& input : request.inputs) {
    const auto& tensor = input.tensor;
    absl::StatusOr<client::NamedTensor> placed =
        region.Input(input.name, tensor.dtype, tensor.shape, at);
    if (!placed.ok()) return placed.status();
    if (absl::Status status = region.Write(at, tensor.bytes); !status.ok()) return status;
    at += client::WholePages(tensor.bytes.size());
    input = *std::move(placed);
  }
  return absl::OkStatus();
}

// The same request with its outputs in the slot that begins at `at`.
absl::StatusOr<client::NormalizeRequest> InSlot(const client::Region& region,
                                                client::NormalizeRequest request,
                                                absl::Span<const client::TensorSpec> outputs,
                                                const Layout& layout, std::size_t at) {
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    absl::StatusOr<client::SharedOutput> output =
        region.Output(outputs[k].name, at, layout.outputs[k]);
    if (!output.ok()) return output.status();
    request.shared_outputs.push_back(*std::move(output));
    at += client::WholePages(layout.outputs[k]);
  }
  return request;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedSlots>> SharedSlots::Create(
    const client::NormalizeRequest& request, absl::Span<const client::TensorSpec> outputs,
    const SharedSlotsOptions& options) {
  const absl::StatusOr<Layout> layout = LayoutOf(request, outputs);
  if (!layout.ok()) return layout.status();
  const std::size_t bytes = layout->inputs + options.slots * layout->slot;
  const auto region = options.make(bytes);
  if (!region.ok()) {
    return absl::Status(region.status().code(),
                        absl::StrCat("--", options.flag, ": ", bytes, " bytes for ", options.slots,
                                     " calls at once: ", region.status().message()));
  }
  client::NormalizeRequest placed = request;
  if (absl::Status status = PlaceInputs(**region, placed); !status.ok()) return status;
  std::optional<client::NormalizeRequest> first;
  std::vector<client::EncodedRequest> requests;
  for (std::size_t slot = 0; slot < options.slots; ++slot) {
    absl::StatusOr<client::NormalizeRequest> one =
        InSlot(**region, placed, outputs, *layout, layout->inputs + slot * layout->slot);
    if (!one.ok()) return one.status();
    absl::StatusOr<client::EncodedRequest> encoded = client::EncodedRequest::Create(*one);
    if (!encoded.ok()) return encoded.status();
    requests.push_back(*std::move(encoded));
    if (!first) first = *std::move(one);
  }
  return std::unique_ptr<SharedSlots>(
      new SharedSlots(*region, *std::move(first), std::move(requests)));
}

SharedSlots::SharedSlots(std::shared_ptr<const client::Region> region,
                         client::NormalizeRequest first,
                         std::vector<client::EncodedRequest> requests)
    : region_(std::move(region)), first_(std::move(first)), requests_(std::move(requests)) {
  MutexLock lock(mutex_);
  for (std::size_t slot = 0; slot < requests_.size(); ++slot) free_.push_back(slot);
}

std::optional<std::size_t> SharedSlots::Take() {
  MutexLock lock(mutex_);
  if (free_.empty()) return std::nullopt;
  const std::size_t slot = free_.front();
  free_.pop_front();
  return slot;
}

absl::StatusOr<std::vector<client::Tensor>> SharedSlots::ReadOutputs(
    std::size_t slot, const client::NormalizeResponse& response) const {
  std::vector<client::Tensor> tensors;
  for (const client::OutputTensor& output : response.outputs()) {
    absl::StatusOr<client::Tensor> tensor =
        client::Tensor::Allocate(output.dtype(), output.shape());
    if (!tensor.ok()) return tensor.status();
    // The bytes of an output in the slot have its address, which this process may not be able to
    // read.
    const auto& places = requests_[slot].shared()->outputs;
    const auto place = std::find_if(places.begin(), places.end(), [&](const auto& one) {
      return !output.pieces().empty() && output.pieces().front().data() == one.bytes.data();
    });
    if (place == places.end()) {
      output.CopyTo(tensor->mutable_bytes());
    } else if (absl::Status status = region_->Read(static_cast<std::size_t>(place->region_offset),
                                                   tensor->mutable_bytes());
               !status.ok()) {
      return status;
    }
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

void SharedSlots::Give(std::size_t slot, bool responded) {
  MutexLock lock(mutex_);
  if (responded) {
    free_.push_front(slot);
  } else {
    free_.push_back(slot);
  }
}

}  // namespace normd::load
