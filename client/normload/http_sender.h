// Sends the load run's requests over HTTP/1.1.

#ifndef NORMD_CLIENT_NORMLOAD_HTTP_SENDER_H_
#define NORMD_CLIENT_NORMLOAD_HTTP_SENDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/load/backlog.h"
#include "client/load/sender.h"
#include "client/normload/expectation.h"

namespace normd::load {

struct HttpSenderOptions {
  std::string address;  // HOST:PORT
  std::string token;    // Empty: none is sent.
  int connections = 1;
  std::int64_t version = 0;
  Duration timeout = Duration::max();
};

// Thread-safe. An entry of the mix is one call with binary tensors, which are sent from where they
// lie. A connection is kept and has one call at a time; calls beyond the connections wait in a
// backlog. A call whose connection ends fails, and the next opens a new one: nothing is sent twice.
// Verifies on the thread that receives, after the time is taken.
class HttpSender final : public Sender {
 public:
  // Sends one request of each item and waits for its response, so that a wrong address gives one
  // clear error, which is that call's. `expectations`: one per item, or empty. `workload` and
  // `clock` outlive the sender; the sender outlives its calls.
  static absl::StatusOr<std::unique_ptr<HttpSender>> Create(const Workload& workload,
                                                            std::vector<Expectation> expectations,
                                                            const HttpSenderOptions& options,
                                                            const Clock& clock);
  ~HttpSender() override;

  void Send(const Outgoing& request, Done done) override;

 private:
  class Connection;
  class Threads;

  HttpSender(const Workload& workload, std::vector<Expectation> expectations,
             const HttpSenderOptions& options, const Clock& clock);

  // Makes the connections, which open with their first calls.
  absl::Status Connect();
  // Gives the call, which the backlog admits, to a free connection.
  void Start(Backlog::Entry entry);
  // Frees the connection, starts the calls that follow, and runs `done`.
  void End(Connection& connection, const Outcome& outcome, Done done);

  const std::vector<Expectation> expectations_;
  const HttpSenderOptions options_;
  const Clock& clock_;
  std::vector<std::string> texts_;  // By item: what comes before its tensors.
  Backlog backlog_;
  std::unique_ptr<Threads> threads_;
  std::vector<std::unique_ptr<Connection>> connections_;
  Mutex mutex_;
  std::vector<Connection*> free_
      ABSL_GUARDED_BY(mutex_);  // At least as many as the backlog admits.
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_HTTP_SENDER_H_
