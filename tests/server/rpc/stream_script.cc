#include "tests/server/rpc/stream_script.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "normd/v1/norm_service.pb.h"
#include "server/rpc/stream_call.h"
#include "tests/fuzz/expect.h"
#include "tests/server/rpc/script_models.h"
#include "tests/support/fake_clock.h"

namespace normd::testing {
namespace {

using grpc::ByteBuffer;

// What a script byte asks for, modulo their number.
enum Op : std::uint8_t {
  kHeader,   // model, samples, spatial (2), type
  kChunk,    // size (2), cut: the tensor's next bytes
  kLargest,  // cut: as many of them as a chunk may have
  kRaw,      // size, cut, the message's bytes
  kHalfClose,
  kWritten,
  kWriteFails,
  kTake,     // A lane takes a batch;
  kCompute,  // which: completes one that was taken;
  kFail,     // which: fails it.
  kCancel,
  kAbort,
  kAdvance,  // milliseconds
  kOps
};
// Bits of the first byte.
constexpr int kInline = 1;     // Pieces are computed as they are pushed.
constexpr int kPolite = 2;     // After the script, the client sends what is missing.
constexpr int kTimesOut = 4;   // Pieces wait for a lane for 5 ms at most.
constexpr int kWindowBit = 3;  // And the next: which window.
constexpr int kBudgetBit = 5;  // And the next: which budget.

constexpr std::array<StreamLimits, 4> kLimits = {
    {{.window_bytes = 1 << 10, .piece_bytes = 256},
     {.window_bytes = 4 << 10, .piece_bytes = 1 << 10},
     {.window_bytes = 4 << 10, .piece_bytes = 1 << 20},
     {.window_bytes = 64 << 10, .piece_bytes = 4096, .min_kept_bytes = 2000}}};

constexpr std::array<std::int64_t, 4> kBudgets = {std::int64_t{1} << 30, 1, 1 << 11, 1 << 13};

// Whole words first: a fuzzer watches each comparison, so a loop over bytes is slow.
template <typename Word, typename F>
std::size_t ForWords(std::size_t at, std::size_t size, F f) {
  for (; at + sizeof(Word) <= size; at += sizeof(Word)) f(at, Word{});
  return at;
}

// What a lane makes of a tensor's bytes: `out` gets ~y, and of the two of "fused" x ^ ~y. Null: no
// x.
void ComputeBytes(const char* x, const char* y, std::size_t size, char* out) {
  const auto compute = [&](std::size_t at, auto word) {
    auto other = word;
    std::memcpy(&word, y + at, sizeof(word));
    if (x != nullptr) std::memcpy(&other, x + at, sizeof(other));
    word = static_cast<decltype(word)>(other ^ ~word);
    std::memcpy(out + at, &word, sizeof(word));
  };
  const std::size_t words = ForWords<std::uint64_t>(0, size, compute);
  ForWords<std::uint8_t>(words, size, compute);
}

// Sample by sample, where x's features come again as often as y has more.
std::string ComputeFused(absl::string_view x, absl::string_view y, std::size_t x_bytes,
                         std::size_t y_bytes) {
  std::string output(y.size(), '\0');
  for (std::size_t sample = 0; (sample + 1) * y_bytes <= y.size(); ++sample) {
    for (std::size_t at = 0; at < y_bytes; at += x_bytes) {
      const std::size_t y_at = sample * y_bytes + at;
      ComputeBytes(&x[sample * x_bytes], &y[y_at], std::min(x_bytes, y_bytes - at), &output[y_at]);
    }
  }
  return output;
}

// The stream's bytes from `offset` on.
std::string InputAt(std::int64_t offset, std::int64_t size) {
  // They come again after 64 Ki.
  static const std::string* const period = [] {
    auto* const bytes = new std::string;
    for (int i = 0; i < 1 << 16; ++i) bytes->push_back(static_cast<char>(i * 31 + (i >> 8) * 7));
    return bytes;
  }();
  std::string input;
  while (static_cast<std::int64_t>(input.size()) < size) {
    const auto left = static_cast<std::size_t>(size) - input.size();
    const std::size_t at = (static_cast<std::size_t>(offset) + input.size()) % period->size();
    input.append(*period, at, left);
  }
  return input;
}

// "fused" takes samples of so many features.
constexpr std::int64_t kXFeatures = 12;
constexpr std::int64_t kYFeatures = 20;

// gRPC's side of the call: takes its operations, which the script ends.
class Transport final : public grpc::ServerCallbackReaderWriter<ByteBuffer, ByteBuffer> {
 public:
  explicit Transport(StreamCall& call) : call_(call) { BindReactor(&call); }

  void Finish(grpc::Status status) override {
    Last();
    if (writing) Broken("Finish beside a write");
    status_code = status.error_code();
  }
  void SendInitialMetadata() override { Broken("SendInitialMetadata"); }
  void Read(ByteBuffer* message) override {
    Operation();
    if (std::exchange(reading, message) != nullptr) Broken("two reads");
    ++reads;
  }
  void Write(const ByteBuffer* message, grpc::WriteOptions /*options*/) override {
    Operation();
    if (std::exchange(writing, true)) Broken("two writes");
    Take(*message);
  }
  void WriteAndFinish(const ByteBuffer* message, grpc::WriteOptions /*options*/,
                      grpc::Status status) override {
    Last();
    if (writing) Broken("two writes");
    Take(*message);
    status_code = status.error_code();
  }

  void Broken(absl::string_view promise) {
    if (broken.empty()) broken = std::string(promise);
  }

  ByteBuffer* reading = nullptr;
  int reads = 0;
  bool writing = false;
  bool finished = false;
  int status_code = -1;
  std::vector<v1::NormalizeStreamResponse> answers;
  std::string broken;

 private:
  grpc::internal::ServerReactor* reactor() override { return &call_; }
  void CallOnDone() override {}
  void Operation() {
    if (finished) Broken("an operation after the last");
  }
  void Last() {
    Operation();
    finished = true;
  }
  void Take(const ByteBuffer& message) {
    std::vector<grpc::Slice> slices;
    std::string wire;
    if (!message.Dump(&slices).ok()) return Broken("a response that is no message");
    for (const grpc::Slice& slice : slices) wire.append(slice.begin(), slice.end());
    if (!answers.emplace_back().ParseFromString(wire)) Broken("a response that does not parse");
  }

  StreamCall& call_;
};

class Play final : public BatchRunner {
 public:
  explicit Play(absl::string_view script)
      : script_(script),
        options_(script_.Byte()),
        limits_(kLimits[static_cast<std::size_t>(options_ >> kWindowBit & 3)]),
        admission_(
            {.max_inflight_bytes = kBudgets[static_cast<std::size_t>(options_ >> kBudgetBit & 3)],
             .overdraft_bytes = limits_.window_bytes,
             .max_chunk_bytes = std::int64_t{1} << 40},
            ScriptModels::Get().metrics()),
        queue_({.limits = {.max_bytes = 2048},
                .max_queue_requests = 1 << 20,
                .max_inline_bytes = (options_ & kInline) != 0 ? 1 << 20 : 0},
               clock_),
        accept_{{.stream = limits_},
                ScriptModels::Get().registry(),
                admission_,
                queue_,
                ScriptModels::Get().metrics(),
                clock_},
        call_(StreamCall::Create(call_options_, accept_, context_)) {
    queue_.RunInlineOn({this});
    call_->Start();
    transport_ = std::make_unique<Transport>(*call_);
  }

  std::string Run() {
    while (!script_.Rest().empty() && !transport_->finished) {
      Perform(static_cast<Op>(script_.Byte() % kOps));
      CheckWindow();
    }
    for (int idle = 0; !transport_->finished && idle < 2;) idle = GoOn() ? 0 : idle + 1;
    if (!transport_->finished) transport_->Broken("the stream stands still");
    if (transport_->finished) End();
    queue_.Close();
    return transport_->broken;
  }

  // A lane that computes within the push.
  absl::Status Execute(std::unique_ptr<Batch> batch) override {
    Compute(std::move(batch), absl::OkStatus());
    return absl::OkStatus();
  }

 private:
  static CallOptions MakeOptions() {
    CallOptions options;
    options.stream_idle_timeout = Duration(0);  // Its alarm is gRPC's.
    return options;
  }

  void Perform(Op op) {
    switch (op) {
      case kHeader: return SendHeader();
      case kChunk: {
        const std::int64_t size = script_.Word() % (2 * MaxChunk() + 2);
        return SendChunk(size, script_.Byte());
      }
      case kLargest: return SendChunk(std::min(MaxChunk(), bytes_ - sent_), script_.Byte());
      case kRaw: return SendRaw();
      case kHalfClose: return HalfClose();
      case kWritten: return EndWrite(true);
      case kWriteFails: return EndWrite(false);
      case kTake: return Take();
      case kCompute: return EndBatch(absl::OkStatus());
      case kFail: return EndBatch(absl::UnavailableError("the lane failed"));
      case kCancel: must_fail_ = true; return call_->OnCancel();
      case kAbort:
        must_fail_ = true;
        return call_->Abort(absl::UnavailableError("the server stops"));
      case kAdvance:
        clock_.Advance(std::chrono::milliseconds(script_.Byte()));
        // Pieces may have waited for too long.
        may_fail_ = may_fail_ || (options_ & kTimesOut) != 0;
        queue_.ExpireDue();
        return;
      case kOps: return;
    }
  }

  std::int64_t MaxChunk() const { return limits_.max_chunk_bytes(); }

  void SendHeader() {
    static constexpr const char* kModels[] = {"first", "last", "rows", "absent", "fused"};
    const int model = script_.Byte() % 5;
    const int samples = script_.Byte() % 8;
    const int spatial = script_.Word() % 400 + 1;
    const bool half = script_.Byte() % 2 == 1;
    v1::NormalizeStreamRequest message;
    v1::NormalizeRequest& header = *message.mutable_header();
    header.set_model(kModels[model]);
    if ((options_ & kTimesOut) != 0) header.set_queue_timeout_ns(5'000'000);
    const auto add = [&](const char* name, std::int64_t channels, bool last) {
      v1::Tensor& input = *header.add_inputs();
      input.set_name(name);
      input.set_dtype(half ? v1::FLOAT16 : v1::FLOAT32);
      input.add_shape(samples);
      input.add_shape(last ? spatial : channels);
      input.add_shape(last ? channels : spatial);
    };
    const std::int64_t element = half ? 2 : 4;
    const bool fused = model == 4;
    if (fused) {
      add("x", kXFeatures, true);
      add("y", kYFeatures, true);
    } else {
      add("", model < 2 ? 6 : 8, model != 0);
    }
    const std::int64_t row_bytes = (model < 2 ? 2 * spatial : 8) * element;
    const std::int64_t unit_bytes = fused        ? (kXFeatures + kYFeatures) * element
                                    : model == 1 ? row_bytes * 3
                                                 : row_bytes;
    const bool fits = samples == 0 || unit_bytes <= limits_.max_piece_bytes();
    if (transport_->reading == nullptr) return;
    if (has_header_ || model == 3 || !fits) {
      must_fail_ = true;
    } else {
      const std::int64_t features = fused ? kXFeatures + kYFeatures : model == 2 ? 8 : 6;
      bytes_ = samples * spatial * features * element;
      output_bytes_ = fused ? samples * spatial * kYFeatures * element : bytes_;
      if (fused) x_bytes_ = kXFeatures * element;
      if (fused) y_bytes_ = kYFeatures * element;
    }
    has_header_ = true;
    Deliver(message.SerializeAsString(), 0);
  }

  void SendChunk(std::int64_t size, int cut) {
    if (transport_->reading == nullptr) return;
    if (!has_header_ || size > MaxChunk() || size > bytes_ - sent_) must_fail_ = true;
    v1::NormalizeStreamRequest message;
    message.set_chunk(InputAt(sent_, size));
    sent_ += size;
    Deliver(message.SerializeAsString(), cut);
  }

  void SendRaw() {
    const auto size = static_cast<std::size_t>(script_.Byte());
    const int cut = script_.Byte();
    const std::string wire(script_.Bytes(size));
    if (transport_->reading == nullptr) return;
    v1::NormalizeStreamRequest message;
    const bool parses = message.ParseFromString(wire);
    if (!parses || message.part_case() == v1::NormalizeStreamRequest::PART_NOT_SET) {
      must_fail_ = true;
    }
    // The generated class takes the last of several parts, where the stream refuses them.
    may_fail_ = true;
    known_ = false;
    if (message.has_chunk()) sent_ += static_cast<std::int64_t>(message.chunk().size());
    if (message.has_header()) has_header_ = true;
    Deliver(wire, cut);
  }

  // `cut`: 0: one slice; else slices of so many bytes, some hundreds at most, with an empty one
  // among them.
  void Deliver(const std::string& wire, int cut) {
    std::vector<grpc::Slice> slices;
    const std::size_t step =
        cut == 0 ? std::max<std::size_t>(wire.size(), 1)
                 : std::max<std::size_t>(static_cast<std::size_t>(cut) * 8 - 7, wire.size() / 256);
    for (std::size_t at = 0; at < wire.size(); at += step) {
      slices.push_back(CountedSlice(absl::string_view(wire).substr(at, step), held_slices_));
      if (cut % 3 == 1 && at == 0) slices.push_back(CountedSlice("", held_slices_));
    }
    if (wire.empty()) slices.push_back(CountedSlice("", held_slices_));
    *std::exchange(transport_->reading, nullptr) = ByteBuffer(slices.data(), slices.size());
    slices.clear();
    call_->OnReadDone(true);
  }

  // In memory of its own and exact size, and counted.
  void HalfClose() {
    if (transport_->reading == nullptr) return;
    if (!has_header_ || sent_ < bytes_) must_fail_ = true;
    transport_->reading = nullptr;
    half_closed_ = true;
    call_->OnReadDone(false);
  }

  void EndWrite(bool ok) {
    if (!transport_->writing) return;
    if (!ok) must_fail_ = true;
    taken_ += static_cast<std::int64_t>(transport_->answers.back().chunk().size());
    transport_->writing = false;
    call_->OnWriteDone(ok);
  }

  void Take() {
    BatchQueue::Poll poll = queue_.TryTake();
    if (poll.batch != nullptr) batches_.push_back(std::move(poll.batch));
  }

  void EndBatch(const absl::Status& status) {
    if (batches_.empty()) return;
    const auto which = batches_.begin() + script_.Byte() % static_cast<int>(batches_.size());
    std::unique_ptr<Batch> batch = std::move(*which);
    batches_.erase(which);
    Compute(std::move(batch), status);
  }

  void Compute(std::unique_ptr<Batch> batch, const absl::Status& status) {
    for (std::unique_ptr<Request>& request : batch->requests) {
      if (request->IsCancelled()) {
        Fail(std::move(request), absl::CancelledError("cancelled"));
      } else if (!status.ok()) {
        must_fail_ = true;
        Fail(std::move(request), status);
      } else {
        Buffer output = Output(*request);
        Complete(std::move(request), std::move(output), {batch->id, 1, batch->bytes, ""});
      }
    }
  }

  Buffer Output(const Request& request) {
    std::vector<std::string> inputs;
    for (std::size_t k = 0; k < request.inputs.size(); ++k) {
      std::string& input = inputs.emplace_back();
      for (const ConstBytes view : request.inputs[k].views) {
        input.append(reinterpret_cast<const char*>(view.data()), view.size());
      }
      const auto wanted = static_cast<std::size_t>(request.geometry.inputs[k].bytes);
      if (input.size() != wanted) transport_->Broken("a piece with other bytes than its shape");
      input.resize(wanted);
    }
    const std::string output = Computed(inputs.front(), inputs.back());
    const auto size = static_cast<std::size_t>(request.geometry.OutputBytes());
    auto* memory = new std::byte[size];
    if (output.size() != size) transport_->Broken("a piece whose output has another size");
    std::memcpy(memory, output.data(), std::min(size, output.size()));
    ++held_outputs_;
    return Buffer(memory, size, [this, memory] {
      delete[] memory;
      --held_outputs_;
    });
  }

  // The output of these inputs, which are one and the same but for "fused".
  std::string Computed(const std::string& x, const std::string& y) const {
    if (y_bytes_ > 0) {
      return ComputeFused(x, y, static_cast<std::size_t>(x_bytes_),
                          static_cast<std::size_t>(y_bytes_));
    }
    std::string output(y.size(), '\0');
    ComputeBytes(nullptr, y.data(), y.size(), output.data());
    return output;
  }

  // A client that takes what it gets, and lanes that work. False: nothing was left to do.
  bool GoOn() {
    if (transport_->writing) return EndWrite(true), true;
    if (Take(); !batches_.empty()) return EndBatch(absl::OkStatus()), true;
    if (transport_->reading == nullptr) return false;
    if ((options_ & kPolite) != 0 && has_header_ && sent_ < bytes_) {
      SendChunk(std::min(MaxChunk(), bytes_ - sent_), 0);
    } else {
      HalfClose();
    }
    return true;
  }

  void CheckWindow() {
    if (transport_->reading == nullptr || transport_->reads < 2) return;
    const std::int64_t inside = sent_ - Answered();
    if (inside + MaxChunk() > limits_.window_bytes) {
      transport_->Broken(absl::StrCat("a read with ", inside, " bytes inside"));
    }
  }

  // The part of what was sent that the client has taken the result of.
  std::int64_t Answered() const {
    if (y_bytes_ == 0) return taken_;
    return (taken_ * (x_bytes_ + y_bytes_) + y_bytes_ - 1) / y_bytes_;
  }

  // The whole output of what was sent, or would have been.
  std::string Result() const {
    const std::string input = InputAt(0, bytes_);
    if (y_bytes_ == 0) return Computed(input, input);
    std::string x;
    std::string y;
    for (std::int64_t at = 0; at < bytes_; at += x_bytes_ + y_bytes_) {
      x.append(input, static_cast<std::size_t>(at), static_cast<std::size_t>(x_bytes_));
      y.append(input, static_cast<std::size_t>(at + x_bytes_), static_cast<std::size_t>(y_bytes_));
    }
    return Computed(x, y);
  }

  // What gRPC does once the call has done its last operation, then the verdict.
  void End() {
    if (std::exchange(transport_->reading, nullptr) != nullptr) call_->OnReadDone(false);
    CheckResponses();
    std::weak_ptr<StreamCall> gone = call_;
    call_.reset();
    if (const std::shared_ptr<StreamCall> call = gone.lock()) call->OnDone();
    if (!gone.expired()) transport_->Broken("the call outlives its end");
    transport_->answers.clear();
    CheckNothingHeld();
  }

  void CheckResponses() {
    const bool ok = transport_->status_code == 0;
    if (ok && must_fail_) transport_->Broken("OK after a fault");
    if (!ok && !must_fail_ && !may_fail_) {
      transport_->Broken(absl::StrCat("code ", transport_->status_code, " without a fault"));
    }
    std::string bytes;
    const std::size_t count = transport_->answers.size();
    for (std::size_t i = 0; i < count; ++i) {
      const v1::NormalizeStreamResponse& answer = transport_->answers[i];
      const bool in_place = answer.has_header()    ? i == 0
                            : answer.has_trailer() ? ok && i + 1 == count
                                                   : answer.has_chunk() && i > 0;
      if (!in_place) transport_->Broken(absl::StrCat("part ", answer.part_case(), " at ", i));
      bytes.append(answer.chunk());
    }
    if (!known_) return;
    if (!bytes.empty() && !absl::StartsWith(Result(), bytes)) transport_->Broken("bytes differ");
    if (!ok) return;
    if (static_cast<std::int64_t>(bytes.size()) != output_bytes_) {
      transport_->Broken(absl::StrCat(bytes.size(), " bytes of ", output_bytes_));
    }
    if (!half_closed_ || count < 2 || !transport_->answers.back().has_trailer()) {
      transport_->Broken("OK before the end");
    }
  }

  void CheckNothingHeld() {
    if (held_slices_ != 0) transport_->Broken(absl::StrCat(held_slices_, " slices held"));
    if (held_outputs_ != 0) transport_->Broken(absl::StrCat(held_outputs_, " outputs held"));
    if (queue_.waiting_requests() != 0) transport_->Broken("pieces in the queue");
    if (admission_.inflight_bytes() != 0 || admission_.inflight_requests() != 0) {
      transport_->Broken("a budget held");
    }
    if (accept_.active.count() != 0) transport_->Broken("a call in the count");
  }

  Script script_;
  const int options_;
  const StreamLimits limits_;
  FakeClock clock_;
  Admission admission_;
  BatchQueue queue_;
  AcceptEnvironment accept_;
  const CallOptions call_options_ = MakeOptions();
  std::int64_t held_slices_ = 0;
  std::int64_t held_outputs_ = 0;
  grpc::CallbackServerContext context_;
  std::shared_ptr<StreamCall> call_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Batch>> batches_;  // In lanes.

  bool has_header_ = false;
  std::int64_t bytes_ = 0;         // The inputs',
  std::int64_t sent_ = 0;          // and sent of them;
  std::int64_t output_bytes_ = 0;  // of the output,
  std::int64_t taken_ = 0;         // and taken of it by the client.
  std::int64_t x_bytes_ = 0;       // In a sample of "fused"; 0 for the others.
  std::int64_t y_bytes_ = 0;
  bool half_closed_ = false;
  bool must_fail_ = false;
  bool may_fail_ = false;
  bool known_ = true;  // What was sent is what bytes_ and InputAt say.
};

}  // namespace

std::string PlayStreamScript(absl::string_view script) { return Play(script).Run(); }

}  // namespace normd::testing
