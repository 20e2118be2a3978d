#include "server/rest/rest_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/printable.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/dispatch.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/ssl/context.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "server/accept/client_status.h"
#include "server/http/certificate_names.h"
#include "server/rest/request_reader.h"
#include "server/rest/rest_call.h"

namespace normd {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using Socket = asio::basic_stream_socket<asio::ip::tcp, asio::io_context::executor_type>;
using TlsStream = asio::ssl::stream<Socket>;

// The bytes read at once before a body's memory is known.
constexpr std::size_t kReadBytes = 4096;
// A body's bytes that are taken of the budgets before they come; then as many as have come.
constexpr std::uint64_t kFirstStep = std::uint64_t{64} << 10;
// The time for a client to read a last response before its own bytes reset the connection.
constexpr Duration kLinger = std::chrono::seconds(2);
// As many of these are read at most.
constexpr std::size_t kLingerBytes = std::size_t{4} << 20;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

TimePoint Now() { return std::chrono::steady_clock::now(); }

// Parts of a response, without the copy that Asio makes of a container.
struct Parts {
  using value_type = asio::const_buffer;
  using const_iterator = const asio::const_buffer*;
  const_iterator begin() const { return first; }
  const_iterator end() const { return last; }
  const_iterator first;
  const_iterator last;
};

// As many bytes as the kernel takes; Asio's own limit is 64 KiB.
struct TransferAll {
  std::size_t operator()(const ErrorCode& error, std::size_t) const {
    return error ? 0 : std::size_t{1} << 30;
  }
};

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
        buffer_(std::max(options_.max_head_bytes, kMaxLineBytes) + kReadBytes) {}
  ~ConnectionOver() override {
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
    if (ended_ || now < due_) return;
    switch (phase_) {
      case Phase::kOpening:
      case Phase::kHead: parts_.metrics.RecordEnded(ConnectionEnding::kHandshakeTimeout); break;
      case Phase::kBody:
        if (BringsEnough()) return ExpectBody();
        parts_.metrics.RecordEnded(ConnectionEnding::kMessageTimeout);
        break;
      case Phase::kWriting: late_ = true; break;
      case Phase::kIdle:
      case Phase::kLingering: return LeaveToKernel();
      default: break;
    }
    Drop();
  }

  void Drain() override {
    if (phase_ != Phase::kHead && phase_ != Phase::kBody) return;
    Drop();
  }

  void CloseIdle() override {
    if (phase_ == Phase::kOpening || phase_ == Phase::kIdle) Close();
  }

  void Drop() override {
    if (ended_) return;
    ended_ = true;
    ErrorCode ignored;
    // Discards bytes that the client has not taken: the kernel would keep them for minutes.
    socket().set_option(asio::socket_base::linger(true, 0), ignored);
    socket().close(ignored);
    if (phase_ == Phase::kBusy) {
      call_->Leave();
    } else if (phase_ == Phase::kBody) {
      EndUnread();
    }
  }

 private:
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;

  enum class Phase {
    kOpening,   // Nothing of its first request has come.
    kIdle,      // Between requests.
    kHead,      // A part of a head has come.
    kBody,      // A body comes, to be served or to be discarded.
    kBusy,      // A call works.
    kWriting,   // The response goes.
    kLingering  // The last response is with the kernel.
  };

  std::shared_ptr<ConnectionOver> Self() { return this->shared_from_this(); }
  Socket& socket() {
    if constexpr (kTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  void Expect(Phase phase, Duration limit) {
    phase_ = phase;
    due_ = limit > Duration(0) ? Now() + limit : kNever;
  }

  // More of the body, within the time for a message.
  void ExpectBody() {
    Expect(Phase::kBody, options_.message_timeout);
    bytes_before_ = reader_->wire_bytes();
  }
  bool BringsEnough() const {
    const auto bytes = static_cast<double>(reader_->wire_bytes() - bytes_before_);
    const double seconds = std::chrono::duration<double>(options_.message_timeout).count();
    return options_.min_bytes_per_second > 0 &&
           bytes >= seconds * static_cast<double>(options_.min_bytes_per_second);
  }

  void Read() {
    if (reading_) return;
    reading_ = true;
    stream_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = Self()](ErrorCode error, std::size_t bytes) {
                              self->reading_ = false;
                              if (!self->ended_) self->HaveBytes(error, bytes);
                            });
  }

  void HaveBytes(ErrorCode error, std::size_t bytes) {
    if (error) {
      client_ended_ = true;
      // The response is on its way, and the client may have ended only its side.
      if (phase_ == Phase::kWriting) return;
      return phase_ == Phase::kIdle || phase_ == Phase::kLingering ? LeaveToKernel() : Drop();
    }
    buffer_.commit(bytes);
    if (phase_ == Phase::kOpening || phase_ == Phase::kIdle || phase_ == Phase::kHead) {
      ReadHeadOf();
    } else if (phase_ == Phase::kBody) {
      ReadChunks();
    } else if (phase_ == Phase::kLingering) {
      Discard();
    }
  }

  void ReadHeadOf() {
    if (!reader_.has_value()) {
      reader_.emplace(options_.max_head_bytes);
      Expect(Phase::kHead, options_.handshake_timeout);
    }
    RestRefusal refusal;
    const RequestReader::Progress progress = reader_->ReadHeadFrom(buffer_, head_, refusal);
    if (progress == RequestReader::Progress::kNeedsMore) return Read();
    if (refusal.status != 0) {
      head_.keep_alive = false;  // Where the next request begins is unclear.
      return Answer(RefusalReply(refusal));
    }
    Begin();
  }

  // The head is complete.
  void Begin() {
    refused_ = CheckOrigin();
    if (refused_.status == 0) refused_ = FindRoute(head_.verb, head_.target, route_);
    if (refused_.status == 0) {
      const absl::Status made = CatchAll([this] {
        call_ = MakeRestCall(parts_.environment, {head_, route_, caller_, certificate_},
                             [this] { Replied(); });
        return absl::OkStatus();
      });
      if (!made.ok()) refused_ = {429, std::string(made.message())};
    }
    status_ = absl::OkStatus();
    std::uint64_t most = kFirstStep;
    if (call_ != nullptr) {
      most = static_cast<std::uint64_t>(call_->max_body_bytes());
      status_ = call_->Authorize();
    }
    body_ = RequestBody();
    granted_ = 0;
    discards_ = refused_.status != 0 || !status_.ok();
    reader_->Limit(most);
    if (head_.content_length.value_or(0) > most) return TooLarge(*head_.content_length, most);
    if (call_ != nullptr && head_.has_body() && parts_.draining.load(std::memory_order_relaxed)) {
      // A stop does not wait for a body that has not come.
      if (status_.ok()) status_ = absl::UnavailableError("the server is stopping, retry elsewhere");
      return EndUnread();
    }
    if (!head_.has_body()) return HaveBody();
    if (head_.expects_continue && buffer_.size() == 0) {
      // The client does not send what will not be served.
      if (discards_) return EndUnread();
      return Continue();
    }
    ReadBody();
  }

  void Continue() {
    ExpectBody();
    asio::async_write(stream_, asio::buffer(kContinue, sizeof(kContinue) - 1),
                      [self = Self()](ErrorCode error, std::size_t) {
                        if (!error && !self->ended_) self->ReadBody();
                      });
  }

  void ReadBody() {
    ExpectBody();
    if (head_.chunked) return ReadChunks();
    const auto make = [this] {
      body_ = RequestBody(*head_.content_length, parts_.bodies, options_.pooled_bytes);
    };
    if (!discards_ && !Guarded(make)) discards_ = true;
    TakeBuffered();
    ReadRest();
  }

  // What came with the head.
  void TakeBuffered() {
    const std::size_t bytes = std::min<std::uint64_t>(buffer_.size(), BodyLeft());
    if (!discards_) {
      body_.Append({static_cast<const std::byte*>(buffer_.data().data()), bytes});
    }
    reader_->Count(bytes);
    buffer_.consume(bytes);
  }

  std::uint64_t BodyLeft() const { return *head_.content_length - reader_->wire_bytes(); }

  // The rest comes into the body's own memory.
  void ReadRest() {
    const std::uint64_t left = BodyLeft();
    if (left == 0) return HaveBody();
    if (!discards_) Grant(std::min(*head_.content_length, std::max(2 * granted_, kFirstStep)));
    asio::mutable_buffer room;
    if (discards_) {
      room = buffer_.prepare(std::min<std::uint64_t>(left, kReadBytes));
    } else {
      const MutableBytes memory =
          body_.Room(std::min<std::uint64_t>(left, granted_ - body_.size()));
      room = asio::buffer(memory.data(), memory.size());
    }
    stream_.async_read_some(room, [self = Self()](ErrorCode error, std::size_t bytes) {
      if (self->ended_) return;
      if (error) return self->Drop();
      self->reader_->Count(bytes);
      if (!self->discards_) self->body_.Commit(bytes);
      self->ReadRest();
    });
  }

  // Has the budgets grant `bytes` of the body in all, or discards it.
  void Grant(std::uint64_t bytes) {
    if (bytes <= granted_ || body_.size() < granted_) return;
    status_ = CatchAll([&] { return call_->Hold(static_cast<std::int64_t>(bytes - granted_)); });
    granted_ = bytes;
    if (status_.ok()) return;
    discards_ = true;
    body_ = RequestBody();
  }

  void ReadChunks() {
    const auto sink = [this](ConstBytes bytes) {
      if (!discards_) {
        Grant(std::max<std::uint64_t>(std::min(2 * granted_, reader_->limit()),
                                      body_.size() + bytes.size()));
      }
      if (!discards_ && !Guarded([&] { body_.Append(bytes); })) discards_ = true;
    };
    switch (reader_->ReadChunksFrom(buffer_, sink)) {
      case RequestReader::Progress::kNeedsMore: return Read();
      case RequestReader::Progress::kDone: return HaveBody();
      case RequestReader::Progress::kTooLarge:
        return TooLarge(reader_->body_bytes(), reader_->limit());
      case RequestReader::Progress::kBad: break;
    }
    head_.keep_alive = false;
    discards_ = true;
    if (status_.ok() && refused_.status == 0) {
      status_ = absl::InvalidArgumentError("body: malformed, wanted chunks");
    }
    HaveBody();
  }

  // Runs what may throw std::bad_alloc; false, with status_, if it has.
  template <typename Body>
  bool Guarded(Body body) {
    status_ = CatchAll([&] {
      body();
      return absl::OkStatus();
    });
    return status_.ok();
  }

  void TooLarge(std::uint64_t bytes, std::uint64_t most) {
    head_.keep_alive = false;
    if (status_.ok() && refused_.status == 0) {
      refused_ = {413, absl::StrCat("request: ", bytes, " bytes", head_.chunked ? " or more" : "",
                                    ", wanted at most ", most)};
    }
    if (call_ != nullptr && status_.ok()) {
      status_ = absl::InvalidArgumentError(refused_.why);
    }
    EndUnread();
  }

  // Ends a request whose body is not read.
  void EndUnread() {
    head_.keep_alive = false;
    discards_ = true;
    if (ended_ && status_.ok()) status_ = absl::CancelledError("the client left");
    HaveBody();
  }

  void HaveBody() {
    if (call_ == nullptr) return Answer(RefusalReply(refused_));
    Expect(Phase::kBusy, Duration(0));
    busy_ = Self();
    try {
      if (discards_) {
        body_ = RequestBody();
        return call_->Refuse(status_);
      }
      RestCall& call = *call_;
      call.Run(std::move(body_));
    } catch (const std::exception&) {
      // No memory to begin with it, or for its answer.
      if (busy_ == nullptr) throw;
      const std::shared_ptr<ConnectionOver> self = std::move(busy_);
      call_->SetCode(absl::StatusCode::kResourceExhausted);
      EndCall();
      phase_ = Phase::kLingering;
      return Drop();
    }
    // A client that leaves now is noticed; one that sends its next request is not read further.
    if (phase_ == Phase::kBusy && !ended_ && buffer_.size() == 0) Read();
  }

  // On any thread.
  void Replied() {
    asio::dispatch(socket().get_executor(), [this] {
      const std::shared_ptr<ConnectionOver> self = std::move(busy_);
      if (ended_) {
        call_->SetCode(absl::StatusCode::kCancelled);
        // Not here: this may be within a function of the call.
        return asio::post(socket().get_executor(), [self] { self->EndCall(); });
      }
      if (refused_.status != 0) call_->reply() = RefusalReply(refused_);
      Answer(std::move(call_->reply()));
    });
  }

  void Answer(RestReply reply) {
    reply_ = std::move(reply);
    if (parts_.draining.load(std::memory_order_relaxed) || client_ended_ || IsOld()) {
      head_.keep_alive = false;
    }
    if (head_.verb == "OPTIONS" && !AllowedOrigin().empty()) {  // Before a request.
      absl::StrAppend(&reply_.headers, "Access-Control-Allow-Methods: GET, POST, HEAD\r\n",
                      "Access-Control-Allow-Headers: *, Authorization\r\n"
                      "Access-Control-Max-Age: 600\r\n");
    }
    const bool has_ids = call_ != nullptr;
    reply_head_ =
        HeadOf(reply_, {head_.keep_alive, head_.http_1_0, has_ids ? call_->ids().request_id : "",
                        has_ids ? call_->ids().traceparent : "", AllowedOrigin()});
    std::size_t bytes = reply_head_.size();
    absl::InlinedVector<asio::const_buffer, 4>& out = parts_out_;
    out.clear();
    out.push_back(asio::buffer(reply_head_));
    if (head_.verb != "HEAD") {
      out.push_back(asio::buffer(reply_.text));
      for (const Buffer& data : reply_.data) out.emplace_back(data.data(), data.size());
      bytes += reply_.body_bytes();
    }
    Expect(Phase::kWriting, options_.response_timeout > Duration(0)
                                ? options_.response_timeout + std::chrono::seconds(bytes >> 20)
                                : Duration(0));
    asio::async_write(stream_, Parts{out.data(), out.data() + out.size()}, TransferAll(),
                      [self = Self()](ErrorCode error, std::size_t) { self->Sent(error); });
  }

  void Sent(ErrorCode error) {
    if (call_ != nullptr && (error || ended_)) {
      call_->SetCode(late_ ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kCancelled);
    }
    EndCall();
    reply_ = RestReply();
    if (error || ended_) return Drop();
    if (!head_.keep_alive) return Finish();
    head_ = RestHead();
    Expect(Phase::kIdle, options_.max_idle);
    if (buffer_.size() > 0) return ReadHeadOf();
    if (!reading_ && buffer_.capacity() > kReadBytes) buffer_.shrink_to_fit();
    Read();
  }

  void EndCall() {
    if (call_ != nullptr) call_->Record();
    call_.reset();
    reader_.reset();
  }

  // Closing at once would reset the connection if the client is still sending, and the response
  // would be lost.
  void Finish() {
    Expect(Phase::kLingering, kLinger);
    if (client_ended_) return LeaveToKernel();
    if constexpr (kTls) {
      stream_.async_shutdown([self = Self()](ErrorCode) {
        if (!self->ended_) self->ShutDown();
      });
    } else {
      ShutDown();
    }
  }

  void ShutDown() {
    ErrorCode ignored;
    socket().shutdown(asio::socket_base::shutdown_send, ignored);
    if (!reading_) Discard();
  }

  void Discard() {
    buffer_.clear();
    socket().async_read_some(buffer_.prepare(kReadBytes),
                             [self = Self()](ErrorCode error, std::size_t bytes) {
                               if (self->ended_) return;
                               self->lingered_ += bytes;
                               if (error || self->lingered_ > kLingerBytes) return self->Close();
                               self->Discard();
                             });
  }

  // The kernel delivers what is left of the last response, as long as the client takes some of it.
  void LeaveToKernel() {
    const int limit_ms =
        static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(kLinger).count());
    setsockopt(socket().native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms,
               sizeof(limit_ms));
    Close();
  }

  void Close() {
    ended_ = true;
    ErrorCode ignored;
    socket().close(ignored);
  }

  bool IsOld() const {
    return options_.max_age > Duration(0) && Now() - opened_at_ > options_.max_age;
  }

  // The request's origin, if it may use the response.
  absl::string_view AllowedOrigin() const {
    if (head_.origin.empty() || options_.allow_origin.empty()) return "";
    if (options_.allow_origin == "*") return "*";
    for (const absl::string_view one : absl::StrSplit(options_.allow_origin, ',')) {
      if (one == head_.origin) return head_.origin;
    }
    return "";
  }

  // Browsers send this header with what a page of another server asks for. Such a page must not
  // reach a server of the machine that it is read on.
  RestRefusal CheckOrigin() const {
    if (head_.origin.empty() || !AllowedOrigin().empty()) return {};
    return {403, absl::StrCat("Origin: \"", Printable(head_.origin, 64),
                              "\", wanted none, or one of --http_allow_origin")};
  }

  Stream stream_;
  std::shared_ptr<Caller> caller_;  // shared: with its calls.
  RestParts& parts_;
  const RestOptions& options_;
  const TimePoint opened_at_ = Now();
  CertificateNames certificate_;
  Phase phase_ = Phase::kOpening;
  TimePoint due_ = kNever;
  bool reading_ = false;  // Into buffer_.
  bool client_ended_ = false;
  bool ended_ = false;
  bool late_ = false;  // The client has not taken the response in time.
  bool discards_ = false;
  std::size_t lingered_ = 0;  // Bytes that were discarded behind the last response.
  boost::beast::flat_buffer buffer_;

  // For the request in progress.
  std::optional<RequestReader> reader_;
  RestHead head_;
  Route route_;
  RestRefusal refused_;
  absl::Status status_;
  RequestBody body_;
  std::uint64_t bytes_before_ = 0;  // The body's, when its present time began.
  std::uint64_t granted_ = 0;       // The body's, by the budgets.
  std::unique_ptr<RestCall> call_;
  std::shared_ptr<ConnectionOver> busy_;  // This object, while the call works.
  RestReply reply_;
  std::string reply_head_;
  absl::InlinedVector<asio::const_buffer, 4> parts_out_;
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
