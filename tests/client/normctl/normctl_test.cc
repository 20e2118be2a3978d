// Every command but `normalize`.

#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <ostream>
#include <set>
#include <sstream>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/normctl/print.h"
#include "client/normctl/progress_bar.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/identity/tokens.h"
#include "tests/client/normctl/normctl_fixture.h"
#include "tests/support/fake_clock.h"

namespace normd::client {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

TEST_F(NormctlTest, TellsItsVersion) {
  const Ran ran = Invoke({"--version"});
  EXPECT_EQ(ran.code, kExitOk);
  EXPECT_THAT(ran.out,
              ::testing::MatchesRegex("normctl [0-9]+\\.[0-9]+\\.[0-9]+( \\([-.0-9a-z]+\\))?\n"));
}

TEST_F(NormctlTest, AMisspeltCommandSuggestsTheNearest) {
  for (const auto& [wrong, nearest] :
       std::vector<std::pair<std::string, std::string>>{{"modles", "models"},
                                                        {"healt", "health"},
                                                        {"normalise", "normalize"},
                                                        {"compleation", "completion"}}) {
    const Ran ran = Invoke({wrong});
    EXPECT_EQ(ran.code, kExitUsage);
    EXPECT_THAT(ran.err, HasSubstr("unknown command " + wrong + "; did you mean " + nearest + "?"));
  }
  EXPECT_THAT(Invoke({"xyzzy"}).err, HasSubstr("unknown command xyzzy\n"));
}

// What bash offers behind `words`, of which the last is unfinished.
std::string Completed(const std::string& script, const std::string& words, int place) {
  const std::string command =
      absl::StrCat("bash -c 'source ", script, "; COMP_WORDS=(", words, "); COMP_CWORD=", place,
                   "; _normctl normctl \"${COMP_WORDS[COMP_CWORD]}\"; echo \"${COMPREPLY[*]}\"'");
  FILE* const bash = popen(command.c_str(), "r");
  std::string text;
  for (int c = getc(bash); c != EOF; c = getc(bash)) text += static_cast<char>(c);
  EXPECT_EQ(pclose(bash), 0) << command;
  return text;
}

TEST_F(NormctlTest, BashCompletesCommandsAndFlags) {
  const Ran ran = Invoke({"completion", "bash"});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  const std::string script = folder_.File("completion");
  test::WriteFile(script, ran.out);
  EXPECT_EQ(Completed(script, "normctl heal", 1), "health\n");
  EXPECT_EQ(Completed(script, "normctl comp", 1), "completion\n");
  EXPECT_EQ(Completed(script, "normctl health --ser", 2), "--service= --server=\n");
  EXPECT_EQ(Completed(script, "normctl health --js", 2), "--json\n");
  EXPECT_EQ(Completed(script, "normctl completion b", 2), "bash\n");
  EXPECT_EQ(Completed(script, "normctl health file", 2), "\n");
  EXPECT_EQ(Invoke({"completion"}).code, kExitUsage);
  EXPECT_EQ(Invoke({"completion", "fish"}).code, kExitUsage);
}

TEST_F(NormctlTest, HealthIsTheExitCode) {
  Ran ran = Call({"health"});
  EXPECT_EQ(ran.code, kExitOk);
  EXPECT_EQ(ran.out, "SERVING\n");
  server_.SetHealth("", false);
  ran = Call({"health"});
  EXPECT_EQ(ran.code, kExitFailed);
  EXPECT_EQ(ran.out, "NOT_SERVING\n");
  EXPECT_THAT(ran.err, StartsWith("normctl: UNAVAILABLE: "));
}

TEST_F(NormctlTest, HealthOfAModelAndAsJson) {
  server_.SetHealth("normd.v1.NormService/group", true);
  EXPECT_EQ(Call({"health", "--model", "group"}).code, kExitOk);
  EXPECT_EQ(Call({"health", "--model", "other"}).code, kExitFailed);
  const Ran ran = Call({"health", "--service=normd.v1.NormService/group", "--json"});
  EXPECT_EQ(Json::parse(ran.out),
            (Json{{"service", "normd.v1.NormService/group"}, {"status", "SERVING"}}));
}

TEST_F(NormctlTest, HealthWatchPrintsEachStateAtOnceUntilTheStreamEnds) {
  // Calls the action at each flush.
  class FlushBuffer final : public std::stringbuf {
   public:
    explicit FlushBuffer(std::function<void()> action) : action_(std::move(action)) {}
    int sync() override {
      action_();
      return 0;
    }

   private:
    const std::function<void()> action_;
  };
  int flushes = 0;
  FlushBuffer buffer([&] {
    if (++flushes == 1) server_.SetHealth("", false);
    if (flushes == 2) server_.Stop();
  });
  std::ostream out(&buffer);
  std::ostringstream err;
  EXPECT_EQ(RunNormctl({"health", "--watch", "--server=" + server_.target()}, out, err, false),
            kExitFailed);
  EXPECT_THAT(buffer.str(), StartsWith("SERVING\nNOT_SERVING\n"));
  EXPECT_THAT(err.str(), StartsWith("normctl: "));
}

TEST_F(NormctlTest, TellsOfTheServer) {
  const Ran ran = Call({"info"});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("fake:0"), HasSubstr("1048576 bytes (1.0 MiB)")));
  EXPECT_EQ(Json::parse(Call({"info", "--json"}).out)["lanes"], Json({"fake:0"}));
}

TEST(PrintModelsTest, AModelThatServesOnTellsWhyItWasNotReloaded) {
  v1::ListModelsResponse models;
  v1::ModelInfo& model = *models.add_models();
  model.set_name("ln");
  model.set_version(1);
  model.set_state(v1::ModelInfo::READY);
  model.mutable_config()->mutable_layer_norm()->add_normalized_shape(5);
  std::ostringstream out;
  PrintModels(models, out);
  EXPECT_THAT(out.str(), HasSubstr("READY   layer_norm { normalized_shape: [5] }\n"));
  model.set_error("weight: shape [5], wanted [6]");
  PrintModels(models, out);
  EXPECT_THAT(out.str(), HasSubstr("READY   layer_norm { normalized_shape: [5] }; not reloaded: "
                                   "weight: shape [5], wanted [6]\n"));
}

TEST_F(NormctlTest, ListsAndDescribesModels) {
  Ran ran = Call({"models"});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("group_norm { channels: 8 groups: 2 } + SILU"));
  EXPECT_EQ(Json::parse(Call({"models", "--json"}).out)["models"][0]["name"], "group");
  ran = Call({"model", "group"});
  EXPECT_THAT(ran.out, AllOf(HasSubstr("state       READY"), HasSubstr("weight FLOAT32 [8]"),
                             Not(HasSubstr("input"))));
  EXPECT_THAT(
      ran.out,
      HasSubstr("served as   group in normd.v1.NormService\n"
                "            group, version \"1\", FP32 FP64 FP16 BF16 in "
                "inference.GRPCInferenceService\n"
                "            normd.v1.NormService/group in grpc.health.v1.Health\n"
                "            inference.GRPCInferenceService/group in grpc.health.v1.Health\n"
                "            /v2/models/group/ready on the metrics port\n"));
  EXPECT_EQ(Json::parse(Call({"model", "group", "--json"}).out)["state"], "READY");
  server_.TellTensors("group", {{"x", {-1, 8, -2}}}, {{"y", {-1, 8, -2}}});
  EXPECT_THAT(Call({"model", "group"}).out,
              HasSubstr("input       x [?, 8, *]\noutput      y [?, 8, *]\n"));
}

// No switch over operations: any of them, and with any fields, is printed as it would be written.
TEST_F(NormctlTest, DescribesEveryOperationAsItStandsInAConfig) {
  const google::protobuf::OneofDescriptor* const operations =
      v1::ModelConfig::descriptor()->FindOneofByName("operation");
  for (int i = 0; i < operations->field_count(); ++i) {
    v1::ModelConfig config;
    config.GetReflection()->MutableMessage(&config, operations->field(i));
    EXPECT_EQ(DescribeOperation(config), operations->field(i)->name() + " { }");
  }
  const auto describe = [](const char* text) { return DescribeOperation(test::ConfigOf(text)); };
  EXPECT_EQ(describe("layout: CHANNELS_LAST rms_norm { normalized_shape: [2, 3] eps: 1e-6 }"),
            "rms_norm { normalized_shape: [2, 3] eps: 1e-06 }, CHANNELS_LAST");
  EXPECT_EQ(describe("linear_norm { in_features: 4 epilogue { add: true } } activation: SILU"),
            "linear_norm { in_features: 4 epilogue { add: true } } + SILU");
  EXPECT_EQ(describe(""), "an operation that this client does not know");
}

TEST_F(NormctlTest, LoadsAndUnloads) {
  EXPECT_EQ(Call({"load", "group", "--version=1"}).code, kExitOk);
  const Ran ran = Call({"unload", "group"});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_EQ(ran.out, "unloaded group version 1\n");
  EXPECT_THAT(Call({"model", "group"}).err, HasSubstr("NOT_FOUND: model: no \"group\""));
}

TEST_F(NormctlTest, UnreachableServerIsOneClearLine) {
  server_.Stop();
  const Ran ran = Call({"models"});
  EXPECT_EQ(ran.code, kExitFailed);
  EXPECT_THAT(ran.err, StartsWith("normctl: UNAVAILABLE: cannot reach " + server_.target()));
  EXPECT_THAT(ran.err, EndsWith("; does normd run, and listen there?\n"));
}

TEST_F(NormctlTest, WritesRandomTensors) {
  const std::string path = folder_.File("r.npy");
  const Ran ran = Invoke({"random", path, "--shape=3x4", "--dtype=bf16", "--seed=9"});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_EQ(ReadNpy(path)->dtype(), norm::DType::kBFloat16);
  EXPECT_EQ(Invoke({"random", path, "--shape=3xx"}).code, kExitUsage);
  EXPECT_EQ(Invoke({"random", path, "--dtype=int8"}).code, kExitUsage);
}

TEST(NormctlUsageTest, WrongCommandLinesAreUsageErrors) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"dance"},
      {"models", "extra"},
      {"model"},
      {"models", "--colour"},
      {"models", "--timeout=-1s"},
      {"models", "--timeout=soon"},
      {"models", "--server=nowhere"},
      {"health", "--service=a", "--model=b"},
      {"normalize", "x.npy"},
      {"normalize", "--model=m"},
      {"normalize", "x.npy", "--model=m", "--verify"},
  };
  for (const auto& arguments : wrong) {
    const Ran ran = Invoke(arguments);
    EXPECT_EQ(ran.code, kExitUsage) << ::testing::PrintToString(arguments);
    EXPECT_NE(ran.err, "");
    EXPECT_EQ(ran.out, "");
  }
}

TEST(NormctlUsageTest, HelpNamesEveryCommandAndItsFlags) {
  const Ran ran = Invoke({"--help"});
  EXPECT_EQ(ran.code, kExitOk);
  for (const char* command : {"health", "info", "models", "model", "load", "unload", "regions",
                              "unregister", "normalize", "random"}) {
    EXPECT_THAT(ran.out, HasSubstr(std::string("  ") + command + " "));
    const Ran own = Invoke({command, "--help"});
    EXPECT_EQ(own.code, kExitOk);
    EXPECT_THAT(own.out, HasSubstr("--server=HOST:PORT"));
  }
}

// Takes `room` bytes, and then no more.
class FullBuffer final : public std::streambuf {
 public:
  explicit FullBuffer(std::size_t room) : room_(room) {}

 private:
  int_type overflow(int_type character) override {
    if (room_ == 0) return traits_type::eof();
    --room_;
    return traits_type::not_eof(character);
  }

  std::size_t room_;
};

// Every command that prints, cut at the beginning, within, and at the last byte.
TEST_F(NormctlTest, OutputThatCannotBeWrittenIsAFailure) {
  const std::string server = "--server=" + server_.target();
  const std::string token = "--out=" + folder_.File("token");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--help"},
           {"--version"},
           {"completion", "bash"},
           {"models", "--help"},
           {"health", server},
           {"info", server},
           {"info", "--json", server},
           {"models", server},
           {"model", "group", server},
           {"normalize", folder_.File("x.npy"), "--model=group", server},
           {"normalize", folder_.File("x.npy"), "--model=group", "--json", server},
           {"token", "a", token, server},
           {"token", "a", token, "--json", server}}) {
    const Ran whole = Invoke(arguments);
    ASSERT_EQ(whole.code, kExitOk) << whole.err;
    // A call's times have any number of digits: only that much of its output is certain.
    const std::size_t bytes = arguments[0] == "normalize" ? 20 : whole.out.size();
    for (const std::size_t room : {std::size_t{0}, bytes / 2, bytes - 1}) {
      std::filesystem::remove(folder_.File("token"));
      FullBuffer full(room);
      std::ostream out(&full);
      std::ostringstream err;
      EXPECT_EQ(RunNormctl(arguments, out, err, false), kExitFailed) << arguments[0] << room;
      EXPECT_THAT(err.str(), HasSubstr("stdout: cannot be written")) << arguments[0];
      EXPECT_FALSE(std::filesystem::exists(folder_.File("token"))) << "whose digest is lost";
    }
    std::filesystem::remove(folder_.File("token"));
  }
}

// `normctl token`: the server takes the line, and the token with it.

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(NormctlTest, TokenMakesATokenThatTheServerTakesByItsLine) {
  std::set<std::string> tokens;
  for (int i = 0; i < 5; ++i) {
    const std::string path = folder_.File(absl::StrCat("t", i));
    const Ran ran = Invoke({"token", "team.a", "--out", path});
    ASSERT_EQ(ran.code, kExitOk) << ran.err;
    struct stat info {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U);
    std::string token = Contents(path);
    ASSERT_EQ(token.back(), '\n');
    token.pop_back();
    EXPECT_EQ(ran.out.find(token), std::string::npos) << "the token is printed nowhere";
    EXPECT_TRUE(tokens.insert(token).second);
    const std::string header = absl::StrCat("Bearer ", token);
    const auto bearer = BearerToken(header);
    ASSERT_TRUE(bearer.ok()) << token;
    const auto table = TokenTable::Parse(ran.out);
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_TRUE(table->Find(*bearer).has_value());
    EXPECT_EQ(table->names()[0], "team.a");
  }
}

TEST_F(NormctlTest, TokenOverwritesNoFileAndTakesNoWrongName) {
  const std::string path = folder_.File("token");
  ASSERT_EQ(Invoke({"token", "a", "--out", path}).code, kExitOk);
  const std::string before = Contents(path);
  const Ran again = Invoke({"token", "a", "--out", path});
  EXPECT_EQ(again.code, kExitFailed);
  EXPECT_THAT(again.err, HasSubstr("ALREADY_EXISTS"));
  EXPECT_EQ(Contents(path), before);
  for (const std::string& name : {std::string(), std::string("a b"), std::string("-a"),
                                  std::string("a\nb"), std::string(65, 'a')}) {
    EXPECT_NE(Invoke({"token", name, "--out", folder_.File("no")}).code, kExitOk) << name;
    EXPECT_EQ(Contents(folder_.File("no")), "");
  }
  EXPECT_EQ(Invoke({"token", "a"}).code, kExitUsage);
  EXPECT_EQ(Invoke({"token"}).code, kExitUsage);
}

TEST_F(NormctlTest, TokenAsJsonHasTheSameDigest) {
  const Ran ran = Invoke({"token", "a", "--json", "--out", folder_.File("token")});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  const Json json = Json::parse(ran.out);
  std::string token = Contents(folder_.File("token"));
  token.pop_back();
  const auto table =
      TokenTable::Parse(absl::StrCat("a sha256:", json["sha256"].get<std::string>()));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_TRUE(table->Find(token).has_value());
}

TEST(ProgressBarTest, ALineTellsPartRateAndRest) {
  EXPECT_EQ(ProgressLine(0, 8'000'000'000, Duration(0)),
            "[>                       ]   0%  0.00 of 8.00 GB  0.00 GB/s");
  EXPECT_EQ(ProgressLine(2'000'000'000, 8'000'000'000, std::chrono::seconds(4)),
            "[======>                 ]  25%  2.00 of 8.00 GB  0.50 GB/s  12.0 s left");
  EXPECT_EQ(ProgressLine(8'000'000'000, 8'000'000'000, std::chrono::seconds(8)),
            "[========================] 100%  8.00 of 8.00 GB  1.00 GB/s");
}

TEST(ProgressBarTest, DrawsTenTimesASecondAndClearsTheLine) {
  FakeClock clock;
  std::ostringstream out;
  {
    ProgressBar bar(&out, clock);
    bar.Update(1, 100);
    const std::string first = out.str();
    EXPECT_THAT(first, StartsWith("\r["));
    bar.Update(2, 100);
    EXPECT_EQ(out.str(), first);
    clock.Advance(std::chrono::milliseconds(100));
    bar.Update(3, 100);
    EXPECT_GT(out.str().size(), first.size());
  }
  EXPECT_EQ(out.str().back(), '\r');
  ProgressBar none(nullptr, clock);
  none.Update(1, 2);
}

}  // namespace
}  // namespace normd::client
