#include "client/wire.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace normd::client {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;

v1::DataType ToProto(norm::DType dtype) {
  switch (dtype) {
    case norm::DType::kFloat32: return v1::FLOAT32;
    case norm::DType::kFloat64: return v1::FLOAT64;
    case norm::DType::kFloat16: return v1::FLOAT16;
    case norm::DType::kBFloat16: return v1::BFLOAT16;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

absl::StatusOr<norm::DType> FromProto(std::uint64_t dtype) {
  switch (dtype) {
    case v1::FLOAT32: return norm::DType::kFloat32;
    case v1::FLOAT64: return norm::DType::kFloat64;
    case v1::FLOAT16: return norm::DType::kFloat16;
    case v1::BFLOAT16: return norm::DType::kBFloat16;
    default: return absl::InternalError(absl::StrCat("outputs[0].dtype: unknown value ", dtype));
  }
}

constexpr std::uint32_t Tag(int field, Wire::WireType type) {
  return (static_cast<std::uint32_t>(field) << 3) | static_cast<std::uint32_t>(type);
}

void AppendVarint(std::string* out, std::uint64_t value) {
  std::uint8_t buffer[10];
  const std::uint8_t* end = CodedOutputStream::WriteVarint64ToArray(value, buffer);
  out->append(reinterpret_cast<const char*>(buffer), static_cast<std::size_t>(end - buffer));
}

void AppendInt(std::string* out, int field, std::int64_t value) {
  if (value == 0) return;
  AppendVarint(out, Tag(field, Wire::WIRETYPE_VARINT));
  AppendVarint(out, static_cast<std::uint64_t>(value));
}

void AppendText(std::string* out, int field, absl::string_view text) {
  if (text.empty()) return;
  AppendVarint(out, Tag(field, Wire::WIRETYPE_LENGTH_DELIMITED));
  AppendVarint(out, text.size());
  out->append(text.data(), text.size());
}

// The tensor up to its bytes. `data` is the field that is last, so the bytes follow the header.
std::string EncodeTensorHeader(absl::string_view name, const TensorView& tensor) {
  std::string shape;
  for (const std::int64_t dim : tensor.shape.dims()) {
    AppendVarint(&shape, static_cast<std::uint64_t>(dim));
  }
  std::string out;
  AppendText(&out, v1::Tensor::kNameFieldNumber, name);
  AppendVarint(&out, Tag(v1::Tensor::kDtypeFieldNumber, Wire::WIRETYPE_VARINT));
  AppendVarint(&out, static_cast<std::uint64_t>(ToProto(tensor.dtype)));
  AppendVarint(&out, Tag(v1::Tensor::kShapeFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED));
  AppendVarint(&out, shape.size());
  out += shape;
  AppendVarint(&out, Tag(v1::Tensor::kDataFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED));
  AppendVarint(&out, tensor.bytes.size());
  return out;
}

using ReadDims = absl::InlinedVector<std::int64_t, 6>;

// Where a tensor's bytes lie in a message.
struct Extent {
  std::size_t begin = 0;
  std::size_t size = 0;
};

absl::Status NotAResponse() {
  return absl::InternalError("the server's answer is not a NormalizeResponse");
}

// The bytes of `extent` within the concatenation of `slices`.
std::vector<absl::Span<const std::byte>> Cut(const std::vector<grpc::Slice>& slices,
                                             const Extent& extent) {
  std::vector<absl::Span<const std::byte>> pieces;
  pieces.reserve(slices.size());
  std::size_t begin = 0;
  const std::size_t end = extent.begin + extent.size;
  for (const grpc::Slice& slice : slices) {
    const std::size_t from = std::max(begin, extent.begin);
    const std::size_t to = std::min(begin + slice.size(), end);
    if (from < to) {
      pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()) + (from - begin),
                          to - from);
    }
    begin += slice.size();
  }
  return pieces;
}

// The concatenation of `slices`, read where it lies. gRPC's own reader would copy the buffer first.
class SliceStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit SliceStream(const std::vector<grpc::Slice>& slices) : slices_(slices) {}

  bool Next(const void** data, int* size) override {
    if (next_ == slices_.size()) return false;
    const grpc::Slice& slice = slices_[next_++];
    *data = slice.begin() + skip_;
    *size = static_cast<int>(slice.size() - skip_);
    read_ += *size;
    skip_ = 0;
    return true;
  }
  void BackUp(int count) override {
    read_ -= count;
    skip_ = slices_[--next_].size() - static_cast<std::size_t>(count);
  }
  bool Skip(int count) override {
    const void* data = nullptr;
    int size = 0;
    while (count > 0 && Next(&data, &size)) {
      if (size > count) BackUp(size - count);
      count -= std::min(size, count);
    }
    return count == 0;
  }
  std::int64_t ByteCount() const override { return read_; }

 private:
  const std::vector<grpc::Slice>& slices_;
  std::size_t next_ = 0;  // The slice to give next,
  std::size_t skip_ = 0;  // from here on.
  std::int64_t read_ = 0;
};

// The message as it is read. Each function is false when the bytes are no message.
struct Reader {
  CodedInputStream* in;

  template <typename Body>
  bool Submessage(Body body) {
    std::uint32_t length = 0;
    if (!in->ReadVarint32(&length)) return false;
    const CodedInputStream::Limit limit = in->PushLimit(static_cast<int>(length));
    // A limit beyond the end of the input is not an error of its own, so the end is checked too.
    const bool ok = body() && in->BytesUntilLimit() == 0;
    in->PopLimit(limit);
    return ok;
  }

  bool Message(google::protobuf::Message* message) {
    return Submessage([&] {
      const void* data = nullptr;
      int size = 0;
      const int length = in->BytesUntilLimit();
      // Mostly all of it lies in one slice, where reading it costs half as much.
      if (in->GetDirectBufferPointer(&data, &size) && size >= length) {
        return message->ParsePartialFromArray(data, length) && in->Skip(length);
      }
      return message->MergePartialFromCodedStream(in) && in->ConsumedEntireMessage();
    });
  }

  bool Text(std::string* text) {
    std::uint32_t length = 0;
    return in->ReadVarint32(&length) && in->ReadString(text, static_cast<int>(length));
  }

  bool Dims(std::uint32_t tag, ReadDims* dims) {
    const auto one = [&] {
      // One too many is enough to show that the rank is too high.
      if (dims->size() > kMaxRank) return false;
      return Int64(&dims->emplace_back());
    };
    if (tag == Tag(v1::Tensor::kShapeFieldNumber, Wire::WIRETYPE_VARINT)) return one();
    return Submessage([&] {
      while (in->BytesUntilLimit() > 0) {
        if (!one()) return false;
      }
      return true;
    });
  }

  bool Data(Extent* extent) {
    std::uint32_t length = 0;
    if (!in->ReadVarint32(&length)) return false;
    extent->begin = static_cast<std::size_t>(in->CurrentPosition());
    extent->size = length;
    return in->Skip(static_cast<int>(length));
  }

  bool Int64(std::int64_t* value) {
    std::uint64_t bits = 0;
    if (!in->ReadVarint64(&bits)) return false;
    *value = static_cast<std::int64_t>(bits);
    return true;
  }

  template <typename Output>
  bool Tensor(Output* output) {
    while (const std::uint32_t tag = in->ReadTag()) {
      bool ok = false;
      switch (tag) {
        case Tag(v1::Tensor::kDtypeFieldNumber, Wire::WIRETYPE_VARINT):
          ok = in->ReadVarint64(&output->dtype);
          break;
        case Tag(v1::Tensor::kShapeFieldNumber, Wire::WIRETYPE_VARINT):
        case Tag(v1::Tensor::kShapeFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED):
          ok = Dims(tag, &output->dims);
          break;
        case Tag(v1::Tensor::kDataFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED):
          ok = Data(&output->data);
          break;
        default: ok = Wire::SkipField(in, tag);
      }
      if (!ok) return false;
    }
    return true;
  }
};

}  // namespace

grpc::Slice BorrowingSlice(absl::Span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  auto held = std::make_unique<std::shared_ptr<const void>>(std::move(owner));
  return grpc::Slice(
      const_cast<std::byte*>(bytes.data()), bytes.size(),
      [](void* holder) { delete static_cast<std::shared_ptr<const void>*>(holder); },
      held.release());
}

// The outputs of a message: how many, and the last one's fields as they came.
struct NormalizeResponse::Output {
  int count = 0;
  std::uint64_t dtype = 0;
  ReadDims dims;
  Extent data;
};

absl::StatusOr<grpc::ByteBuffer> EncodeRequest(const RequestHead& head,
                                               absl::Span<const RequestInput> inputs) {
  using Request = v1::NormalizeRequest;
  constexpr std::size_t kMaxMessageBytes = std::numeric_limits<std::int32_t>::max();
  std::string header;
  AppendText(&header, Request::kModelFieldNumber, head.model);
  AppendInt(&header, Request::kVersionFieldNumber, head.version);
  AppendInt(&header, Request::kPriorityFieldNumber, head.priority);
  AppendInt(&header, Request::kQueueTimeoutNsFieldNumber, head.queue_timeout_ns);
  AppendInt(&header, Request::kPrecisionFieldNumber, head.precision);
  // The inputs come last: the bytes of each follow its header.
  std::vector<grpc::Slice> slices;
  slices.reserve(2 * inputs.size());
  std::size_t message_bytes = 0;
  for (const RequestInput& input : inputs) {
    const absl::Span<const std::byte> bytes = input.tensor.bytes;
    const std::string tensor = EncodeTensorHeader(input.name, input.tensor);
    AppendVarint(&header, Tag(Request::kInputsFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED));
    AppendVarint(&header, tensor.size() + bytes.size());
    header += tensor;
    message_bytes += header.size();
    if (bytes.size() > kMaxMessageBytes - std::min(message_bytes, kMaxMessageBytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("input: ", bytes.size(), " bytes after ", message_bytes, ", wanted at most ",
                       kMaxMessageBytes, " in all, which is what one message carries"));
    }
    message_bytes += bytes.size();
    slices.emplace_back(header);
    if (!bytes.empty()) slices.push_back(BorrowingSlice(bytes, input.owner));
    header.clear();
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<NormalizeResponse> NormalizeResponse::Decode(const grpc::ByteBuffer& message) {
  NormalizeResponse response;
  Output output;
  if (!message.Dump(&response.slices_).ok()) return NotAResponse();
  {
    SliceStream stream(response.slices_);
    CodedInputStream in(&stream);
    Reader reader{&in};
    while (const std::uint32_t tag = in.ReadTag()) {
      bool ok = false;
      switch (tag) {
        case Tag(v1::NormalizeResponse::kModelFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED):
          ok = reader.Text(&response.model_);
          break;
        case Tag(v1::NormalizeResponse::kVersionFieldNumber, Wire::WIRETYPE_VARINT):
          ok = reader.Int64(&response.version_);
          break;
        case Tag(v1::NormalizeResponse::kStagesFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED):
          ok = reader.Message(&response.stages_);
          break;
        case Tag(v1::NormalizeResponse::kBatchFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED):
          ok = reader.Message(&response.batch_);
          break;
        case Tag(v1::NormalizeResponse::kOutputsFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED):
          ++output.count;
          ok = reader.Submessage([&] { return reader.Tensor(&output); });
          break;
        default: ok = Wire::SkipField(&in, tag);
      }
      if (!ok) return NotAResponse();
    }
    if (!in.ConsumedEntireMessage()) return NotAResponse();
  }
  if (absl::Status status = response.TakeOutput(output); !status.ok()) return status;
  response.pieces_ = Cut(response.slices_, output.data);
  return response;
}

absl::Status NormalizeResponse::TakeOutput(const Output& output) {
  if (output.count != 1) {
    return absl::InternalError(
        absl::StrCat("the server's answer has ", output.count, " outputs, wanted 1"));
  }
  const absl::StatusOr<norm::DType> dtype = FromProto(output.dtype);
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<Shape> shape = Shape::Create(output.dims);
  if (!shape.ok()) return absl::InternalError(shape.status().message());
  const absl::StatusOr<std::int64_t> bytes = TensorBytes(*dtype, *shape);
  if (!bytes.ok() || *bytes != static_cast<std::int64_t>(output.data.size)) {
    return absl::InternalError(absl::StrCat("the server's answer has ", output.data.size,
                                            " bytes of data for ", norm::Name(*dtype), " ",
                                            shape->ToString()));
  }
  dtype_ = *dtype;
  shape_ = *std::move(shape);
  size_bytes_ = output.data.size;
  return absl::OkStatus();
}

void NormalizeResponse::CopyTo(absl::Span<std::byte> out) const {
  std::size_t at = 0;
  for (const absl::Span<const std::byte> piece : pieces_) {
    std::memcpy(out.data() + at, piece.data(), piece.size());
    at += piece.size();
  }
}

absl::StatusOr<Tensor> NormalizeResponse::ToTensor() const {
  absl::StatusOr<Tensor> tensor = Tensor::Allocate(dtype_, shape_);
  if (tensor.ok()) CopyTo(tensor->mutable_bytes());
  return tensor;
}

}  // namespace normd::client
