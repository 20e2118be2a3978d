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
                                                            const NpyReader& like) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    const bool plain = !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
    std::string written_path = plain ? path + ".part" : path;
    absl::StatusOr<NpyWriter> writer = NpyWriter::Create(written_path, like.dtype(), like.shape());
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
                                        const NpyReader& input, const std::string& output_path) {
  request.dtype = input.dtype();
  request.shape = input.shape();
  std::unique_ptr<OutputFile> output;
  if (!output_path.empty()) {
    absl::StatusOr<std::unique_ptr<OutputFile>> created = OutputFile::Create(output_path, input);
    if (!created.ok()) return created.status();
    output = *std::move(created);
  }
  std::int64_t read_bytes = 0;
  const auto read = [&](absl::Span<std::byte> out) {
    absl::Status status = input.ReadAt(read_bytes, out);
    read_bytes += static_cast<std::int64_t>(out.size());
    return status;
  };
  const auto write = [&](absl::Span<const std::byte> bytes) {
    return output == nullptr ? absl::OkStatus() : output->Append(bytes);
  };
  absl::StatusOr<StreamResult> result = client.NormalizeStream(request, read, write);
  if (!result.ok() || output == nullptr) return result;
  if (absl::Status status = output->Commit(); !status.ok()) return status;
  return result;
}

absl::StatusOr<Comparison> CompareFiles(const ReferenceModel& reference, const NpyReader& input,
                                        const NpyReader& output) {
  Comparison whole;
  const std::int64_t samples = input.shape().rank() == 0 ? 0 : input.shape().dim(0);
  if (samples == 0 || input.bytes() == 0) return whole;
  const std::int64_t step =
      std::clamp<std::int64_t>(kCompareBytes / (input.bytes() / samples), 1, samples);
  for (std::int64_t first = 0; first < samples; first += step) {
    const std::int64_t count = std::min(step, samples - first);
    const absl::StatusOr<Tensor> x = ReadSamples(input, first, count);
    if (!x.ok()) return x.status();
    const absl::StatusOr<Tensor> y = ReadSamples(output, first, count);
    if (!y.ok()) return y.status();
    const absl::StatusOr<std::vector<double>> expected = reference.Compute(x->view());
    if (!expected.ok()) return expected.status();
    const absl::Span<const std::byte> bytes = y->bytes();
    Add(Compare(y->dtype(), absl::MakeConstSpan(&bytes, 1), *expected), whole);
  }
  return whole;
}

}  // namespace normd::client
