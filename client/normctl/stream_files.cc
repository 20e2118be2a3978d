#include "client/normctl/stream_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace normd::client {
namespace {

// Of the input, held against the reference at once.
constexpr std::int64_t kCompareBytes = std::int64_t{16} << 20;

// The file that a stream writes: under another name until it is whole, unless the path leads to
// something that is no file, such as a device.
class OutputFile {
 public:
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path,
                                                            norm::DType dtype, const Shape& shape) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    const bool plain = !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
    std::string written_path = plain ? path + ".part" : path;
    absl::StatusOr<NpyWriter> writer = NpyWriter::Create(written_path, dtype, shape);
    if (!writer.ok()) return writer.status();
    return std::unique_ptr<OutputFile>(
        new OutputFile(path, std::move(written_path), *std::move(writer)));
  }
  ~OutputFile() {
    if (path_ == written_path_) return;
    std::error_code ignored;
    std::filesystem::remove(written_path_, ignored);
  }

  absl::Status Append(absl::Span<const std::byte> bytes) {
    absl::Status status = writer_.WriteAt(size_, bytes);
    size_ += static_cast<std::int64_t>(bytes.size());
    return status;
  }

  absl::Status Commit() {
    if (absl::Status closed = writer_.Close(); !closed.ok()) return closed;
    if (path_ == written_path_) return absl::OkStatus();
    std::error_code error;
    std::filesystem::rename(written_path_, path_, error);
    if (!error) return absl::OkStatus();
    return absl::UnknownError(absl::StrCat(path_, ": rename: ", error.message()));
  }

 private:
  OutputFile(std::string path, std::string written_path, NpyWriter writer)
      : path_(std::move(path)),
        written_path_(std::move(written_path)),
        writer_(std::move(writer)) {}

  const std::string path_;
  const std::string written_path_;
  NpyWriter writer_;
  std::int64_t size_ = 0;
};

// The inputs' bytes in the stream's order: a sample of each in turn, or those of a single input.
class StreamOrder {
 public:
  explicit StreamOrder(const InputFiles& input)
      : files_{input.x, input.y}, several_(input.y != nullptr) {
    for (std::size_t i = 0; several_ && i < 2; ++i) {
      const Shape& shape = files_[i]->shape();
      const std::int64_t features = shape.rank() == 0 ? 1 : shape.dim(shape.rank() - 1);
      sample_bytes_[i] = features * static_cast<std::int64_t>(norm::SizeOf(files_[i]->dtype()));
    }
  }

  absl::Status Read(absl::Span<std::byte> out) {
    while (!out.empty()) {
      std::int64_t& at = at_[next_];
      auto size = static_cast<std::int64_t>(out.size());
      if (several_) size = std::min(size, sample_bytes_[next_] - at % sample_bytes_[next_]);
      const auto part = out.subspan(0, static_cast<std::size_t>(size));
      if (absl::Status status = files_[next_]->ReadAt(at, part); !status.ok()) return status;
      out.remove_prefix(part.size());
      at += size;
      if (several_ && at % sample_bytes_[next_] == 0) next_ = 1 - next_;
    }
    return absl::OkStatus();
  }

 private:
  const NpyReader* const files_[2];
  const bool several_;
  std::int64_t sample_bytes_[2] = {};
  std::int64_t at_[2] = {};
  std::size_t next_ = 0;
};

// The tensor's samples from `first` on.
absl::StatusOr<Tensor> ReadSamples(const NpyReader& file, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> dims(file.shape().dims().begin(), file.shape().dims().end());
  const std::int64_t sample_bytes = file.bytes() / dims[0];
  dims[0] = count;
  absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) return shape.status();
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(file.dtype(), *std::move(shape));
  if (!tensor.ok()) return tensor.status();
  absl::Status read = file.ReadAt(first * sample_bytes, tensor->mutable_bytes());
  if (!read.ok()) return read;
  return tensor;
}

void Add(const Comparison& part, Comparison& whole) {
  if (part.max_error > whole.max_error || whole.worst_index < 0) {
    whole.max_error = part.max_error;
    whole.worst_index = part.worst_index < 0 ? -1 : whole.elements + part.worst_index;
    whole.worst_expected = part.worst_expected;
    whole.worst_got = part.worst_got;
  }
  whole.elements += part.elements;
  whole.wrong += part.wrong;
}

}  // namespace

absl::StatusOr<StreamResult> StreamFile(Client& client, StreamRequest request,
                                        const InputFiles& input, const std::string& output_path) {
  request.dtype = input.x->dtype();
  request.shape = input.x->shape();
  if (input.y != nullptr) {
    if (input.y->dtype() != request.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          "y: ", norm::Name(input.y->dtype()), ", wanted ", norm::Name(request.dtype), " as of x"));
    }
    request.y_shape = input.y->shape();
  }
  std::unique_ptr<OutputFile> output;
  request.on_accepted = [&](const StreamResult& accepted) {
    if (output_path.empty()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<OutputFile>> created =
        OutputFile::Create(output_path, request.dtype, accepted.shape);
    if (!created.ok()) return created.status();
    output = *std::move(created);
    return absl::OkStatus();
  };
  StreamOrder order(input);
  const auto read = [&](absl::Span<std::byte> out) { return order.Read(out); };
  const auto write = [&](absl::Span<const std::byte> bytes) {
    return output == nullptr ? absl::OkStatus() : output->Append(bytes);
  };
  absl::StatusOr<StreamResult> result = client.NormalizeStream(request, read, write);
  if (!result.ok() || output == nullptr) return result;
  if (absl::Status status = output->Commit(); !status.ok()) return status;
  return result;
}

absl::StatusOr<Comparison> CompareFiles(const ReferenceModel& reference, const InputFiles& input,
                                        const NpyReader& output) {
  Comparison whole;
  const NpyReader& file = *input.x;
  const std::int64_t samples = file.shape().rank() == 0 ? 0 : file.shape().dim(0);
  if (samples == 0 || file.bytes() == 0) return whole;
  const std::int64_t step =
      std::clamp<std::int64_t>(kCompareBytes / (file.bytes() / samples), 1, samples);
  for (std::int64_t first = 0; first < samples; first += step) {
    const std::int64_t count = std::min(step, samples - first);
    const absl::StatusOr<Tensor> x = ReadSamples(file, first, count);
    if (!x.ok()) return x.status();
    absl::StatusOr<Tensor> y;
    TensorView y_view;
    if (input.y != nullptr) {
      y = ReadSamples(*input.y, first, count);
      if (!y.ok()) return y.status();
      y_view = y->view();
    }
    const absl::StatusOr<Tensor> got = ReadSamples(output, first, count);
    if (!got.ok()) return got.status();
    const absl::StatusOr<std::vector<double>> expected =
        reference.Compute(x->view(), input.y == nullptr ? nullptr : &y_view);
    if (!expected.ok()) return expected.status();
    const absl::Span<const std::byte> bytes = got->bytes();
    Add(Compare(got->dtype(), absl::MakeConstSpan(&bytes, 1), *expected), whole);
  }
  return whole;
}

}  // namespace normd::client
