#include "client/normload/http_sender.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core/error.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/tcp_stream.hpp"
#include "boost/beast/http/empty_body.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/read.hpp"
#include "client/normload/http_message.h"
#include "client/scrape/http_get.h"

namespace normd::load {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using Endpoints = asio::ip::tcp::resolver::results_type;

constexpr int kMaxThreads = 4;
// More than any response that a server's limits allow.
constexpr std::uint64_t kMaxBodyBytes = std::uint64_t{4} << 30;

}  // namespace

// Threads that each run the connections given to them.
class HttpSender::Threads {
 public:
  explicit Threads(int connections) {
    const int half = static_cast<int>(std::thread::hardware_concurrency()) / 2;
    const int count = std::clamp(std::min(half, connections), 1, kMaxThreads);
    for (int i = 0; i < count; ++i) {
      loops_.push_back(std::make_unique<Loop>());
      loops_.back()->thread = std::thread([&io = loops_.back()->io] { io.run(); });
    }
  }
  // After it, nothing runs. Once.
  void Stop() {
    for (const auto& loop : loops_) loop->io.stop();
    for (const auto& loop : loops_) loop->thread.join();
  }

  asio::io_context& operator[](std::size_t i) { return loops_[i % loops_.size()]->io; }

 private:
  struct Loop {
    asio::io_context io{1};
    asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
    std::thread thread;
  };
  std::vector<std::unique_ptr<Loop>> loops_;
};

// A connection, and its call if there is one. All but Run is on its loop's thread.
class HttpSender::Connection {
 public:
  Connection(HttpSender& sender, asio::io_context& io, const Endpoints& endpoints)
      : sender_(sender), endpoints_(endpoints), stream_(io) {}

  // Takes a call; not before the last one has ended.
  void Run(Backlog::Entry entry) {
    entry_ = std::move(entry);
    asio::post(stream_.get_executor(), [this] { Begin(); });
  }

 private:
  void Begin() {
    sent_ = sender_.clock_.Now();
    SetLimit();
    if (open_) return Write();
    stream_.async_connect(endpoints_, [this](const error_code& error, const auto&) {
      if (error) return Fail("cannot connect", error);
      error_code ignored;
      stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
      open_ = true;
      Write();
    });
  }

  // A call ends at its deadline, or before, where its client cancels it.
  void SetLimit() {
    const std::optional<Duration>& cancel = entry_.outgoing.cancel_after;
    cancels_ = cancel && (entry_.deadline == kNever || sent_ + *cancel < entry_.deadline);
    if (cancels_) return stream_.expires_after(*cancel);
    if (entry_.deadline == kNever) return stream_.expires_never();
    stream_.expires_after(std::max(entry_.deadline - sent_, Duration{1}));
  }

  void Write() {
    const Item& item = *entry_.outgoing.item;
    const std::string& text = sender_.texts_[item.index];
    std::vector<asio::const_buffer> pieces = {asio::buffer(text)};
    for (const client::Tensor& tensor : item.inputs) {
      pieces.emplace_back(tensor.bytes().data(), tensor.bytes().size());
    }
    // An early response, such as a refusal, is read although not everything was sent.
    asio::async_write(stream_, pieces, [this](const error_code& error, std::size_t) {
      if (error == beast::error::timeout) return Fail("cannot send", error);
      whole_ = !error;
      ReadHead();
    });
  }

  void ReadHead() {
    parser_.emplace();
    parser_->body_limit(kMaxBodyBytes);
    http::async_read_header(stream_, buffer_, *parser_,
                            [this](const error_code& error, std::size_t) {
                              if (error) return Fail("no response", error);
                              ReadBody();
                            });
  }

  void ReadBody() {
    if (!parser_->content_length()) {
      open_ = false;
      return End(absl::InternalError("the response has no Content-Length"));
    }
    const std::size_t bytes = *parser_->content_length();
    body_.resize(bytes);
    const asio::mutable_buffer to(body_.data(), bytes);
    const std::size_t read = asio::buffer_copy(to, buffer_.data());
    buffer_.consume(read);
    asio::async_read(stream_, to + read, [this](const error_code& error, std::size_t) {
      if (error) return Fail("the response broke off", error);
      const unsigned status = parser_->get().result_int();
      if (status != 200) return End(HttpError(status, body_));
      End(absl::OkStatus());
    });
  }

  void Fail(absl::string_view what, const error_code& error) {
    open_ = false;
    if (error == beast::error::timeout) {
      return End(cancels_ ? absl::CancelledError("cancelled by the client")
                          : absl::DeadlineExceededError("no response in time"));
    }
    End(absl::UnavailableError(
        absl::StrCat(sender_.options_.address, ": ", what, ": ", error.message())));
  }

  void End(const absl::Status& status) {
    Outcome outcome;
    outcome.sent = sent_;
    outcome.received = sender_.clock_.Now();
    outcome.code = status.code();
    outcome.message = std::string(status.message());
    outcome.cancelled = cancels_ && status.code() == absl::StatusCode::kCancelled;
    if (status.ok()) ReadOutputs(outcome);
    open_ = open_ && whole_ && parser_ && parser_->keep_alive();
    if (!open_) stream_.close();
    buffer_.clear();
    sender_.End(*this, outcome, std::move(entry_.done));
  }

  void ReadOutputs(Outcome& outcome) {
    std::size_t json_bytes = 0;
    const auto told = parser_->get()["Inference-Header-Content-Length"];
    if (!absl::SimpleAtoi(absl::string_view(told.data(), told.size()), &json_bytes) ||
        json_bytes > body_.size()) {
      json_bytes = body_.size();
    }
    outcome.output_bytes = static_cast<std::int64_t>(body_.size() - json_bytes);
    const Expectation* const expectation = ExpectationFor(sender_.expectations_, entry_.outgoing);
    if (expectation == nullptr) return;
    const absl::StatusOr<HttpOutputs> outputs = ReadHttpOutputs(body_, json_bytes);
    if (!outputs.ok()) {
      outcome.verdict = Verdict::kWrong;
      outcome.message = std::string(outputs.status().message());
      return;
    }
    if (outputs->version != expectation->version) return;
    std::vector<client::ReceivedTensor> received;
    for (std::size_t i = 0; i < outputs->specs.size(); ++i) {
      received.push_back({&outputs->specs[i], absl::MakeConstSpan(&outputs->bytes[i], 1)});
    }
    Verify(*entry_.outgoing.item, *expectation, received, outcome);
  }

  HttpSender& sender_;
  const Endpoints endpoints_;
  beast::tcp_stream stream_;
  bool open_ = false;
  Backlog::Entry entry_;  // The call.
  TimePoint sent_{};
  bool cancels_ = false;  // The time limit is its client's cancellation.
  bool whole_ = true;     // All of the request was sent.
  beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::empty_body>> parser_;
  std::vector<std::byte> body_;
};

absl::StatusOr<std::unique_ptr<HttpSender>> HttpSender::Create(
    const Workload& workload, std::vector<Expectation> expectations,
    const HttpSenderOptions& options, const Clock& clock) {
  std::unique_ptr<HttpSender> sender(
      new HttpSender(workload, std::move(expectations), options, clock));
  if (absl::Status status = sender->Connect(); !status.ok()) return status;
  for (const Item& item : workload.items()) {
    Outcome outcome;
    absl::Notification ended;
    Outgoing outgoing;
    outgoing.item = &item;
    outgoing.verify = true;
    sender->Send(outgoing, [&](const Outcome& told) {
      outcome = told;
      ended.Notify();
    });
    ended.WaitForNotification();
    if (outcome.code != absl::StatusCode::kOk) {
      return absl::Status(outcome.code, absl::StrCat(item.entry.ToString(), ": ", outcome.message));
    }
    if (outcome.verdict == Verdict::kWrong) return absl::DataLossError(outcome.message);
  }
  return sender;
}

HttpSender::HttpSender(const Workload& workload, std::vector<Expectation> expectations,
                       const HttpSenderOptions& options, const Clock& clock)
    : expectations_(std::move(expectations)),
      options_(options),
      clock_(clock),
      backlog_(static_cast<std::size_t>(options.connections)) {
  const std::string token =
      options.token.empty() ? "" : absl::StrCat("Authorization: Bearer ", options.token, "\r\n");
  for (const Item& item : workload.items()) {
    texts_.push_back(HttpRequestText(item, options.version, options.address, token));
  }
}

HttpSender::~HttpSender() {
  if (threads_ != nullptr) threads_->Stop();
}

absl::Status HttpSender::Connect() {
  const absl::StatusOr<client::HttpUrl> url = client::ParseHttpUrl(options_.address);
  if (!url.ok()) return url.status();
  threads_ = std::make_unique<Threads>(options_.connections);
  error_code error;
  const Endpoints endpoints =
      asio::ip::tcp::resolver((*threads_)[0]).resolve(url->host, url->port, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(options_.address, ": ", error.message()));
  }
  MutexLock lock(mutex_);
  for (int i = 0; i < options_.connections; ++i) {
    asio::io_context& io = (*threads_)[static_cast<std::size_t>(i)];
    connections_.push_back(std::make_unique<Connection>(*this, io, endpoints));
    free_.push_back(connections_.back().get());
  }
  return absl::OkStatus();
}

void HttpSender::Send(const Outgoing& request, Done done) {
  Backlog::Entry entry =
      Backlog::Entry::Of(request, options_.timeout, clock_.Now(), std::move(done));
  if (backlog_.Enter(entry)) Start(std::move(entry));
}

void HttpSender::Start(Backlog::Entry entry) {
  Connection* connection = nullptr;
  {
    MutexLock lock(mutex_);
    connection = free_.back();
    free_.pop_back();
  }
  connection->Run(std::move(entry));
}

void HttpSender::End(Connection& connection, const Outcome& outcome, Done done) {
  {
    MutexLock lock(mutex_);
    free_.push_back(&connection);
  }
  // The last access to this object.
  backlog_.End(outcome, std::move(done), [this](Backlog::Entry next) { Start(std::move(next)); });
}

}  // namespace normd::load
