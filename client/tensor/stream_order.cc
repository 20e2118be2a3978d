#include "client/tensor/stream_order.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd::client {

StreamOrder::StreamOrder(absl::Span<const TensorSpec> tensors, std::int64_t samples) {
  for (const TensorSpec& tensor : tensors) {
    const int rank = tensor.shape.rank();
    std::int64_t elements = rank == 0 ? 1 : tensor.shape.dim(rank - 1);
    if (samples > 0) elements = tensor.shape.elements() / samples;
    tensors_.push_back({elements * static_cast<std::int64_t>(norm::SizeOf(tensor.dtype)), 0});
  }
}

StreamOrder::Run StreamOrder::Next(std::int64_t most) {
  if (tensors_.size() == 1) {
    const Run run{0, tensors_[0].at, most};
    tensors_[0].at += most;
    return run;
  }
  // Tensors whose samples are empty are skipped.
  while (tensors_[next_].sample_bytes == 0) next_ = (next_ + 1) % tensors_.size();
  Position& position = tensors_[next_];
  const std::int64_t left = position.sample_bytes - position.at % position.sample_bytes;
  const Run run{next_, position.at, std::min(left, most)};
  position.at += run.size;
  if (run.size == left) next_ = (next_ + 1) % tensors_.size();
  return run;
}

absl::StatusOr<Tensor> JoinStream(absl::Span<const Tensor> tensors, std::int64_t samples) {
  std::vector<TensorSpec> specs;
  std::int64_t total = 0;
  for (const Tensor& tensor : tensors) {
    if (samples < 1 || tensor.shape().elements() % samples != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape: ", tensor.shape().ToString(), ", wanted ", samples, " samples"));
    }
    specs.push_back(tensor.spec());
    total += static_cast<std::int64_t>(tensor.bytes().size());
  }
  const absl::StatusOr<Shape> shape = Shape::Create({total});
  if (!shape.ok()) return shape.status();
  absl::StatusOr<Tensor> stream = Tensor::Allocate(norm::DType::kInt8, *shape);
  if (!stream.ok()) return stream;
  StreamOrder order(specs, samples);
  for (absl::Span<std::byte> rest = stream->mutable_bytes(); !rest.empty();) {
    const StreamOrder::Run run = order.Next(static_cast<std::int64_t>(rest.size()));
    const auto size = static_cast<std::size_t>(run.size);
    std::memcpy(rest.data(), tensors[run.tensor].bytes().data() + run.offset, size);
    rest.remove_prefix(size);
  }
  return stream;
}

absl::StatusOr<std::vector<Tensor>> SplitStream(absl::Span<const TensorSpec> tensors,
                                                absl::Span<const std::byte> stream,
                                                std::int64_t samples) {
  std::vector<Tensor> split;
  std::size_t total = 0;
  for (const TensorSpec& spec : tensors) {
    absl::StatusOr<Tensor> tensor = Tensor::Allocate(spec.dtype, spec.shape);
    if (!tensor.ok()) return tensor.status();
    total += tensor->bytes().size();
    split.push_back(*std::move(tensor));
  }
  if (total != stream.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("stream: ", stream.size(), " bytes, wanted ", total));
  }
  StreamOrder order(tensors, samples);
  while (!stream.empty()) {
    const StreamOrder::Run run = order.Next(static_cast<std::int64_t>(stream.size()));
    const auto size = static_cast<std::size_t>(run.size);
    std::memcpy(split[run.tensor].mutable_bytes().data() + run.offset, stream.data(), size);
    stream.remove_prefix(size);
  }
  return split;
}

}  // namespace normd::client
