// What a unary request of either protocol goes through before it reaches the queue: its decoder and
// every check of the accept path, without what surrounds a call. request_fuzzer plays whole calls,
// far fewer of them. The input: a byte that says which message it is and how it is cut; the
// message.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "google/protobuf/stubs/logging.h"
#include "server/accept/accept.h"
#include "tests/fuzz/expect.h"
#include "tests/server/rpc/script_models.h"
#include "tests/support/fake_clock.h"

namespace normd::testing {
namespace {

constexpr std::size_t kMaxMessageBytes = 1000;

// One for all inputs, which leave nothing in it.
struct Fixture {
  static Fixture& Get() {
    static auto* const fixture = new Fixture;
    return *fixture;
  }

  FakeClock clock;
  Admission admission{{}, ScriptModels::Get().metrics()};
  BatchQueue queue{{}, clock};
  AcceptEnvironment accept{{.max_request_bytes = ScriptModels::kMaxRequestBytes, .stream = {}},
                           ScriptModels::Get().registry(),
                           admission,
                           queue,
                           ScriptModels::Get().metrics(),
                           clock};
  std::shared_ptr<Caller> caller = accept.callers.Find("ipv4:192.0.2.1:4711");
};

absl::Status Perform(Fixture& fixture, CallContext& call, FuzzedProtocol protocol,
                     absl::Span<const ConstBytes> views) {
  const MessageCodec& codec = CodecOf(protocol);
  const absl::StatusOr<RequestDescription> description = codec.Decode(views);
  if (!description.ok()) {
    codec.IdOf(views);  // The refusal repeats it.
    return description.status();
  }
  AcceptedRequest accepted;
  absl::Status status = AcceptRequest(fixture.accept, call, *description, accepted);
  Expect(status.ok() == (fixture.admission.inflight_requests() == 1),
         "who is accepted, and nobody else, has a part of the budgets");
  if (status.ok()) CheckAccepted(accepted, *description);
  return status;
}

void Try(FuzzedProtocol protocol, absl::string_view message, std::size_t step) {
  Fixture& fixture = Fixture::Get();
  {
    CallArrival arrival;
    arrival.at = fixture.clock.Now();
    arrival.caller = fixture.caller;
    CallContext call(fixture.accept, std::move(arrival));
    const CutMessage cut(message, step);
    const absl::Status told = call.End(Perform(fixture, call, protocol, cut.views()));
    if (!told.ok()) ExpectMessage(told.message(), kMaxMessageBytes);
  }
  Expect(fixture.admission.inflight_bytes() == 0 && fixture.admission.inflight_requests() == 0,
         "an ended call holds nothing of the budgets");
  Expect(fixture.accept.active.count() == 0, "an ended call is not counted");
}

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Protobuf logs each text that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  normd::testing::Script script(data, size);
  const int first = script.Byte();
  normd::testing::Try(static_cast<normd::testing::FuzzedProtocol>(first % 3), script.Rest(),
                      first / 3 % 2 == 0 ? 1 << 20 : static_cast<std::size_t>(first / 6 + 1));
  return 0;
}
