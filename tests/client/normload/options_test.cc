#include "client/normload/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/temp_repository.h"

namespace normd::load {
namespace {

using ::testing::HasSubstr;

std::string Error(const std::vector<std::string>& arguments) {
  return std::string(ParseOptions(arguments).status().message());
}

TEST(OptionsTest, DefaultsToAClosedLoopOfTenSeconds) {
  const auto o = ParseOptions({"--model=m"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_FALSE(o->open_loop());
  EXPECT_EQ(o->concurrency, 16);
  EXPECT_EQ(o->connections, 16);
  EXPECT_EQ(o->duration, absl::Seconds(10));
  ASSERT_EQ(o->mix.size(), 1u);
  EXPECT_EQ(o->mix[0].ToString(), "m::float32");
}

TEST(OptionsTest, MetricsAreAskedForAsTheCallsAreMade) {
  const test::TempFolder folder;
  test::WriteFile(folder.File("token"), "secret\n");
  const std::string token = "--token_file=" + folder.File("token");
  for (const char* url : {"https://192.0.2.1/metrics", "http://127.0.0.1:8002/metrics",
                          "localhost:8002", "http://[::1]:8002/metrics"}) {
    const auto o =
        ParseOptions({"--model=m", std::string("--metrics=") + url, token, "--tls_ca=c"});
    ASSERT_TRUE(o.ok()) << url << ": " << o.status();
    EXPECT_EQ(o->metrics_security.token, "secret") << url;
    EXPECT_EQ(o->metrics_security.tls.ca_file, "c") << url;
    EXPECT_EQ(o->metrics_url->tls, url[4] == 's') << url;
  }
  for (const char* url : {"http://192.0.2.1/metrics", "normd.test:8002", "http://[2001:db8::1]/"}) {
    const std::string error = Error({"--model=m", std::string("--metrics=") + url, token});
    EXPECT_THAT(error, HasSubstr("wanted https or a server on this machine")) << url;
    EXPECT_EQ(error.find("secret"), std::string::npos);
    EXPECT_TRUE(ParseOptions({"--model=m", std::string("--metrics=") + url}).ok()) << url;
  }
}

TEST(OptionsTest, ConnectionsFollowTheCallers) {
  EXPECT_EQ(ParseOptions({"--model=m", "--concurrency=3"})->connections, 3);
  EXPECT_EQ(ParseOptions({"--model=m", "--concurrency=300"})->connections, 16);
  EXPECT_EQ(ParseOptions({"--model=m", "--concurrency=1", "--rate=5"})->connections, 16);
  EXPECT_EQ(ParseOptions({"--model=m", "--connections=40"})->connections, 40);
}

TEST(OptionsTest, RequestsLiftTheDefaultDuration) {
  EXPECT_EQ(ParseOptions({"--model=m", "--requests=5"})->duration, absl::InfiniteDuration());
  EXPECT_EQ(ParseOptions({"--model=m", "--requests=5", "--duration=2s"})->duration,
            absl::Seconds(2));
}

TEST(OptionsTest, TakesAMix) {
  const auto o = ParseOptions({"--mix=a:1x2:f16:3,b:4x5"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_EQ(o->mix.size(), 2u);
}

TEST(OptionsTest, AProfileEndsByItself) {
  const auto o = ParseOptions({"--model=m", "--profile=10@2s,10..50@3s"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_TRUE(o->open_loop());
  EXPECT_EQ(o->duration, absl::InfiniteDuration());
  EXPECT_EQ(o->profile->segments().size(), 2u);
}

TEST(OptionsTest, ATraceIsSentAsItIs) {
  const test::TempFolder folder;
  test::WriteFile(folder.File("trace"), "0\n0.5\n");
  const auto o = ParseOptions({"--model=m", "--arrivals_file=" + folder.File("trace")});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_TRUE(o->open_loop());
  EXPECT_EQ(o->trace.size(), 2u);
  EXPECT_EQ(o->warmup, absl::ZeroDuration());
  EXPECT_EQ(o->duration, absl::InfiniteDuration());
  EXPECT_THAT(Error({"--model=m", "--arrivals_file=/no/such/file"}),
              HasSubstr("--arrivals_file: /no/such/file: cannot read it"));
  EXPECT_THAT(Error({"--model=m", "--arrivals_file=/"}),
              HasSubstr("--arrivals_file: /: cannot read it"));
  test::WriteFile(folder.File("wrong"), "1\n0\n");
  EXPECT_THAT(Error({"--model=m", "--arrivals_file=" + folder.File("wrong")}),
              HasSubstr("wrong: line 2: 0 is before"));
}

TEST(OptionsTest, SweepsAndSearchesSetTheLoad) {
  const auto callers = ParseOptions({"--model=m", "--sweep=concurrency=1..32*2"});
  ASSERT_TRUE(callers.ok()) << callers.status();
  EXPECT_FALSE(callers->open_loop());
  EXPECT_EQ(callers->concurrency, 32);
  EXPECT_EQ(callers->connections, 16);
  const auto rates = ParseOptions({"--model=m", "--sweep=rate=10,20"});
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_TRUE(rates->open_loop());
  const auto search = ParseOptions({"--model=m", "--find-max", "--slo", "p99=5ms"});
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_TRUE(search->open_loop());
  EXPECT_EQ(search->duration, absl::Seconds(5));
  EXPECT_THAT(Error({"--model=m", "--find_max"}), HasSubstr("wanted --slo too"));
  EXPECT_THAT(Error({"--model=m", "--sweep=rate=1", "--rate=5"}), HasSubstr("--sweep: it sets"));
  EXPECT_THAT(Error({"--model=m", "--find_max", "--slo=p99=1s", "--profile=1@1s"}),
              HasSubstr("--find_max: it sets"));
  EXPECT_THAT(Error({"--model=m", "--sweep=rate"}), HasSubstr("--sweep: \"rate\""));
}

TEST(OptionsTest, SeveralServersAreBalancedAndTriedAgain) {
  const auto one = ParseOptions({"--model=m", "--server=127.0.0.1:1"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_FALSE(one->fleet.has_value());
  const auto several = ParseOptions({"--model=m", "--server=127.0.0.1:1,127.0.0.1:2"});
  ASSERT_TRUE(several.ok()) << several.status();
  ASSERT_TRUE(several->fleet.has_value());
  EXPECT_EQ(several->fleet->balance, client::BalancePolicy::kRoundRobin);
  EXPECT_EQ(several->fleet->retry.max_attempts, 5);
  EXPECT_EQ(several->fleet->hedge_after, Duration{0});
  const auto name =
      ParseOptions({"--model=m", "--server=dns:///fleet.example:1", "--max_attempts=1",
                    "--balance=least_outstanding", "--resolve_interval=inf"});
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_EQ(name->fleet->balance, client::BalancePolicy::kLeastOutstanding);
  EXPECT_EQ(name->fleet->retry.max_attempts, 1);
}

TEST(OptionsTest, NamesWhatIsWrongWithSeveralServers) {
  const std::string several = "--server=127.0.0.1:1,127.0.0.1:2";
  EXPECT_THAT(Error({"--model=m", several, "--balance=random"}),
              HasSubstr("--balance: \"random\", wanted round_robin or least_outstanding"));
  EXPECT_THAT(Error({"--model=m", several, "--max_attempts=101"}),
              HasSubstr("--max_attempts: 101, wanted from 0 to 100"));
  EXPECT_THAT(Error({"--model=m", several, "--retry_tokens=-1"}),
              HasSubstr("--retry_tokens: -1, wanted at least 0"));
  EXPECT_THAT(Error({"--model=m", several, "--hedge_after=-1s"}),
              HasSubstr("--hedge_after: -1s, wanted from 0 to 1h"));
  EXPECT_THAT(Error({"--model=m", several, "--resolve_interval=10ms"}),
              HasSubstr("--resolve_interval: 10ms, wanted at least 1s"));
  EXPECT_THAT(Error({"--model=m", "--server=127.0.0.1:1,x"}), HasSubstr("server: \"x\""));
  EXPECT_THAT(Error({"--model=m", "--max_attempts=3"}),
              HasSubstr("--max_attempts: 3, wanted several servers"));
}

TEST(OptionsTest, MergeTakesReports) {
  const auto o = ParseMergeOptions({"a.json", "--csv=c", "b.json", "--json", "d"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_EQ(o->reports, (std::vector<std::string>{"a.json", "b.json"}));
  EXPECT_EQ(o->files.json, "d");
  EXPECT_EQ(o->files.csv, "c");
  EXPECT_FALSE(ParseMergeOptions({}).ok());
}

TEST(OptionsTest, NoTwoReportsGoToOneFile) {
  const std::vector<std::string> flags = {"--json", "--csv", "--html"};
  for (const std::string& one : flags) {
    for (const std::string& other : flags) {
      if (one >= other) continue;  // Found in the order of the help, whatever that of the flags.
      const std::vector<std::string> files = {one + "=no/r", other + "=./no/../no/r"};
      const std::string loaded = Error({"--model=m", files[0], files[1]});
      EXPECT_THAT(loaded, HasSubstr("no/r, which is also the file of --"));
      EXPECT_EQ(ParseMergeOptions({"a.json", files[1], files[0]}).status().message(), loaded);
      EXPECT_EQ(Error({"--model=m", one + "=/dev/null", other + "=/dev/null"}), "");
    }
  }
}

TEST(OptionsTest, NamesWhatIsWrong) {
  EXPECT_THAT(Error({}), HasSubstr("--model and --mix"));
  EXPECT_THAT(Error({"--model=m", "--mix=a:1"}), HasSubstr("--model and --mix"));
  EXPECT_THAT(Error({"--model=m", "extra"}), HasSubstr("extra"));
  EXPECT_THAT(Error({"--model=m", "--shape=1xx"}), HasSubstr("shape"));
  EXPECT_THAT(Error({"--model=m", "--dtype=int8"}), HasSubstr("dtype"));
  EXPECT_THAT(Error({"--mix=a:x"}), HasSubstr("mix"));
  EXPECT_THAT(Error({"--model=m", "--concurrency=0"}),
              HasSubstr("--concurrency: 0, wanted from 1"));
  EXPECT_THAT(Error({"--model=m", "--rate=-1"}), HasSubstr("--rate"));
  EXPECT_THAT(Error({"--model=m", "--rate=nan"}), HasSubstr("--rate"));
  EXPECT_THAT(Error({"--model=m", "--arrival=often"}), HasSubstr("--arrival: \"often\""));
  EXPECT_THAT(Error({"--model=m", "--connections=-1"}), HasSubstr("--connections"));
  EXPECT_THAT(Error({"--model=m", "--max_inflight=0"}), HasSubstr("--max_inflight"));
  EXPECT_THAT(Error({"--model=m", "--timeout=0s"}), HasSubstr("--timeout"));
  EXPECT_THAT(Error({"--model=m", "--duration=0s"}), HasSubstr("--duration"));
  EXPECT_THAT(Error({"--model=m", "--warmup=-1s"}), HasSubstr("--warmup"));
  EXPECT_THAT(Error({"--model=m", "--warmup=inf"}), HasSubstr("--warmup"));
  EXPECT_THAT(Error({"--model=m", "--requests=-1"}), HasSubstr("--requests"));
  EXPECT_THAT(Error({"--model=m", "--give_up_after=-1"}), HasSubstr("--give_up_after"));
  EXPECT_THAT(Error({"--model=m", "--verify_every=0"}), HasSubstr("--verify_every"));
  EXPECT_THAT(Error({"--model=m", "--max_error_share=1.5"}), HasSubstr("--max_error_share"));
  EXPECT_THAT(Error({"--model=m", "--rate=5", "--profile=1@1s"}), HasSubstr("at most one"));
  EXPECT_THAT(Error({"--model=m", "--profile=1"}), HasSubstr("--profile: "));
  EXPECT_THAT(Error({"--model=m", "--cancel_share=2"}), HasSubstr("--cancel_share"));
  EXPECT_THAT(Error({"--model=m", "--cancel_after=-1s"}), HasSubstr("--cancel_after"));
  EXPECT_THAT(Error({"--model=m", "--stable_p99=-1"}), HasSubstr("--stable_p99"));
  EXPECT_THAT(Error({"--model=m", "--stable_window=0s"}), HasSubstr("--stable_window"));
  EXPECT_THAT(Error({"--model=m", "--stop_error_share=2"}), HasSubstr("--stop_error_share"));
  EXPECT_THAT(Error({"--model=m", "--slo=fast"}), HasSubstr("--slo: \"fast\""));
  EXPECT_THAT(Error({"--model=m", "--verify"}), HasSubstr("--model_repository"));
  EXPECT_EQ(Error({"--model=m", "--protocol=rest"}),
            "--protocol: \"rest\", wanted normd, oip or http");
  EXPECT_THAT(Error({"--mix=a:1x2,b:1x2:stream", "--protocol=oip"}),
              HasSubstr("--protocol: oip, wanted normd for b:1x2:float32"));
}

TEST(OptionsTest, HttpHasMessagesOverTcpAloneAndAConnectionForEachCaller) {
  const auto error = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--model=m", "--protocol=http"});
    return Error(flags);
  };
  const auto parsed = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--model=m", "--protocol=http"});
    return *ParseOptions(flags);
  };
  EXPECT_EQ(parsed({}).http, "127.0.0.1:8000");
  EXPECT_EQ(parsed({"--concurrency=40"}).connections, 40);
  EXPECT_EQ(parsed({"--rate=5"}).connections, 64);
  EXPECT_EQ(parsed({"--connections=3"}).connections, 3);
  EXPECT_EQ(error({"--tls"}),
            "--protocol: http, wanted normd or oip with TLS, which normload has over gRPC alone");
  EXPECT_THAT(error({"--stream"}), HasSubstr("--protocol: http, wanted normd for m"));
  EXPECT_EQ(error({"--server=a:1,b:1"}),
            "--protocol: http, wanted normd or oip for several servers");
  EXPECT_EQ(error({"--plane=cuda"}), "--protocol: http, wanted normd or oip with --plane=cuda");
  for (const char* wrong : {"", "https://a", "http://a/b", "a:0"}) {
    EXPECT_THAT(error({std::string("--http=") + wrong}), HasSubstr("--http: ")) << wrong;
  }
  EXPECT_THAT(error({"--http=a.example:80", "--token_file=t"}),
              HasSubstr("--token_file is not sent in the clear"));
}

TEST(OptionsTest, ThePlaneIsWhatTheAddressesSayOrTheFlag) {
  const auto plane = [](std::vector<std::string> flags) {
    flags.push_back("--model=m");
    return ParseOptions(flags)->plane;
  };
  const std::string regions = "--shared_memory=unix:///r";
  EXPECT_EQ(plane({}), Plane::kGrpc);
  EXPECT_EQ(plane({"--plane=grpc"}), Plane::kGrpc);
  EXPECT_EQ(plane({"--server=unix:///s"}), Plane::kUnixSocket);
  EXPECT_EQ(plane({"--server=unix:///s", "--plane=uds"}), Plane::kUnixSocket);
  EXPECT_EQ(plane({regions}), Plane::kShared);
  EXPECT_EQ(plane({"--server=unix:///s", regions, "--plane=shm"}), Plane::kShared);
  EXPECT_EQ(plane({"--plane=cuda"}), Plane::kDevice);
  EXPECT_EQ(plane({"--plane=cuda", "--verify", "--model_repository=m"}), Plane::kDevice);
  for (const Plane one : {Plane::kGrpc, Plane::kUnixSocket, Plane::kShared, Plane::kDevice}) {
    EXPECT_EQ(PlaneOf(Name(one)), one);
  }
}

TEST(OptionsTest, APlaneThatCannotBeIsRefusedWithWhatIsMissing) {
  const auto error = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "--model=m");
    return Error(flags);
  };
  const std::string regions = "--shared_memory=unix:///r";
  EXPECT_THAT(error({"--plane=rdma"}), HasSubstr("--plane: rdma, wanted grpc, uds, shm or cuda"));
  EXPECT_THAT(error({"--plane=cuda", regions}),
              HasSubstr("--shared_memory: unix:///r, wanted nothing with --plane=cuda"));
  EXPECT_THAT(error({"--plane=cuda", "--cuda_device=-1"}),
              HasSubstr("--cuda_device: -1, wanted at least 0"));
  EXPECT_THAT(error({"--plane=cuda", "--stream"}),
              HasSubstr("--plane: cuda, wanted grpc or uds for m"));
  EXPECT_THAT(error({"--plane=uds"}),
              HasSubstr("wanted --server=unix:///path, not 127.0.0.1:8001"));
  EXPECT_THAT(error({"--plane=grpc", "--server=unix:///s"}), HasSubstr("wanted uds for unix:///s"));
  EXPECT_THAT(error({"--plane=shm"}), HasSubstr("--shared_memory: empty, wanted the server's"));
  EXPECT_THAT(error({"--plane=grpc", regions}), HasSubstr("wanted nothing with --plane=grpc"));
  EXPECT_THAT(error({regions, "--stream"}), HasSubstr("--plane: shm, wanted grpc or uds for m"));
  EXPECT_THAT(error({regions, "--server=a:1,b:1"}), HasSubstr("one server"));
  EXPECT_THAT(error({regions, "--cancel_share=0.1"}), HasSubstr("--cancel_share: 0.1, wanted 0"));
  EXPECT_THAT(error({regions, "--max_sending=0"}), HasSubstr("--max_sending: 0, wanted 1 or more"));
}

}  // namespace
}  // namespace normd::load
