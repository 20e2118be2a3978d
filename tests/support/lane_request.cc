#include "tests/support/lane_request.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/verify/reference_model.h"
#include "kernels/segment_tensors.h"

namespace normd {
namespace {

using norm::DType;
using norm::testing::Tensor;

std::vector<TensorType> TypesOf(const Model& model, const std::vector<Dims>& shapes, DType dtype) {
  std::vector<TensorType> types;
  for (const Dims& dims : shapes) {
    types.push_back({DTypeOf(model.inputs()[types.size()], dtype), *Shape::Create(dims)});
  }
  return types;
}

std::int64_t CountOf(const TensorSize& size) {
  return size.bytes / static_cast<std::int64_t>(norm::SizeOf(size.dtype));
}

ConstBytes BytesOf(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data()), tensor.bytes()};
}

// The length of the piece that begins `at` bytes from the input's begin; 0: an empty piece.
std::size_t PieceAt(Split split, std::size_t at, std::size_t size, std::size_t sample_bytes,
                    bool was_empty, std::mt19937_64& random) {
  switch (split) {
    case Split::kOnePiece:
    case Split::kMisaligned: return size;
    case Split::kAtSamples: return sample_bytes * (random() % 3 + 1);
    case Split::kAnywhere: return random() % (2 * sample_bytes) + 1;
    case Split::kSingleBytes: return at < (std::size_t{128} << 10) ? 1 : size;
    case Split::kAdjacent: return at == 0 ? std::max<std::size_t>(size / 3, 1) : size;
    case Split::kWithEmpty:
      if (at == 0) return was_empty ? 1 : 0;
      if (at == 1) return 3;
      if (at == 4) return was_empty ? size / 2 : 0;
      return std::max<std::size_t>(size - at, 4) - 3;
    case Split::kSlices: return random() % 777 + 1;
  }
  return size;
}

const norm::NormSpec* SpecOf(const KernelProgram& program) {
  const auto* norm_program = std::get_if<NormProgram>(&program);
  return norm_program == nullptr ? nullptr : &norm_program->specs.front();
}

// Whether output `index` is to have the reference's bits.
bool IsExact(const KernelProgram& program, std::size_t index) {
  const norm::NormSpec* const spec = SpecOf(program);
  return spec != nullptr && !spec->gate &&
         norm::OutputsOf(*spec)[index] == norm::SegmentOutput::kResidualOut;
}

// The bounds of the kernels for inputs of type `x`.
norm::testing::Tolerance ToleranceOf(const KernelProgram& program, Closeness closeness, DType x,
                                     DType output) {
  norm::testing::Tolerance tolerance = norm::testing::TightTolerance(output);
  const norm::NormSpec* const spec = SpecOf(program);
  if (spec == nullptr) tolerance.absolute = 2e-5;
  // A gated sum may be rounded to a neighbour of the reference's, and moves its row.
  if (spec != nullptr && spec->gate && norm::SizeOf(x) == 2) {
    tolerance.absolute = x == DType::kFloat16 ? 0x1p-8 : 0x1p-5;
  }
  if (closeness == Closeness::kDeviceKernels && norm::SizeOf(output) > 2) {
    tolerance.absolute = std::max(tolerance.absolute, output == DType::kFloat64 ? 1e-11 : 2e-5);
    tolerance.relative = output == DType::kFloat64 ? 1e-11 : 2e-5;
  }
  return tolerance;
}

// Each element is at most a step of its format from the exact one.
std::string CompareQuantized(const Tensor& got, const std::vector<double>& expected) {
  const bool int8 = got.dtype() == DType::kInt8;
  for (std::int64_t i = 0; i < got.count(); ++i) {
    const double exact = expected[static_cast<std::size_t>(i)];
    const double step = int8 ? 1 : std::max(std::fabs(exact) / 8, 0x1p-9);
    const double held = int8 ? std::clamp(exact, -128.0, 127.0) : std::clamp(exact, -448.0, 448.0);
    if (!(std::fabs(got.Get(i) - held) <= 0.5001 * step)) {
      return absl::StrCat("element ", i, ": ", got.Get(i), ", wanted ", held);
    }
  }
  return "";
}

std::string CompareOutput(const KernelProgram& program, std::size_t index, Closeness closeness,
                          DType x, const Tensor& got, const std::vector<double>& expected) {
  if (closeness == Closeness::kRounded || IsExact(program, index)) {
    return norm::testing::Compare(got, expected, {});
  }
  if (norm::SizeOf(got.dtype()) == 1) return CompareQuantized(got, expected);
  return norm::testing::Compare(got, expected, ToleranceOf(program, closeness, x, got.dtype()));
}

}  // namespace

LaneRequest::LaneRequest(const std::shared_ptr<const Model>& model, const std::vector<Dims>& shapes,
                         DType dtype, std::uint64_t seed)
    : model_(model),
      seed_(norm::testing::TestSeed() + seed),
      end_(std::make_shared<End>()),
      request_(std::make_unique<Request>()) {
  const std::vector<TensorType> types = TypesOf(*model, shapes, dtype);
  const absl::StatusOr<Geometry> geometry = model->Check(types);
  if (!geometry.ok()) {
    std::fprintf(stderr, "test request: %s\n", geometry.status().ToString().c_str());
    std::abort();
  }
  geometry_ = *geometry;
  request_->model = model;
  request_->dtype = dtype;
  request_->geometry = geometry_;
  for (std::size_t i = 0; i < types.size(); ++i) {
    Tensor& tensor = inputs_.emplace_back(types[i].dtype, types[i].shape.elements());
    const std::int64_t values = model->inputs()[i].values;
    if (values == 0) tensor.Fill(norm::testing::Data::kNormal, seed_ + i);
    for (std::int64_t k = 0; k < tensor.count() && values > 0; ++k) {
      tensor.Set(k, static_cast<double>((7 * k + 3) % values));
    }
  }
  named_.resize(geometry_.outputs.size());
  request_->done = [end = end_](Completion completion) {
    ++end->calls;
    end->inputs_released = end->inputs.expired();
    end->completion = std::move(completion);
  };
  Lay(Split::kOnePiece);
}

void LaneRequest::AskForStatistics() {
  const std::shared_ptr<const Model> model = model_.lock();
  for (std::size_t i = 0; i < geometry_.outputs.size(); ++i) {
    TensorSize& size = geometry_.outputs[i];
    if (!model->outputs()[i].on_request) continue;
    size.bytes = geometry_.rows * static_cast<std::int64_t>(norm::SizeOf(size.dtype));
  }
  request_->geometry = geometry_;
}

void LaneRequest::Own(std::shared_ptr<void> memory) {
  end_->inputs = memory;
  request_->input_owner = std::move(memory);
}

ByteViews LaneRequest::Lay(ConstBytes bytes, Split split, std::vector<std::byte>& memory) const {
  std::mt19937_64 random(seed_);
  const std::size_t size = bytes.size();
  const auto samples = static_cast<std::size_t>(std::max<std::int64_t>(geometry_.samples, 1));
  const std::size_t sample_bytes = std::max<std::size_t>(size / samples, 1);
  memory.assign(3 * size + 64, std::byte{0xff});
  std::byte* to = memory.data() + (split == Split::kMisaligned ? 1 : 0);
  ByteViews views;
  bool was_empty = false;
  for (std::size_t at = 0; at < size;) {
    const std::size_t part =
        std::min(PieceAt(split, at, size, sample_bytes, was_empty, random), size - at);
    was_empty = part == 0;
    if (part > 0) std::memcpy(to, bytes.data() + at, part);
    views.emplace_back(to, part);
    at += part;
    to += part;
    if (split == Split::kSingleBytes) ++to;
    if (split != Split::kSingleBytes && split != Split::kAdjacent) to += random() % 3;
  }
  return views;
}

void LaneRequest::Lay(const std::vector<Split>& splits) {
  auto memory = std::make_shared<std::vector<std::vector<std::byte>>>(inputs_.size());
  request_->inputs.clear();
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    request_->inputs.push_back({Lay(BytesOf(inputs_[i]), splits.at(i), (*memory)[i]), {}});
  }
  Own(std::move(memory));
}

void LaneRequest::NameOutput(std::size_t index, MutableBytes memory, MemoryPlace place) {
  request_->outputs.resize(geometry_.outputs.size());
  request_->outputs[index] = {memory, place};
  named_[index] = memory.data();
}

void LaneRequest::NameOutput(std::size_t index, Tensor& tensor) {
  NameOutput(index, MutableBytes(static_cast<std::byte*>(tensor.data()), tensor.bytes()));
}

void LaneRequest::CutTo(ChannelRange channels, std::int64_t row_channels, Split split) {
  part_ = channels;
  const DType dtype = inputs_[0].dtype();
  const std::int64_t channel_bytes =
      geometry_.spatial * static_cast<std::int64_t>(norm::SizeOf(dtype));
  const TensorSize size = {channels.count * channel_bytes, dtype};
  Geometry& geometry = request_->geometry;
  geometry.rows = channels.count / row_channels;
  geometry.channels = channels;
  geometry.inputs = {size};
  geometry.outputs[0] = size;
  auto memory = std::make_shared<std::vector<std::byte>>();
  const ConstBytes part = BytesOf(inputs_[0])
                              .subspan(static_cast<std::size_t>(channels.first * channel_bytes),
                                       static_cast<std::size_t>(size.bytes));
  request_->inputs[0].views = Lay(part, split, *memory);
  Own(std::move(memory));
}

Tensor LaneRequest::Output(std::size_t index) const {
  const TensorSize size =
      part_.has_value() ? TensorSize{PartBytes(), inputs_[0].dtype()} : geometry_.outputs.at(index);
  Tensor output(size.dtype, CountOf(size));
  const Buffer& buffer = completion().outputs.at(index);
  const std::byte* const from = named_[index] != nullptr ? named_[index] : buffer.data();
  if (output.bytes() > 0) std::memcpy(output.data(), from, output.bytes());
  return output;
}

std::int64_t LaneRequest::PartBytes() const {
  return part_->count * geometry_.spatial *
         static_cast<std::int64_t>(norm::SizeOf(inputs_[0].dtype()));
}

std::string LaneRequest::WrongEnd() const {
  if (done_calls() != 1) return absl::StrCat("done ran ", done_calls(), " times");
  if (!completion().status.ok()) return completion().status.ToString();
  const auto& outputs = completion().outputs;
  if (outputs.size() != named_.size()) return absl::StrCat(outputs.size(), " outputs");
  for (std::size_t i = 0; i < named_.size(); ++i) {
    const std::int64_t bytes =
        part_.has_value() && i == 0 ? PartBytes() : geometry_.outputs[i].bytes;
    const std::size_t wanted = named_[i] != nullptr ? 0 : static_cast<std::size_t>(bytes);
    if (outputs[i].size() != wanted) {
      return absl::StrCat("output ", i, ": ", outputs[i].size(), " bytes, wanted ", wanted);
    }
  }
  return "";
}

std::string LaneRequest::Wrong(Closeness closeness) const {
  if (std::string wrong = WrongEnd(); !wrong.empty()) return wrong;
  const std::shared_ptr<const Model> model = model_.lock();
  if (model == nullptr) return "its model is gone";
  std::vector<ConstBytes> inputs;
  for (const Tensor& tensor : inputs_) inputs.push_back(BytesOf(tensor));
  auto expected = client::ComputeReference(model->program(), geometry_, inputs);
  if (!expected.ok()) return expected.status().ToString();
  if (expected->size() != named_.size()) return absl::StrCat(expected->size(), " references");
  for (std::size_t i = 0; i < named_.size(); ++i) {
    if (geometry_.outputs[i].bytes == 0) continue;
    std::vector<double>& elements = (*expected)[i];
    if (part_.has_value()) {
      const auto first = elements.begin() + part_->first * geometry_.spatial;
      elements = std::vector<double>(first, first + part_->count * geometry_.spatial);
    }
    const std::string wrong =
        CompareOutput(model->program(), i, closeness, inputs_[0].dtype(), Output(i), elements);
    if (!wrong.empty()) return absl::StrCat("output ", i, ": ", wrong);
  }
  return "";
}

std::string LaneRequest::Differs(const LaneRequest& other) const {
  if (std::string wrong = WrongEnd(); !wrong.empty()) return wrong;
  if (std::string wrong = other.WrongEnd(); !wrong.empty()) return absl::StrCat("other: ", wrong);
  for (std::size_t i = 0; i < named_.size(); ++i) {
    if (geometry_.outputs[i].bytes == 0) continue;
    if (!Output(i).SameBytes(other.Output(i))) return absl::StrCat("output ", i, ": other bits");
  }
  return "";
}

std::unique_ptr<Batch> BatchOf(absl::Span<LaneRequest* const> requests) {
  auto batch = std::make_unique<Batch>();
  batch->model = requests.front()->request()->model;
  batch->dtype = requests.front()->request()->dtype;
  for (LaneRequest* request : requests) {
    batch->bytes += request->request()->geometry.LargerBytes();
    batch->requests.push_back(std::move(request->request()));
  }
  return batch;
}

}  // namespace normd
