#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/normctl/commands.h"
#include "client/normctl/print.h"
#include "client/normctl/progress_bar.h"
#include "client/normctl/tensor_files.h"
#include "client/tensor/npy.h"
#include "client/tensor/random.h"
#include "google/protobuf/text_format.h"
#include "nlohmann/json.hpp"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_norm_service.h"
#include "tests/support/temp_repository.h"

namespace normd::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};

Ran Invoke(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = RunNormctl(arguments, out, err, false);
  return {code, out.str(), err.str()};
}

class NormctlTest : public ::testing::Test {
 protected:
  NormctlTest() {
    v1::ModelConfig config;
    config.mutable_group_norm()->set_channels(8);
    config.mutable_group_norm()->set_groups(2);
    config.set_activation(v1::SILU);
    server_.AddModel("group", config, test::AffineParameters(8));
    test::WriteModel(folder_.path(), "group", config, test::AffineParameters(8));
    const Tensor x =
        RandomTensor(norm::DType::kFloat32, Shape::Create({2, 8, 5}).value(), 0, 1, 1).value();
    EXPECT_TRUE(WriteNpy(folder_.File("x.npy"), x.view()).ok());
  }

  // With --server of the fake.
  Ran Call(std::vector<std::string> arguments) {
    arguments.push_back("--server=" + server_.target());
    return Invoke(arguments);
  }

  test::FakeNormService server_;
  const test::TempFolder folder_;
};

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

TEST_F(NormctlTest, ListsAndDescribesModels) {
  Ran ran = Call({"models"});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("group_norm { channels: 8 groups: 2 } + SILU"));
  EXPECT_EQ(Json::parse(Call({"models", "--json"}).out)["models"][0]["name"], "group");
  ran = Call({"model", "group"});
  EXPECT_THAT(ran.out, AllOf(HasSubstr("state       READY"), HasSubstr("weight FLOAT32 [8]"),
                             Not(HasSubstr("input"))));
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
  const auto describe = [](const char* text) {
    v1::ModelConfig config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
    return DescribeOperation(config);
  };
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

TEST_F(NormctlTest, NormalizesAFile) {
  const Ran ran = Call({"normalize", "--model", "group", folder_.File("x.npy"), "-o",
                        folder_.File("y.npy"), "--verify", "--model_repository=" + folder_.path()});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("verified against float64: ok"));
  const auto y = ReadNpy(folder_.File("y.npy"));
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_EQ(y->shape().ToString(), "[2, 8, 5]");
  EXPECT_NE(y->bytes(), ReadNpy(folder_.File("x.npy"))->bytes());
}

TEST_F(NormctlTest, NormalizeTakesAPriorityAndAQueueTimeout) {
  const std::string x = folder_.File("x.npy");
  EXPECT_EQ(Call({"normalize", "--model=group", x, "--priority=high", "--queue_timeout=5s"}).code,
            kExitOk);
  EXPECT_THAT(Call({"normalize", "--model=group", x, "--priority=urgent"}).err,
              HasSubstr("--priority: \"urgent\", wanted low, normal or high"));
  EXPECT_THAT(Call({"normalize", "--model=group", x, "--queue_timeout=-1s"}).err,
              HasSubstr("--queue_timeout: -1s, wanted 0 or more"));
}

TEST_F(NormctlTest, NormalizeReportsAsJson) {
  const Ran ran = Call({"normalize", folder_.File("x.npy"), "--model=group", "--json", "--verify",
                        "--model_repository", folder_.path()});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  const Json json = Json::parse(ran.out);
  EXPECT_EQ(json["shape"], Json({2, 8, 5}));
  EXPECT_EQ(json["batch"]["lane"], "fake:0");
  EXPECT_EQ(json["verify"]["elements"], 80);
  EXPECT_EQ(json["verify"]["ok"], true);
}

TEST_F(NormctlTest, NormalizeStreamsFromFileToFile) {
  const std::string y = folder_.File("y.npy");
  Ran ran = Call({"normalize", "--stream=always", "--model", "group", folder_.File("x.npy"), "-o",
                  y, "--verify", "--model_repository=" + folder_.path()});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("streamed in"), HasSubstr("as 1 pieces in 1 batches"),
                             HasSubstr("verified against float64: ok"), HasSubstr(y)));
  const auto streamed = ReadNpy(y);
  ASSERT_TRUE(streamed.ok()) << streamed.status();
  ASSERT_EQ(Call({"normalize", "--stream=never", "--model", "group", folder_.File("x.npy"), "-o",
                  folder_.File("z.npy")})
                .code,
            kExitOk);
  EXPECT_EQ(streamed->bytes(), ReadNpy(folder_.File("z.npy"))->bytes());
  // The output may be the input.
  EXPECT_EQ(Call({"normalize", "--stream=always", "--model=group", y, "-o", y}).code, kExitOk);
  ran = Call({"normalize", "--stream=always", "--model=group", y, "-o", y, "--json", "--verify",
              "--model_repository=" + folder_.path()});
  EXPECT_EQ(Json::parse(ran.out)["stream"]["pieces"], 1);
}

TEST_F(NormctlTest, NormalizeStreamsAFusedLayersTwoInputs) {
  v1::ModelConfig config;
  config.mutable_linear_norm()->set_in_features(6);
  config.mutable_linear_norm()->set_out_features(10);
  config.mutable_linear_norm()->set_bias(false);
  config.mutable_linear_norm()->mutable_epilogue()->set_multiply(true);
  const auto write = [&](const char* name, std::vector<std::int64_t> shape) {
    const Tensor tensor =
        RandomTensor(norm::DType::kFloat32, Shape::Create(shape).value(), -1, 1, 5).value();
    EXPECT_TRUE(WriteNpy(folder_.File(name), tensor.view()).ok());
  };
  const auto parameters = [] {
    std::map<std::string, Tensor> made;
    made.emplace(
        "linear.weight",
        RandomTensor(norm::DType::kFloat32, Shape::Create({10, 6}).value(), -1, 1, 2).value());
    return made;
  };
  server_.AddModel("fused", config, parameters());
  test::WriteModel(folder_.path(), "fused", config, parameters());
  write("x.npy", {7, 6});
  write("y.npy", {7, 10});
  write("short.npy", {6, 10});
  const std::string out = folder_.File("out.npy");
  const auto call = [&](const char* y) {
    return Call({"normalize", "--stream=always", "--model=fused", folder_.File("x.npy"),
                 "--y=" + folder_.File(y), "-o", out, "--verify",
                 "--model_repository=" + folder_.path()});
  };
  Ran ran = call("y.npy");
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("streamed in"), HasSubstr("verified against float64: ok")));
  EXPECT_EQ(ReadNpy(out)->shape(), Shape::Create({7, 10}).value());
  ran = call("short.npy");
  EXPECT_EQ(ran.code, kExitFailed);
  EXPECT_THAT(ran.err, HasSubstr("y: shape [6, 10], wanted the samples of x"));
}

TEST_F(NormctlTest, NormalizesWithAResidualBothWays) {
  v1::ModelConfig config;
  config.mutable_add_rms_norm()->add_normalized_shape(4);
  config.mutable_add_rms_norm()->add_normalized_shape(8);
  config.mutable_add_rms_norm()->set_affine(false);
  server_.AddModel("add", config);
  test::WriteModel(folder_.path(), "add", config, {});
  server_.TellSamples(7);
  for (const char* name : {"x.npy", "residual.npy"}) {
    const Tensor tensor =
        RandomTensor(norm::DType::kFloat32, Shape::Create({7, 4, 8}).value(), -1, 1, *name).value();
    EXPECT_TRUE(WriteNpy(folder_.File(name), tensor.view()).ok());
  }
  for (const std::string stream : {"never", "always"}) {
    const Ran ran = Call({"normalize", "--stream=" + stream, "--model=add",
                          "x=" + folder_.File("x.npy"), "residual=" + folder_.File("residual.npy"),
                          "-o", "y=" + folder_.File(stream + "_y.npy"), "-o",
                          "residual_out=" + folder_.File(stream + "_sum.npy"), "--verify",
                          "--model_repository=" + folder_.path()});
    EXPECT_EQ(ran.code, kExitOk) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("verified against float64: ok"));
  }
  for (const std::string output : {"_y.npy", "_sum.npy"}) {
    const auto whole = ReadNpy(folder_.File("never" + output));
    const auto streamed = ReadNpy(folder_.File("always" + output));
    ASSERT_TRUE(whole.ok() && streamed.ok()) << whole.status() << streamed.status();
    EXPECT_TRUE(whole->bytes() == streamed->bytes()) << output;
    EXPECT_EQ(whole->shape().ToString(), "[7, 4, 8]");
  }
}

// Gives the inputs back in the opposite order, each under its name and "_out".
std::vector<v1::Tensor> Turned(const v1::NormalizeRequest& request) {
  std::vector<v1::Tensor> outputs(request.inputs().rbegin(), request.inputs().rend());
  for (v1::Tensor& output : outputs) output.set_name(output.name() + "_out");
  return outputs;
}

TEST_F(NormctlTest, NormalizeTakesAndWritesAnyNumberOfNamedTensorsBothWays) {
  server_.AddModel("turn", Turned);
  const auto write = [&](const char* name, norm::DType dtype, std::vector<std::int64_t> shape) {
    const Tensor tensor = RandomTensor(dtype, Shape::Create(shape).value(), -1, 1, 5).value();
    EXPECT_TRUE(WriteNpy(folder_.File(name), tensor.view()).ok());
    return tensor;
  };
  const Tensor a = write("a.npy", norm::DType::kFloat32, {7, 6});
  const Tensor b = write("b.npy", norm::DType::kFloat64, {7, 3});
  const Tensor c = write("c.npy", norm::DType::kFloat16, {7, 11});
  for (const char* stream : {"--stream=never", "--stream=always"}) {
    const auto call = [&](const std::vector<std::string>& outputs) {
      std::vector<std::string> arguments = {"normalize",
                                            stream,
                                            "--model=turn",
                                            folder_.File("a.npy"),
                                            "b=" + folder_.File("b.npy"),
                                            "c=" + folder_.File("c.npy")};
      for (const std::string& output : outputs) arguments.push_back("-o=" + output);
      return Call(arguments);
    };
    const std::string x = folder_.File("x_out.npy");
    const std::string c_out = folder_.File("c_out.npy");
    Ran ran = call({"x_out=" + x, "c_out=" + c_out});
    EXPECT_EQ(ran.code, kExitOk) << ran.err;
    EXPECT_THAT(ran.out, AllOf(HasSubstr("and b_out: float64 [7, 3]"), HasSubstr(x)));
    EXPECT_TRUE(ReadNpy(x)->bytes() == a.bytes());
    EXPECT_EQ(ReadNpy(c_out)->dtype(), norm::DType::kFloat16);
    EXPECT_TRUE(ReadNpy(c_out)->bytes() == c.bytes());
    ran = call({x});
    EXPECT_EQ(ran.code, kExitFailed);
    EXPECT_THAT(ran.err, HasSubstr("wanted c_out=FILE, b_out=FILE, x_out=FILE"));
    ran = call({"q=" + x});
    EXPECT_THAT(ran.err, HasSubstr("-o: q=" + x + ", wanted"));
  }
  EXPECT_THAT(Call({"normalize", "--model=turn", folder_.File("a.npy"), folder_.File("b.npy")}).err,
              HasSubstr("b.npy: a second input without a name, wanted NAME=FILE"));
}

TEST(TensorPathTest, ANameIsALetterOrDigitOrUnderscoreBeforeTheFirstEquals) {
  const auto parse = [](const char* text) {
    const TensorPath path = ParseTensorPath(text);
    return path.name + "|" + path.path;
  };
  EXPECT_EQ(parse("x.npy"), "|x.npy");
  EXPECT_EQ(parse("x=x.npy"), "x|x.npy");
  EXPECT_EQ(parse("x=a=b.npy"), "x|a=b.npy");
  EXPECT_EQ(parse("./a=b.npy"), "|./a=b.npy");
  EXPECT_EQ(parse("=b.npy"), "|=b.npy");
  EXPECT_EQ(parse("mean_2="), "mean_2|");
}

TEST_F(NormctlTest, AStreamThatFailsLeavesNoFile) {
  server_.FailFrom(0, absl::InternalError("broken"));
  const std::string y = folder_.File("y.npy");
  EXPECT_EQ(
      Call({"normalize", "--stream=always", "--model=group", folder_.File("x.npy"), "-o", y}).code,
      kExitFailed);
  EXPECT_FALSE(ReadNpy(y).ok());
  EXPECT_FALSE(ReadNpy(y + ".part").ok());
  EXPECT_THAT(Call({"normalize", "x.npy", "--model=m", "--stream=maybe"}).err,
              HasSubstr("--stream: \"maybe\", wanted auto, always or never"));
}

TEST_F(NormctlTest, AWrongStreamFailsItsVerification) {
  server_.AnswerWronglyFrom(0);
  const Ran ran =
      Call({"normalize", "--stream=always", folder_.File("x.npy"), "--model=group", "-o",
            folder_.File("y.npy"), "--verify", "--model_repository=" + folder_.path()});
  EXPECT_EQ(ran.code, kExitFailed);
  EXPECT_THAT(ran.out, HasSubstr("FAILED"));
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

TEST_F(NormctlTest, VerifyFailsOnAWrongAnswer) {
  server_.AnswerWronglyFrom(0);
  const Ran ran = Call({"normalize", folder_.File("x.npy"), "--model=group", "--verify",
                        "--model_repository=" + folder_.path()});
  EXPECT_EQ(ran.code, kExitFailed);
  EXPECT_THAT(ran.out, HasSubstr("FAILED"));
  EXPECT_THAT(ran.err, HasSubstr("DATA_LOSS: verification failed"));
}

TEST_F(NormctlTest, FailuresOfACallWriteNoOutput) {
  const Ran ran =
      Call({"normalize", folder_.File("x.npy"), "--model=other", "-o", folder_.File("y.npy")});
  EXPECT_EQ(ran.code, kExitFailed);
  EXPECT_THAT(ran.err, HasSubstr("NOT_FOUND"));
  EXPECT_EQ(ReadNpy(folder_.File("y.npy")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Call({"normalize", folder_.File("no.npy"), "--model=group"}).err,
              HasSubstr("no.npy: cannot open"));
}

TEST_F(NormctlTest, UnreachableServerIsOneClearLine) {
  server_.Stop();
  const Ran ran = Call({"models"});
  EXPECT_EQ(ran.code, kExitFailed);
  EXPECT_THAT(ran.err, StartsWith("normctl: UNAVAILABLE: cannot reach " + server_.target()));
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
  for (const char* command :
       {"health", "info", "models", "model", "load", "unload", "normalize", "random"}) {
    EXPECT_THAT(ran.out, HasSubstr(std::string("  ") + command + " "));
    const Ran own = Invoke({command, "--help"});
    EXPECT_EQ(own.code, kExitOk);
    EXPECT_THAT(own.out, HasSubstr("--server=HOST:PORT"));
  }
}

}  // namespace
}  // namespace normd::client
