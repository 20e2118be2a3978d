// The command `normalize`: tensors from files to files, as calls and as streams.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "client/normctl/tensor_files.h"
#include "client/tensor/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/normctl/normctl_fixture.h"

namespace normd::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

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

TEST_F(NormctlTest, NormalizesFromFileToFileBothWays) {
  const std::string y = folder_.File("y.npy");
  Ran ran = Call({"normalize", "--stream=always", "--model", "group", folder_.File("x.npy"), "-o",
                  y, "--verify", "--model_repository=" + folder_.path()});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("streamed in"), HasSubstr("as 1 pieces in 1 batches"),
                             HasSubstr("verified against float64: ok"), HasSubstr(y)));
  const auto streamed = ReadNpy(y);
  ASSERT_TRUE(streamed.ok()) << streamed.status();
  EXPECT_EQ(streamed->shape().ToString(), "[2, 8, 5]");
  EXPECT_NE(streamed->bytes(), ReadNpy(folder_.File("x.npy"))->bytes());
  ran = Call({"normalize", "--stream=never", "--model", "group", folder_.File("x.npy"), "-o",
              folder_.File("z.npy"), "--verify", "--model_repository=" + folder_.path()});
  EXPECT_EQ(ran.code, kExitOk) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("verified against float64: ok"));
  EXPECT_EQ(streamed->bytes(), ReadNpy(folder_.File("z.npy"))->bytes());
  // The output may be the input.
  EXPECT_EQ(Call({"normalize", "--stream=always", "--model=group", y, "-o", y}).code, kExitOk);
  ran = Call({"normalize", "--stream=always", "--model=group", y, "-o", y, "--json", "--verify",
              "--model_repository=" + folder_.path()});
  EXPECT_EQ(Json::parse(ran.out)["stream"]["pieces"], 1);
}

TEST_F(NormctlTest, NormalizeWritesOverNoInputThatIsRead) {
  WriteInput("y.npy.part", {2, 8, 5}, 3);
  const std::string input = folder_.File("y.npy.part");
  const std::string before = test::ReadFile(input);
  const Ran ran =
      Call({"normalize", "--stream=always", "--model=group", input, "-o", folder_.File("y.npy")});
  EXPECT_EQ(ran.code, kExitFailed);
  EXPECT_THAT(ran.err, HasSubstr("y.npy.part until it is whole, which is an input"));
  EXPECT_TRUE(test::ReadFile(input) == before);
}

// One file by any of its names, whether or not it exists, is refused before anything is sent.
TEST_F(NormctlTest, NormalizeWritesNoTwoOutputsToOneFile) {
  AddModel("add", "add_rms_norm { normalized_shape: [4, 8] affine: false }");
  server_.TellSamples(7);
  for (const char* name : {"x.npy", "residual.npy"}) WriteInput(name, {7, 4, 8});
  std::filesystem::create_directory(folder_.File("folder"));
  std::filesystem::create_symlink(folder_.File("x.npy"), folder_.File("link.npy"));
  std::filesystem::create_hard_link(folder_.File("x.npy"), folder_.File("hard.npy"));
  std::filesystem::create_symlink("a.npy", folder_.File("dangling.npy"));
  const auto call = [&](const std::string& stream, const std::string& y, const std::string& sum) {
    return Call({"normalize", "--stream=" + stream, "--model=add", "x=" + folder_.File("x.npy"),
                 "residual=" + folder_.File("residual.npy"), "-o", "y=" + y, "-o",
                 "residual_out=" + sum});
  };
  const std::string before = test::ReadFile(folder_.File("x.npy"));
  for (const std::string stream : {"never", "always"}) {
    const std::int64_t calls = server_.calls();
    for (const auto& [one, other] :
         std::vector<std::pair<std::string, std::string>>{{"a.npy", "a.npy"},
                                                          {"a.npy", "./a.npy"},
                                                          {"folder/../a.npy", "a.npy"},
                                                          {"folder/a.npy", "folder//a.npy"},
                                                          {"x.npy", "link.npy"},
                                                          {"dangling.npy", "a.npy"},
                                                          {"hard.npy", "x.npy"}}) {
      const Ran ran = call(stream, folder_.File(one), folder_.File(other));
      EXPECT_EQ(ran.code, kExitUsage) << one << " " << other << " " << ran.out;
      EXPECT_EQ(ran.err.rfind("normctl: -o residual_out: " + folder_.File(other) +
                                  ", which is also the file of -o y, wanted another",
                              0),
                0)
          << ran.err;
    }
    EXPECT_EQ(server_.calls(), calls);
    EXPECT_FALSE(std::filesystem::exists(folder_.File("a.npy")));
    EXPECT_TRUE(test::ReadFile(folder_.File("x.npy")) == before);
    EXPECT_EQ(call(stream, "/dev/null", "/dev/null").code, kExitOk);
    EXPECT_EQ(call(stream, folder_.File("b.npy"), folder_.File("c.npy")).code, kExitOk);
  }
  // Where one is written until it is whole, the other would come.
  for (const bool turned : {false, true}) {
    const std::string whole = folder_.File("d.npy");
    const Ran ran =
        turned ? call("always", whole + ".part", whole) : call("always", whole, whole + ".part");
    EXPECT_EQ(ran.code, kExitFailed);
    EXPECT_THAT(ran.err, HasSubstr("d.npy.part until it is whole, which is another output"));
  }
}

TEST_F(NormctlTest, NormalizeStreamsAFusedLayersTwoInputs) {
  AddModel(
      "fused",
      "linear_norm { in_features: 6 out_features: 10 bias: false epilogue { multiply: true } }",
      {{"linear.weight", test::RandomFloats({10, 6}, 2)}});
  WriteInput("x.npy", {7, 6}, 5);
  WriteInput("y.npy", {7, 10}, 5);
  WriteInput("short.npy", {6, 10}, 5);
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
  AddModel("add", "add_rms_norm { normalized_shape: [4, 8] affine: false }");
  server_.TellSamples(7);
  for (const char* name : {"x.npy", "residual.npy"}) {
    WriteInput(name, {7, 4, 8}, static_cast<std::uint64_t>(*name));
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

TEST_F(NormctlTest, VerifyFailsOnAWrongResponseBothWays) {
  server_.AnswerWronglyFrom(0);
  for (const char* stream : {"--stream=never", "--stream=always"}) {
    const Ran ran =
        Call({"normalize", stream, folder_.File("x.npy"), "--model=group", "-o",
              folder_.File("y.npy"), "--verify", "--model_repository=" + folder_.path()});
    EXPECT_EQ(ran.code, kExitFailed);
    EXPECT_THAT(ran.out, HasSubstr("FAILED"));
    EXPECT_THAT(ran.err, HasSubstr("DATA_LOSS: verification failed"));
  }
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

}  // namespace
}  // namespace normd::client
