#include "client/normctl/stream_files.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "client/tensor/stream_order.h"
#include "flags/flag_checks.h"

namespace normd::client {
namespace {

// Bytes of the input that are compared with the reference at once.
constexpr std::int64_t kCompareBytes = std::int64_t{16} << 20;

// Where an output is written until it is whole: beside its file, or, unless the path leads to one,
// such as to a device, there.
std::string WrittenPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  const bool plain = !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
  return plain ? path + ".part" : path;
}

// InvalidArgument if an output would be written over an input while that is read, or where another
// output is to stay.
absl::Status CheckApart(absl::Span<const std::string> outputs, absl::Span<const InputFile> inputs) {
  for (const std::string& path : outputs) {
    if (path.empty()) continue;
    const std::string written = WrittenPath(path);
    for (const std::string& other : outputs) {
      if (&other == &path || other.empty() || !IsSameFile(written, other)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("-o: ", path, " is written as ", written,
                       " until it is whole, which is another output, wanted another file"));
    }
    for (const InputFile& input : inputs) {
      std::error_code absent;
      if (!std::filesystem::equivalent(written, input.file.path(), absent)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("-o: ", path, " is written as ", written,
                       " until it is whole, which is an input, wanted another file"));
    }
  }
  return absl::OkStatus();
}

// A stream's output file.
class OutputFile {
 public:
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path,
                                                            norm::DType dtype, const Shape& shape) {
    std::string written_path = WrittenPath(path);
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

// Some of the tensor's samples, from `first` on.
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

// The inputs' bytes in the stream's order.
class InputStream {
 public:
  InputStream(absl::Span<const TensorSpec> specs, std::int64_t samples,
              absl::Span<const InputFile> files)
      : order_(specs, samples), files_(files) {}

  absl::Status Read(absl::Span<std::byte> out) {
    while (!out.empty()) {
      const StreamOrder::Run run = order_.Next(static_cast<std::int64_t>(out.size()));
      const auto part = out.subspan(0, static_cast<std::size_t>(run.size));
      if (absl::Status s = files_[run.tensor].file.ReadAt(run.offset, part); !s.ok()) return s;
      out.remove_prefix(part.size());
    }
    return absl::OkStatus();
  }

 private:
  StreamOrder order_;
  const absl::Span<const InputFile> files_;
};

// The outputs' files, which get their bytes in the stream's order.
class OutputStream {
 public:
  static absl::StatusOr<std::unique_ptr<OutputStream>> Create(absl::Span<const TensorSpec> specs,
                                                              std::int64_t samples,
                                                              absl::Span<const std::string> paths) {
    auto stream = std::unique_ptr<OutputStream>(new OutputStream(specs, samples));
    for (std::size_t i = 0; i < specs.size(); ++i) {
      stream->files_.emplace_back();
      if (paths[i].empty()) continue;
      auto file = OutputFile::Create(paths[i], specs[i].dtype, specs[i].shape);
      if (!file.ok()) return file.status();
      stream->files_.back() = *std::move(file);
    }
    return stream;
  }

  absl::Status Write(ConstBytes bytes) {
    while (!bytes.empty()) {
      const StreamOrder::Run run = order_.Next(static_cast<std::int64_t>(bytes.size()));
      const ConstBytes part = bytes.first(static_cast<std::size_t>(run.size));
      bytes.remove_prefix(part.size());
      OutputFile* file = files_[run.tensor].get();
      if (file == nullptr) continue;
      if (absl::Status status = file->Append(part); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Commit() {
    for (const std::unique_ptr<OutputFile>& file : files_) {
      if (file == nullptr) continue;
      if (absl::Status status = file->Commit(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  OutputStream(absl::Span<const TensorSpec> specs, std::int64_t samples) : order_(specs, samples) {}

  StreamOrder order_;
  std::vector<std::unique_ptr<OutputFile>> files_;  // Null: dropped.
};

// Some samples of every file, from `first` on.
absl::StatusOr<std::vector<Tensor>> ReadAllSamples(absl::Span<const InputFile> files,
                                                   std::int64_t first, std::int64_t count) {
  std::vector<Tensor> tensors;
  for (const InputFile& file : files) {
    absl::StatusOr<Tensor> tensor = ReadSamples(file.file, first, count);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

struct Samples {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

absl::StatusOr<Comparison> CompareSamples(const ReferenceModel& reference,
                                          absl::Span<const InputFile> input_files,
                                          absl::Span<const InputFile> output_files,
                                          absl::Span<const std::string> wanted, Samples samples) {
  const auto [first, count] = samples;
  const auto inputs = ReadAllSamples(input_files, first, count);
  if (!inputs.ok()) return inputs.status();
  const auto outputs = ReadAllSamples(output_files, first, count);
  if (!outputs.ok()) return outputs.status();
  std::vector<NamedTensor> named;
  for (std::size_t i = 0; i < inputs->size(); ++i) {
    named.push_back((*inputs)[i].named(input_files[i].name));
  }
  const auto expected = reference.Compute(named, wanted);
  if (!expected.ok()) return expected.status();
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < outputs->size(); ++i) {
    specs.push_back((*outputs)[i].spec(output_files[i].name));
  }
  return CompareOutputs(ReceivedTensors(specs, *outputs).tensors(), *expected);
}

}  // namespace

absl::StatusOr<StreamResult> StreamFiles(Client& client, StreamRequest request,
                                         absl::Span<const InputFile> inputs,
                                         const ChoosePaths& choose_paths) {
  for (const InputFile& input : inputs) request.inputs.push_back(input.spec());
  std::optional<InputStream> input;  // Set once the server has reported the number of samples.
  std::unique_ptr<OutputStream> output;
  request.on_accepted = [&](const StreamResult& accepted) {
    const absl::StatusOr<std::vector<std::string>> paths = choose_paths(accepted.outputs);
    if (!paths.ok()) return paths.status();
    if (absl::Status apart = CheckApart(*paths, inputs); !apart.ok()) return apart;
    absl::StatusOr<std::unique_ptr<OutputStream>> created =
        OutputStream::Create(accepted.outputs, accepted.samples, *paths);
    if (!created.ok()) return created.status();
    output = *std::move(created);
    input.emplace(request.inputs, accepted.samples, inputs);
    return absl::OkStatus();
  };
  const auto read = [&](absl::Span<std::byte> out) { return input->Read(out); };
  const auto write = [&](ConstBytes bytes) { return output->Write(bytes); };
  absl::StatusOr<StreamResult> result = client.NormalizeStream(request, read, write);
  if (!result.ok()) return result;
  if (absl::Status status = output->Commit(); !status.ok()) return status;
  return result;
}

absl::StatusOr<Comparison> CompareFiles(const ReferenceModel& reference,
                                        absl::Span<const InputFile> inputs,
                                        absl::Span<const InputFile> outputs,
                                        absl::Span<const std::string> wanted) {
  Comparison whole;
  const NpyReader& file = inputs.front().file;
  const std::int64_t samples = file.shape().rank() == 0 ? 0 : file.shape().dim(0);
  if (samples == 0 || file.bytes() == 0) return whole;
  const std::int64_t step =
      std::clamp<std::int64_t>(kCompareBytes / (file.bytes() / samples), 1, samples);
  for (std::int64_t first = 0; first < samples; first += step) {
    const absl::StatusOr<Comparison> part = CompareSamples(
        reference, inputs, outputs, wanted, {first, std::min(step, samples - first)});
    if (!part.ok()) return part.status();
    Add(*part, whole);
  }
  return whole;
}

}  // namespace normd::client
