#include "server/rest/rest_connection.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory_resource>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/asio/dispatch.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/ssl/context.hpp"
#include "boost/asio/ssl/error.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "server/accept/client_status.h"
#include "server/http/certificate_names.h"
#include "server/http/connection_end.h"
#include "server/rest/awaited_body.h"
#include "server/rest/delivery.h"
#include "server/rest/incoming_body.h"
#include "server/rest/request_reader.h"
#include "server/rest/rest_call.h"

namespace normd {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using Socket = asio::basic_stream_socket<asio::ip::tcp, asio::io_context::executor_type>;
using TlsStream = asio::ssl::stream<Socket>;

// The bytes of a body that is discarded, or of which no call says how many it takes.
constexpr std::uint64_t kMostDiscarded = std::uint64_t{64} << 10;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

TimePoint Now() { return std::chrono::steady_clock::now(); }

// As many bytes as the kernel takes; Asio's own limit is 64 KiB.
struct TransferAll {
  std::size_t operator()(const ErrorCode& error, std::size_t) const {
    return error ? 0 : std::size_t{1} << 30;
  }
};

// A handler that Asio keeps in `memory`.
template <typename Run>
struct InMemory {
  using allocator_type = std::pmr::polymorphic_allocator<std::byte>;

  allocator_type get_allocator() const { return &memory; }
  void operator()() { run(); }

  std::pmr::memory_resource& memory;
  Run run;
};
template <typename Run>
InMemory(std::pmr::memory_resource&, Run) -> InMemory<Run>;

// shared: the operation in progress holds it, or `busy_` while a call has it.
template <typename Stream>
class ConnectionOver final : public RestConnection,
                             public std::enable_shared_from_this<ConnectionOver<Stream>> {
 public:
  ConnectionOver(Stream stream, std::shared_ptr<Caller> caller, RestParts& parts)
      : stream_(std::move(stream)),
        caller_(std::move(caller)),
        parts_(parts),
        options_(parts.options),
        buffer_(std::max(options_.max_head_bytes, kMaxLineBytes) + kReadBytes),
        body_(options_, parts.bodies, buffer_),
        end_(socket().get_executor()) {}
  ~ConnectionOver() override {
    awaited_.reset();
    call_.reset();
    caller_.reset();
    if (on_end) on_end();
  }
  ConnectionOver(const ConnectionOver&) = delete;
  ConnectionOver& operator=(const ConnectionOver&) = delete;

  void Start() override {
    Expect(Phase::kOpening, options_.handshake_timeout);
    if constexpr (kTls) {
      stream_.async_handshake(asio::ssl::stream_base::server, [self = Self()](ErrorCode error) {
        if (error) self->RecordFailedHandshake(error);
        if (error || self->ended_) return;
        self->certificate_ = VerifiedNamesOf(self->stream_.native_handle());
        self->Expect(Phase::kOpening, self->options_.handshake_timeout);
        self->Read();
      });
    } else {
      Read();
    }
  }

  void Check(TimePoint now) override {
    if (ended_) return;
    if (now < due_) {
      // The phases of a response have a time of their own.
      const bool responds = phase_ == Phase::kWriting || phase_ == Phase::kEnding;
      if (responds || !delivery_.IsLate(socket().native_handle(), now)) return;
      return phase_ == Phase::kIdle ? End(now) : Drop();
    }
    switch (phase_) {
      case Phase::kOpening:
      case Phase::kHead: parts_.metrics.RecordEnded(ConnectionEnding::kHandshakeTimeout); break;
      case Phase::kBody:
        if (body_.BringsEnough()) return Expect(Phase::kBody, options_.message_timeout);
        parts_.metrics.RecordEnded(ConnectionEnding::kMessageTimeout);
        break;
      case Phase::kIdle: return End(DeliveryDue());
      default: break;
    }
    Drop();
  }

  void Drain() override {
    if (phase_ != Phase::kBody || call_ == nullptr || awaited_ != nullptr) return;
    last_bytes_at_ = Now();
    ActiveCalls& active = parts_.environment.accept.active;
    // The connection must end on its own thread: a stop does not keep it.
    awaited_ = std::make_shared<AwaitedBody>(
        active, [weak = this->weak_from_this(), executor = socket().get_executor()](
                    TimePoint quiet_since, const absl::Status& status) {
          asio::post(executor, [weak, quiet_since, status] {
            if (const auto self = weak.lock()) self->GiveUpBody(quiet_since, status);
          });
        });
    active.Add(awaited_);
  }

  void CloseIdle() override {
    if (phase_ == Phase::kOpening || phase_ == Phase::kIdle) return Close();
    if (phase_ == Phase::kHead || phase_ == Phase::kBody) Drop();
  }

  void CloseEnding() override {
    if (phase_ == Phase::kEnding && !ended_) Close();
  }

  void Drop() override {
    if (ended_) return;
    ErrorCode ignored;
    // Discards bytes that the client has not taken: the kernel would keep them for minutes.
    socket().set_option(asio::socket_base::linger(true, 0), ignored);
    Close();
    if (phase_ == Phase::kBusy) {
      call_->Leave();
    } else if (phase_ == Phase::kBody) {
      EndUnread(parts_.client_left);
    }
  }

 private:
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;

  enum class Phase {
    kOpening,  // Nothing of its first request has come.
    kIdle,     // Between requests.
    kHead,     // A part of a head has come.
    kBody,     // A body comes, to be served or to be discarded.
    kBusy,     // A call works.
    kWriting,  // The response goes.
    kEnding    // See ConnectionEnd.
  };

  std::shared_ptr<ConnectionOver> Self() { return this->shared_from_this(); }
  Socket& socket() {
    if constexpr (kTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  // What a client began with in place of TLS, or of a version that the server takes.
  void RecordFailedHandshake(ErrorCode error) {
    if (error.category() != asio::error::get_ssl_category()) return;
    switch (ERR_GET_REASON(static_cast<unsigned long>(error.value()))) {
      case SSL_R_HTTP_REQUEST:
      case SSL_R_WRONG_VERSION_NUMBER: return parts_.metrics.RecordEnded(ConnectionEnding::kNoTls);
      case SSL_R_UNSUPPORTED_PROTOCOL: return parts_.metrics.RecordEnded(ConnectionEnding::kOldTls);
      default: return;
    }
  }

  void Expect(Phase phase, Duration limit) {
    phase_ = phase;
    due_ = limit > Duration(0) ? Now() + limit : kNever;
  }

  // A body begins and ends while no read is in progress: its bytes have come where Room said.
  void Read() {
    if (reading_) return;
    reading_ = true;
    stream_.async_read_some(
        phase_ == Phase::kBody ? body_.Room() : asio::mutable_buffer(buffer_.prepare(kReadBytes)),
        [self = Self()](ErrorCode error, std::size_t bytes) {
          self->reading_ = false;
          if (!self->ended_) self->HaveBytes(error, bytes);
        });
  }

  void HaveBytes(ErrorCode error, std::size_t bytes) {
    if (error) {
      client_ended_ = true;
      // The response is on its way, and the client may have ended only its side.
      if (phase_ == Phase::kWriting || phase_ == Phase::kEnding) return;
      return phase_ == Phase::kIdle ? End(DeliveryDue()) : Drop();
    }
    if (phase_ == Phase::kBody) {
      last_bytes_at_ = Now();
      return Follow(body_.Take(bytes));
    }
    if (!head_.keep_alive) return;  // Perhaps the rest of a body that was given up.
    buffer_.commit(bytes);
    if (phase_ == Phase::kOpening || phase_ == Phase::kIdle || phase_ == Phase::kHead) ReadHeadOf();
  }

  void ReadHeadOf() {
    const bool first = !reader_.has_value();
    if (first) reader_.emplace(options_.max_head_bytes);
    const RequestReader::Progress progress = reader_->ReadHeadFrom(buffer_, head_, refused_);
    if (progress == RequestReader::Progress::kNeedsMore) {
      if (first) Expect(Phase::kHead, options_.handshake_timeout);
      return Read();
    }
    if (refused_.status != 0) {
      head_.keep_alive = false;  // Where the next request begins is unclear.
      return RefuseRequest();
    }
    Begin();
  }

  // The head is complete.
  void Begin() {
    absl::Status status = MakeCall();
    const std::uint64_t most =
        call_ != nullptr ? static_cast<std::uint64_t>(call_->max_body_bytes()) : kMostDiscarded;
    reader_->Limit(most);
    body_.Begin(head_, *reader_, call_.get());
    body_.Refuse(status);
    if (head_.content_length.value_or(0) > most) return TooLarge(*head_.content_length);
    if (call_ != nullptr && head_.has_body() && parts_.draining.load(std::memory_order_relaxed)) {
      // A stop does not wait for a body that has not come.
      const AcceptEnvironment& accept = parts_.environment.accept;
      if (status.ok()) status = accept.admission.CheckOpen(accept.metrics.ForNoModel());
      if (!status.ok()) return EndUnread(status);
    }
    if (!head_.has_body()) return HaveBody();
    if (head_.expects_continue && buffer_.size() == 0) {
      // The client does not send what will not be served.
      if (call_ == nullptr || !status.ok()) return EndUnread(status);
      return Continue();
    }
    ReadBody();
  }

  // Makes the call, or refused_ where there is none; the status is the call's right.
  absl::Status MakeCall() {
    refused_ = CheckOrigin(head_.origin, options_.allow_origin);
    if (refused_.status == 0) refused_ = FindRoute(head_.verb, head_.target, route_);
    if (refused_.status != 0) return absl::OkStatus();
    const absl::Status made = CatchAll([this] {
      call_ = MakeRestCall(parts_.environment, {head_, route_, caller_, certificate_},
                           [this] { Replied(); });
      return absl::OkStatus();
    });
    if (made.ok()) return call_->Authorize();
    refused_ = {429, std::string(made.message())};
    return absl::OkStatus();
  }

  void Continue() {
    Expect(Phase::kBody, options_.message_timeout);
    asio::async_write(stream_, asio::buffer(kContinue, sizeof(kContinue) - 1),
                      [self = Self()](ErrorCode error, std::size_t) {
                        if (!error && !self->ended_) self->ReadBody();
                      });
  }

  void ReadBody() {
    const IncomingBody::Progress progress = body_.TakeBuffered();
    if (progress == IncomingBody::Progress::kNeedsMore) {
      Expect(Phase::kBody, options_.message_timeout);
    }
    Follow(progress);
  }

  void Follow(IncomingBody::Progress progress) {
    switch (progress) {
      case IncomingBody::Progress::kNeedsMore: return Read();
      case IncomingBody::Progress::kDone: return HaveBody();
      case IncomingBody::Progress::kTooLarge: return TooLarge(reader_->body_bytes());
      case IncomingBody::Progress::kBad:
        return EndUnread(absl::InvalidArgumentError("body: malformed, wanted chunks"));
    }
  }

  void TooLarge(std::uint64_t bytes) {
    const std::string why =
        absl::StrCat("request: ", bytes, " bytes", head_.chunked ? " or more" : "",
                     ", wanted at most ", reader_->limit());
    if (body_.status().ok() && refused_.status == 0) refused_ = {413, why};
    EndUnread(absl::InvalidArgumentError(why));
  }

  // Ends a request whose body is not read.
  void EndUnread(const absl::Status& status) {
    head_.keep_alive = false;
    body_.Refuse(status);
    HaveBody();
  }

  // In a stop, which serves inference alone. A body that is not read yet waits for 100 Continue.
  void GiveUpBody(TimePoint quiet_since, const absl::Status& status) {
    const bool waits = awaited_ != nullptr && phase_ == Phase::kBody && reading_ && !ended_;
    const bool may_end = route_.method != RestMethod::kInfer || last_bytes_at_ <= quiet_since;
    if (waits && may_end) EndUnread(status);
  }

  // Answers a request that has no call: with a refusal, or OPTIONS.
  void RefuseRequest() {
    if (refused_.status >= 400) parts_.metrics.RecordRefusedRequest(refused_.status);
    Answer();
  }

  void HaveBody() {
    if (call_ == nullptr) return RefuseRequest();
    Expect(Phase::kBusy, Duration(0));
    busy_ = Self();
    try {
      if (!body_.status().ok()) {
        // A read over TLS that is in progress may write to the memory after the socket's end.
        if (!reading_) body_.Release();
        return call_->Refuse(body_.status());
      }
      call_->Run(body_.Release());
    } catch (const std::exception&) {
      // No memory to begin with it.
      if (busy_ == nullptr) throw;
      const std::shared_ptr<ConnectionOver> self = std::move(busy_);
      call_->SetCode(absl::StatusCode::kResourceExhausted);
      EndCall();
      phase_ = Phase::kEnding;
      return Drop();
    }
    // A client that leaves now is noticed; one that sends its next request is not read further.
    if (phase_ == Phase::kBusy && !ended_ && buffer_.size() == 0) Read();
  }

  // On any thread. Passes the reply on to the connection's own without needing memory: nothing else
  // would end the call.
  void Replied() {
    reply_memory_.release();
    asio::dispatch(socket().get_executor(), InMemory{reply_memory_, [this] { HaveReply(); }});
  }

  void HaveReply() {
    const std::shared_ptr<ConnectionOver> self = std::move(busy_);
    if (!ended_) return Answer();
    call_->SetCode(absl::StatusCode::kCancelled);
    // Not here: this may be within a function of the call.
    reply_memory_.release();
    asio::post(socket().get_executor(), InMemory{reply_memory_, [self] { self->EndCall(); }});
  }

  void Answer() {
    try {
      // A call that is refused for another reason tells that alone.
      const bool refused =
          refused_.status != 0 && (call_ == nullptr || call_->reply().status == 400);
      Write(refused ? RefusalReply(refused_) : std::move(call_->reply()));
    } catch (const std::exception&) {
      // No memory for the response. The call is kept until this object's end, since this may be
      // within one of its functions.
      phase_ = Phase::kEnding;
      Drop();
      if (call_ == nullptr) return;
      call_->SetCode(absl::StatusCode::kResourceExhausted);
      call_->Record();
    }
  }

  void Write(RestReply reply) {
    if (parts_.draining.load(std::memory_order_relaxed) || client_ended_ || IsOld()) {
      head_.keep_alive = false;
    }
    reply_.Set(std::move(reply), head_, call_ != nullptr ? &call_->ids() : nullptr,
               options_.allow_origin);
    Expect(Phase::kWriting, delivery_.TimeFor(static_cast<std::int64_t>(reply_.bytes())));
    asio::async_write(stream_, reply_.parts(), TransferAll(),
                      [self = Self()](ErrorCode error, std::size_t) { self->Sent(error); });
  }

  void Sent(ErrorCode error) {
    if (call_ != nullptr && (error || ended_)) {
      call_->SetCode(Now() < due_ ? absl::StatusCode::kCancelled
                                  : absl::StatusCode::kDeadlineExceeded);
    }
    EndCall();
    reply_.Clear();
    if (error || ended_) return Drop();
    if (!head_.keep_alive) return End(due_);
    delivery_.Begin();
    head_ = RestHead();
    Expect(Phase::kIdle, options_.max_idle);
    if (buffer_.size() > 0) return ReadHeadOf();
    if (!reading_ && buffer_.capacity() > kReadBytes) buffer_.shrink_to_fit();
    Read();
  }

  void EndCall() {
    if (call_ != nullptr) call_->Record();
    awaited_.reset();
    call_.reset();
    reader_.reset();
  }

  // When the client of an idle connection is to have what the kernel has.
  TimePoint DeliveryDue() { return delivery_.Due(socket().native_handle(), Now()); }

  // The client has until `due` to take what the kernel has, and kLinger at least.
  void End(TimePoint due) {
    phase_ = Phase::kEnding;
    due_ = std::max(due, Now() + kLinger);
    ErrorCode ignored;
    if (reading_) socket().cancel(ignored);  // It would keep the client's end from `end_`.
    end_.Begin(stream_, socket(), due_,
               [self = Self()](bool delivered) { delivered ? self->Close() : self->Drop(); });
  }

  void Close() {
    ended_ = true;
    end_.Cancel();
    ErrorCode ignored;
    socket().close(ignored);
  }

  bool IsOld() const {
    return options_.max_age > Duration(0) && Now() - opened_at_ > options_.max_age;
  }

  Stream stream_;
  std::shared_ptr<Caller> caller_;  // shared: with its calls.
  RestParts& parts_;
  const RestOptions& options_;
  const TimePoint opened_at_ = Now();
  CertificateNames certificate_;
  Phase phase_ = Phase::kOpening;
  TimePoint due_ = kNever;
  bool reading_ = false;
  bool client_ended_ = false;
  bool ended_ = false;
  Delivery delivery_{options_.response_timeout};
  boost::beast::flat_buffer buffer_;

  // For the request in progress.
  std::optional<RequestReader> reader_;
  RestHead head_;
  Route route_;
  RestRefusal refused_;
  IncomingBody body_;
  std::unique_ptr<RestCall> call_;
  std::shared_ptr<AwaitedBody> awaited_;  // shared: with a stop that looks at it.
  TimePoint last_bytes_at_{};             // In kBody.
  std::shared_ptr<ConnectionOver> busy_;  // This object, while the call works.
  alignas(std::max_align_t) std::array<std::byte, 128> reply_bytes_;  // For one handler at a time.
  std::pmr::monotonic_buffer_resource reply_memory_{reply_bytes_.data(), reply_bytes_.size(),
                                                    std::pmr::null_memory_resource()};
  OutgoingReply reply_;

  ConnectionEnd end_;
};

}  // namespace

std::shared_ptr<RestConnection> MakeRestConnection(asio::io_context& context, Descriptor socket,
                                                   std::shared_ptr<Caller> caller,
                                                   RestParts& parts) {
  Socket plain(context);
  // Neither the protocol of the address nor its family matters for an accepted socket.
  plain.assign(asio::ip::tcp::v4(), socket.Release());
  plain.non_blocking(true);
  if (parts.options.tls == nullptr) {
    return std::make_shared<ConnectionOver<Socket>>(std::move(plain), std::move(caller), parts);
  }
  const std::shared_ptr<SSL_CTX> shared = parts.options.tls();
  SSL_CTX_up_ref(shared.get());
  asio::ssl::context tls(shared.get());  // Releases one reference.
  return std::make_shared<ConnectionOver<TlsStream>>(TlsStream(std::move(plain), tls),
                                                     std::move(caller), parts);
}

}  // namespace normd
