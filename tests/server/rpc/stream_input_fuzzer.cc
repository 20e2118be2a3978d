// What the messages of a NormalizeStream call go through before their bytes are computed: the
// decoder, the accept path's checks of the header, the checks of chunks and the pieces.
// stream_fuzzer plays whole calls, far fewer of them. The input: options, how messages are cut, the
// header's length and bytes, then chunks.

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "normd/v1/norm_service.pb.h"
#include "server/accept/accept.h"
#include "server/rpc/stream_input.h"
#include "tests/fuzz/expect.h"
#include "tests/server/rpc/script_models.h"
#include "tests/support/fake_clock.h"
#include "wire/stream_part.h"

namespace normd::testing {
namespace {

constexpr std::size_t kMaxMessageBytes = 1000;
constexpr std::int64_t kMostSent = 16 << 10;  // A test's time, no limit of the server's.
constexpr std::size_t kMostCuts = 4;          // Likewise,
constexpr int kMostMessages = 16;             // and likewise.

constexpr std::array<StreamLimits, 4> kLimits = {
    {{.window_bytes = 1 << 10, .piece_bytes = 256},
     {.window_bytes = 4 << 10, .piece_bytes = 1 << 10},
     {.window_bytes = 4 << 10, .piece_bytes = 1 << 20},
     {.window_bytes = 16 << 10, .piece_bytes = 4096, .min_kept_bytes = 2000}}};

// One for each of the limits and for all inputs, which leave nothing in it.
struct Fixture {
  explicit Fixture(const StreamLimits& limits)
      : accept{{.stream = limits},
               ScriptModels::Get().registry(),
               admission,
               queue,
               ScriptModels::Get().metrics(),
               clock},
        caller(accept.callers.Find("ipv4:192.0.2.1:4711")) {}
  static Fixture& Get(std::size_t which) {
    static auto* const fixtures = [] {
      auto* const all = new std::vector<std::unique_ptr<Fixture>>;
      for (const StreamLimits& limits : kLimits) all->push_back(std::make_unique<Fixture>(limits));
      return all;
    }();
    return *fixtures->at(which % kLimits.size());
  }

  FakeClock clock;
  Admission admission{{.max_chunk_bytes = std::int64_t{1} << 40}, ScriptModels::Get().metrics()};
  BatchQueue queue{{}, clock};
  AcceptEnvironment accept;
  std::shared_ptr<Caller> caller;
};

// The stream's bytes from `offset` on: small indexes, now and then a large one.
std::string BytesAt(std::int64_t offset, std::int64_t size) {
  static const std::string* const bytes = [] {
    auto* const made = new std::string;
    for (int i = 0; i < 2 * kMostSent; ++i)
      made->push_back(static_cast<char>(i % 8 == 0 ? i % 3 : 0));
    return made;
  }();
  return bytes->substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
}

// A message in slices of their own memory and exact size, which are counted while they are kept.
class Message {
 public:
  Message(absl::string_view wire, int cut, std::int64_t& kept) {
    const std::size_t step = cut == 0 ? std::max<std::size_t>(wire.size(), 1)
                                      : std::max<std::size_t>(static_cast<std::size_t>(cut),
                                                              wire.size() / kMostCuts + 1);
    for (std::size_t at = 0; at < wire.size(); at += step) {
      slices_.push_back(CountedSlice(wire.substr(at, step), kept));
    }
    for (const grpc::Slice& slice : slices_) {
      views_.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
    }
  }
  absl::Span<const grpc::Slice> slices() const { return slices_; }
  absl::Span<const ConstBytes> views() const { return views_; }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<ConstBytes> views_;
};

// A header with tensors for one of the models.
std::string MakeHeader(Script& script) {
  struct Input {
    const char* name;
    std::int64_t features;
    bool last;
    v1::DataType type;
  };
  static const std::vector<std::pair<const char*, std::vector<Input>>> kModels = {
      {"first", {{"", 6, false, v1::FLOAT32}}},
      {"last", {{"", 6, true, v1::FLOAT16}}},
      {"rows", {{"x", 8, true, v1::FLOAT32}}},
      {"residual", {{"x", 8, true, v1::FLOAT16}, {"residual", 8, true, v1::FLOAT16}}},
      {"fused", {{"x", 12, true, v1::FLOAT32}, {"y", 20, true, v1::FLOAT32}}},
      {"styled", {{"x", 2, false, v1::FLOAT32}, {"style_index", 0, false, v1::INT64}}}};
  const auto& [model, inputs] = kModels[script.Byte() % kModels.size()];
  const int samples = script.Byte() % 16;
  const int spatial = script.Byte() + 1;
  v1::NormalizeStreamRequest message;
  message.mutable_header()->set_model(model);
  for (const Input& wanted : inputs) {
    v1::Tensor& input = *message.mutable_header()->add_inputs();
    input.set_name(wanted.name);
    input.set_dtype(wanted.type);
    input.add_shape(samples);
    if (wanted.features == 0) continue;
    input.add_shape(wanted.last ? spatial : wanted.features);
    input.add_shape(wanted.last ? wanted.features : spatial);
  }
  return message.SerializeAsString();
}

class Play {
 public:
  Play(Script& script, int options)
      : script_(script),
        fixture_(Fixture::Get(static_cast<std::size_t>(options))),
        cut_(script.Byte()),
        call_(fixture_.accept, Arrival(fixture_)) {}

  void Run(bool made_header) {
    if (TakeHeader(made_header)) {
      bool ok = true;
      for (int i = 0; i < kMostMessages && ok && MayGoOn(); ++i) ok = TakeMessage();
      End(ok);
    }
    pieces_.clear();
    input_.reset();
    Expect(kept_slices_ == 0, "nothing is kept of a stream that has ended");
  }

 private:
  static CallArrival Arrival(const Fixture& fixture) {
    CallArrival arrival;
    arrival.method = Method::kNormalizeStream;
    arrival.at = fixture.clock.Now();
    arrival.caller = fixture.caller;
    return arrival;
  }
  std::int64_t WantedBytes() const { return accepted_.geometry().InputBytes(); }
  absl::string_view Bytes(std::size_t size) {
    const absl::string_view bytes = script_.Rest().substr(0, size);
    for (std::size_t i = 0; i < bytes.size(); ++i) script_.Byte();
    return bytes;
  }

  bool MayGoOn() const { return !script_.Rest().empty() && input_->received_bytes() < kMostSent; }

  bool TakeHeader(bool made) {
    std::string wire;
    if (made) {
      wire = MakeHeader(script_);
    } else {
      const std::size_t size = script_.Byte();
      wire = std::string(Bytes(size));
    }
    const Message message(wire, cut_, kept_slices_);
    const absl::Status status = AcceptHeader(message);
    if (!status.ok()) {
      ExpectMessage(status.message(), kMaxMessageBytes);
      return false;
    }
    v1::NormalizeStreamRequest generated;
    Expect(generated.ParseFromString(wire) && generated.has_header(), "protobuf takes it too",
           wire);
    Expect(accepted_.stream.has_value(), "a stream has a plan");
    input_.emplace(*call_.model(), accepted_);
    return true;
  }

  absl::Status AcceptHeader(const Message& message) {
    const absl::StatusOr<StreamPartView> part = DecodeStreamRequest(message.views());
    if (!part.ok()) return part.status();
    const absl::StatusOr<RequestDescription> request = ReadStreamHeader(*part);
    if (!request.ok()) return request.status();
    return AcceptRequest(fixture_.accept, call_, *request, accepted_);
  }

  // False: the stream is over.
  bool TakeMessage() {
    const int op = script_.Byte();
    if (op % 8 == 7) {
      const std::string wire(Bytes(static_cast<std::size_t>(op / 8)));
      v1::NormalizeStreamRequest generated;
      const bool chunk = generated.ParseFromString(wire) && generated.has_chunk();
      // Protobuf takes the last of several parts.
      return Take(wire, generated.chunk(), chunk, false);
    }
    const std::int64_t most = accepted_.stream->limits.max_chunk_bytes();
    const std::int64_t size = op % 8 < 4 ? std::min(most, WantedBytes() - input_->received_bytes())
                                         : (op / 8 << 8 | script_.Byte()) % (2 * most);
    const std::string chunk = BytesAt(input_->received_bytes(), size);
    return Take(EncodeStreamChunkHead(chunk.size()) + chunk, chunk, true, true);
  }

  bool Take(const std::string& wire, const std::string& chunk, bool may_pass, bool one_part) {
    const std::int64_t before = input_->received_bytes();
    const auto size = static_cast<std::int64_t>(chunk.size());
    may_pass = may_pass && size <= accepted_.stream->limits.max_chunk_bytes() &&
               before + size <= WantedBytes();
    const Message message(wire, cut_, kept_slices_);
    const absl::StatusOr<StreamPartView> part = DecodeStreamRequest(message.views());
    const absl::Status status =
        part.ok() ? input_->Take(*part, message.slices(), pieces_) : part.status();
    if (!status.ok()) {
      ExpectMessage(status.message(), kMaxMessageBytes);
      Expect(!may_pass || !one_part || HasIndexes(), "a chunk is taken", status.message());
      Expect(may_pass || input_->received_bytes() == before, "what is refused is not taken");
      return false;
    }
    Expect(may_pass, "a chunk is no larger than the window and the tensors allow");
    Expect(input_->received_bytes() == before + size, "a chunk is taken whole");
    sent_ += chunk;
    return true;
  }

  bool HasIndexes() const {
    const absl::Span<const TensorSignature> inputs = call_.model()->inputs();
    return std::any_of(inputs.begin(), inputs.end(),
                       [](const auto& input) { return input.values > 0; });
  }

  // Long after their messages are gone.
  void End(bool ok) {
    std::string computed;
    std::int64_t output_bytes = 0;
    for (const ReceivedPiece& piece : pieces_) {
      AppendBytes(piece, computed);
      output_bytes += piece.geometry.OutputBytes();
      Expect(piece.geometry.InputBytes() <= accepted_.stream->limits.max_piece_bytes(),
             "a piece fits into the window");
    }
    if (!ok) return;
    Expect(computed == sent_.substr(0, computed.size()), "pieces have the bytes that came");
    const absl::Status end = input_->TakeEnd();
    const bool whole = input_->received_bytes() == WantedBytes();
    Expect(end.ok() == whole, "a stream ends with its last byte", end.message());
    if (!whole) return ExpectMessage(end.message(), kMaxMessageBytes);
    Expect(computed.size() == sent_.size(), "every byte is in a piece");
    Expect(output_bytes == accepted_.geometry().OutputBytes(), "the pieces' outputs are the whole");
  }

  // As they came: of several inputs one sample of each in turn.
  static void AppendBytes(const ReceivedPiece& piece, std::string& bytes) {
    std::vector<std::string> inputs(piece.inputs.size());
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      for (const ConstBytes view : piece.inputs[k]) {
        inputs[k].append(reinterpret_cast<const char*>(view.data()), view.size());
      }
      Expect(static_cast<std::int64_t>(inputs[k].size()) == piece.geometry.inputs[k].bytes,
             "a piece has the bytes of its shape");
    }
    if (inputs.size() == 1) {
      bytes += inputs.front();
      return;
    }
    const auto samples = static_cast<std::size_t>(piece.geometry.samples);
    for (std::size_t sample = 0; sample < samples; ++sample) {
      for (const std::string& input : inputs) {
        const std::size_t size = input.size() / samples;
        bytes.append(input, sample * size, size);
      }
    }
  }

  Script& script_;
  Fixture& fixture_;
  const int cut_;
  std::int64_t kept_slices_ = 0;
  CallContext call_;
  AcceptedRequest accepted_;
  std::optional<StreamInput> input_;
  std::vector<ReceivedPiece> pieces_;
  std::string sent_;
};

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Protobuf logs each text that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  normd::testing::Script script(data, size);
  const int options = script.Byte();
  normd::testing::Play(script, options).Run((options & 4) == 0);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& fixture = normd::testing::Fixture::Get(i);
    normd::testing::Expect(fixture.admission.inflight_bytes() == 0, "no budget is held");
  }
  return 0;
}
