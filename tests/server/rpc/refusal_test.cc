// One list of bad requests, each through Normalize and NormalizeStream, alone and in pairs, and
// through ModelInfer and ModelStreamInfer: the same refusal, word for word.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;
using Change = std::function<void(v1::NormalizeRequest&)>;

// The order of AcceptRequest, after what a decoder cannot read.
enum class Step {
  kDecode,
  kModel,
  kNames,
  kTypes,
  kPriority,
  kTimeout,
  kPrecision,
  kOutputs,
  kData
};

struct Fault {
  std::string name;
  Step step;
  std::string message;  // What the refusal contains.
  Change change;
  Code code = Code::INVALID_ARGUMENT;
};

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

v1::NormalizeRequest OneInput() { return MakeRequest("instance_norm_64", {2, 64, 4, 4}); }

v1::NormalizeRequest TwoInputs() { return MakeRequest("fused_linear_512", {2, 512}, {"x", "y"}); }

v1::NormalizeRequest WithResidual() {
  return MakeRequest("add_rms_norm_4096", {2, 4096}, {"x", "residual"});
}

constexpr char kStyles[] = "styles_by_index";

// One sample, so that a stream's order is that of the inputs.
v1::NormalizeRequest WithIndex() {
  v1::NormalizeRequest request = MakeRequest(kStyles, {1, 64, 4, 4}, {"x"});
  v1::Tensor& index = *request.add_inputs();
  index.set_name("style_index");
  index.set_dtype(v1::INT64);
  index.add_shape(1);
  index.set_data(std::string("\x1f\0\0\0\0\0\0\0", 8));
  return request;
}

// An input, which another fault may have removed.
v1::Tensor& Input(v1::NormalizeRequest& request, int i) {
  while (request.inputs_size() <= i) request.add_inputs();
  return *request.mutable_inputs(i);
}

Change Shaped(int input, std::vector<std::int64_t> shape) {
  return [=](v1::NormalizeRequest& request) {
    Input(request, input).mutable_shape()->Assign(shape.begin(), shape.end());
  };
}

// The names of outputs, in place of those that another fault may have set.
Change Wanted(std::vector<std::string> names) {
  return [names = std::move(names)](v1::NormalizeRequest& request) {
    request.clear_outputs();
    for (const std::string& name : names) request.add_outputs()->set_name(name);
  };
}

// Faults of the fields that every request has.
std::vector<Fault> CommonFaults() {
  return {
      {"NoInput", Step::kDecode, "inputs: none", [](auto& r) { r.clear_inputs(); }},
      {"ManyInputs", Step::kDecode, "inputs: more than 32, wanted at most 32",
       [](auto& r) {
         for (int i = 0; i < 500; ++i) r.add_inputs();
       }},
      {"TooManyDimensions", Step::kDecode,
       "inputs[0].shape: more than 16 dimensions, wanted at most 16",
       Shaped(0, std::vector<std::int64_t>(17, 1))},
      {"LongInputName", Step::kDecode, "inputs[0].name: 129 bytes, wanted at most 128",
       [](auto& r) { Input(r, 0).set_name(std::string(129, 'x')); }},
      {"LongModel", Step::kDecode, "model: 200 bytes, wanted at most 128",
       [](auto& r) { r.set_model(std::string(200, 'm')); }},
      {"NoModel", Step::kModel, "model: \"\"", [](auto& r) { r.clear_model(); }},
      {"ModelThatIsAPath", Step::kModel, "model: \"../x\", wanted 1 to 128 letters",
       [](auto& r) { r.set_model("../x"); }},
      {"UnknownModel", Step::kModel, "model: nothing", [](auto& r) { r.set_model("nothing"); },
       Code::NOT_FOUND},
      {"ModelThatFailedToLoad", Step::kModel, "model: broken",
       [](auto& r) { r.set_model("broken"); }, Code::NOT_FOUND},
      {"UnknownVersion", Step::kModel, "version 7", [](auto& r) { r.set_version(7); },
       Code::NOT_FOUND},
      {"NegativeVersion", Step::kModel, "version: -1", [](auto& r) { r.set_version(-1); }},
      {"UnknownName", Step::kNames, "inputs[0].name: \"q\", wanted \"x\"",
       [](auto& r) { Input(r, 0).set_name("q"); }},
      {"NoDtype", Step::kTypes, "dtype: missing, wanted FLOAT32",
       [](auto& r) { Input(r, 0).clear_dtype(); }},
      {"UnknownDtype", Step::kTypes, "dtype: 99 is unknown, wanted FLOAT32",
       [](auto& r) { Input(r, 0).set_dtype(v1::DataType(99)); }},
      {"RankZero", Step::kTypes, "shape: []", [](auto& r) { Input(r, 0).clear_shape(); }},
      {"NegativeDimension", Step::kTypes, "shape[0]: -4", Shaped(0, {-4, 64})},
      {"HugeDimensions", Step::kTypes, "2^63 elements", Shaped(0, {kHuge, 512})},
      {"UnknownPriority", Step::kPriority, "priority: 4, wanted from 0 to 3",
       [](auto& r) { r.set_priority(static_cast<v1::Priority>(4)); }},
      {"NegativePriority", Step::kPriority, "priority: -1, wanted from 0 to 3",
       [](auto& r) { r.set_priority(static_cast<v1::Priority>(-1)); }},
      {"NegativeQueueTimeout", Step::kTimeout, "queue_timeout_ns: -1, wanted 0 or more",
       [](auto& r) { r.set_queue_timeout_ns(-1); }},
      {"UnknownPrecision", Step::kPrecision, "precision: 77, wanted",
       [](auto& r) { r.set_precision(static_cast<v1::Precision>(77)); }},
      {"ManyOutputs", Step::kDecode, "outputs: more than 32, wanted at most 32",
       Wanted(std::vector<std::string>(33, "y"))},
      {"LongOutputName", Step::kDecode, "outputs[1].name: 129 bytes, wanted at most 128",
       Wanted({"y", std::string(129, 'y')})},
      {"UnknownOutput", Step::kOutputs, "outputs[0].name: \"z\\n\", wanted \"", Wanted({"z\n"})},
      {"OutputTwice", Step::kOutputs, "\" twice, wanted each name once",
       [](auto& r) {
         const std::string name = r.model() == "fused_linear_512" ? "out" : "y";
         Wanted({name, name})(r);
       }},
  };
}

std::vector<Fault> OneInputFaults() {
  return {
      {"TwoInputsOfOneName", Step::kNames, "inputs[1].name: \"x\" twice",
       [](auto& r) {
         Input(r, 0).set_name("x");
         const v1::Tensor first = Input(r, 0);
         *r.add_inputs() = first;
       }},
      {"ASecondInput", Step::kNames, "inputs[1].name: \"y\", wanted \"x\"",
       [](auto& r) {
         Input(r, 0).set_name("x");
         r.add_inputs()->set_name("y");
       }},
      {"TwoInputsWithoutNames", Step::kNames, "inputs[0].name: \"\", wanted \"x\"",
       [](auto& r) {
         const v1::Tensor first = Input(r, 0);
         *r.add_inputs() = first;
       }},
      {"AThirdInput", Step::kNames, "inputs[2].name: \"z\", wanted \"x\"",
       [](auto& r) {
         Input(r, 0).set_name("x");
         Input(r, 1).set_name("x");
         Input(r, 2).set_name("z");
       }},
      {"LeastDimension", Step::kTypes, "shape[0]: -9223372036854775808",
       Shaped(0, {std::numeric_limits<std::int64_t>::min(), 64, 4, 4})},
      {"OverflowsToTheRightBytes", Step::kTypes, "2^63",
       Shaped(0, {(std::int64_t{1} << 54) + 2, 64, 4, 4})},
      {"RankOne", Step::kTypes, "shape: [64] has 1 dimension, wanted at least 2", Shaped(0, {64})},
      {"ZeroDimension", Step::kTypes, "shape[2]: 0 in [2, 64, 0, 4], wanted at least 1",
       Shaped(0, {2, 64, 0, 4})},
      {"HugeBytes", Step::kTypes, "2^63 bytes", Shaped(0, {kHuge / 64, 64})},
      {"WrongChannels", Step::kTypes, "shape[1]: 63 channels in [2, 63, 4, 4], wanted 64",
       Shaped(0, {2, 63, 4, 4})},
      {"DtypeTheModelRefuses", Step::kTypes,
       "dtype: FLOAT64, wanted FLOAT32 or FLOAT16 or BFLOAT16",
       [](auto& r) {
         r.set_model("group_norm_320_32_silu_last");
         Input(r, 0).set_dtype(v1::FLOAT64);
       }},
      {"PrecisionOfANorm", Step::kPrecision, "precision: PRECISION_TF32, wanted none: model \"",
       [](auto& r) { r.set_precision(v1::PRECISION_TF32); }},
      {"TooFewBytes", Step::kData,
       "data: 8191 bytes, wanted 8192 for shape [2, 64, 4, 4] of float32",
       [](auto& r) { Input(r, 0).mutable_data()->resize(8191); }},
      {"TooManyBytes", Step::kData, "data: 8194 bytes, wanted 8192",
       [](auto& r) { Input(r, 0).mutable_data()->resize(8194); }},
      {"NoData", Step::kData, "data: 0 bytes, wanted 8192",
       [](auto& r) { Input(r, 0).clear_data(); }},
      {"DataOfAnEmptyTensor", Step::kData, "data: 8192 bytes, wanted 0", Shaped(0, {0, 64, 4, 4})},
  };
}

std::vector<Fault> TwoInputFaults() {
  return {
      {"Missing", Step::kNames, "inputs: \"y\" is missing, wanted \"x\" and \"y\"",
       [](auto& r) { r.mutable_inputs()->DeleteSubrange(1, r.inputs_size() - 1); }},
      {"Unnamed", Step::kNames, "inputs[0].name: \"\", wanted \"x\" and \"y\"",
       [](auto& r) { Input(r, 0).clear_name(); }},
      {"Twice", Step::kNames, "inputs[1].name: \"x\" twice",
       [](auto& r) { Input(r, 1).set_name("x"); }},
      {"UnknownSecond", Step::kNames, "inputs[1].name: \"z\", wanted \"x\" and \"y\"",
       [](auto& r) { Input(r, 1).set_name("z"); }},
      {"OtherSamples", Step::kTypes,
       "input \"y\": shape: [3, 512], wanted [2, 512] for \"x\" of [2, 512]", Shaped(1, {3, 512})},
      {"OtherFeatures", Step::kTypes, "input \"x\": shape: [2, 511], wanted [*, 512]",
       Shaped(0, {2, 511})},
      {"OtherDtype", Step::kTypes, "input \"y\": dtype: float16, wanted float32 as of \"x\"",
       [](auto& r) { Input(r, 1).set_dtype(v1::FLOAT16); }},
      {"SecondDtypeMissing", Step::kTypes, "input \"y\": dtype: missing",
       [](auto& r) { Input(r, 1).clear_dtype(); }},
      {"DtypeTheModelRefuses", Step::kTypes, "dtype: FLOAT64, wanted FLOAT32, FLOAT16 or BFLOAT16",
       [](auto& r) {
         for (auto& input : *r.mutable_inputs()) input.set_dtype(v1::FLOAT64);
       }},
  };
}

std::vector<Fault> ResidualFaults() {
  const auto both = [](std::vector<std::int64_t> dims) {
    return [dims](v1::NormalizeRequest& r) {
      for (int i = 0; i < r.inputs_size(); ++i) Shaped(i, dims)(r);
    };
  };
  return {
      {"Missing", Step::kNames, "inputs: \"residual\" is missing, wanted \"x\" and \"residual\"",
       [](auto& r) { r.mutable_inputs()->DeleteSubrange(1, r.inputs_size() - 1); }},
      {"AThird", Step::kNames, "inputs[2].name: \"y\", wanted \"x\" and \"residual\"",
       [](auto& r) { Input(r, 2).set_name("y"); }},
      {"OtherLength", Step::kTypes, "input \"x\": shape[1]: 4095 in [2, 4095], wanted [*, 4096]",
       both({2, 4095})},
      {"OtherSamples", Step::kTypes,
       "input \"residual\": shape: [3, 4096], wanted [2, 4096] as of \"x\"", Shaped(1, {3, 4096})},
      {"OtherDtype", Step::kTypes, "input \"residual\": dtype: float16, wanted float32 as of \"x\"",
       [](auto& r) { Input(r, 1).set_dtype(v1::FLOAT16); }},
      {"HugeBytes", Step::kTypes, "of float32 has over 2^63 bytes", both({kHuge / 4096, 4096})},
      {"HugeSum", Step::kTypes, "of float32 has over 2^63 bytes", both({kHuge / 4 / 4096, 4096})},
  };
}

std::vector<Fault> IndexFaults() {
  const auto index = [](const char* bytes) {
    return [data = std::string(bytes, 8)](v1::NormalizeRequest& r) { Input(r, 1).set_data(data); };
  };
  return {
      {"Missing", Step::kNames, "inputs: \"style_index\" is missing",
       [](auto& r) { r.mutable_inputs()->DeleteSubrange(1, r.inputs_size() - 1); }},
      {"IndexOfFloats", Step::kTypes, "input \"style_index\": dtype: float32, wanted int64",
       [](auto& r) { Input(r, 1).set_dtype(v1::FLOAT32); }},
      {"XOfIndexes", Step::kTypes,
       "input \"x\": dtype: INT64, wanted FLOAT32, FLOAT64, FLOAT16 or BFLOAT16",
       [](auto& r) { Input(r, 0).set_dtype(v1::INT64); }},
      {"OtherSamples", Step::kTypes,
       "input \"style_index\": shape: [2], wanted [1] for \"x\" of [1, 64, 4, 4]", Shaped(1, {2})},
      {"OtherRank", Step::kTypes, "input \"style_index\": shape: [1, 1], wanted [1] for \"x\"",
       Shaped(1, {1, 1})},
      {"IndexBehindTheTable", Step::kData, "input \"style_index\": data[0]: 32, wanted 0 to 31",
       index("\x20\0\0\0\0\0\0\0")},
      {"IndexFarBehindTheTable", Step::kData,
       "input \"style_index\": data[0]: 4294967296, wanted 0 to 31", index("\0\0\0\0\1\0\0\0")},
      {"NegativeIndex", Step::kData, "input \"style_index\": data[0]: -1, wanted 0 to 31",
       index("\xff\xff\xff\xff\xff\xff\xff\xff")},
  };
}

grpc::Status Stream(TestServer& server, const v1::NormalizeRequest& request) {
  StreamClient client(server.stub());
  client.SendHeader(request);
  for (const v1::Tensor& input : request.inputs()) {
    if (!input.data().empty()) client.SendChunk(input.data());
  }
  client.HalfClose();
  return client.Finish();
}

// A stream notices an excess before its end, so it cannot say how much there will be.
std::string Comparable(const grpc::Status& status) {
  return absl::StrReplaceAll(status.error_message(), {{" bytes or more, ", " bytes, "}});
}

// Sends the request both ways; returns what both said.
grpc::Status BothWays(TestServer& server, const v1::NormalizeRequest& request) {
  const grpc::Status unary = Normalize(server, request);
  const grpc::Status stream = Stream(server, request);
  EXPECT_EQ(unary.error_code(), stream.error_code()) << unary.error_message() << "\n"
                                                     << stream.error_message();
  EXPECT_EQ(Comparable(unary), Comparable(stream));
  return {unary.error_code(), Comparable(unary)};
}

void LoadABrokenModel(TestServer& server) {
  const std::string folder = server.repository() + "/broken";
  std::filesystem::create_directories(folder + "/1");
  std::ofstream(folder + "/config.textproto") << "group_norm { channels: -1 }";
  ASSERT_FALSE(LoadModel(server, "broken").ok());
}

// One that the demo models do not have.
void LoadStylesByIndex(TestServer& server) {
  const std::filesystem::path folder = std::filesystem::path(server.repository()) / kStyles;
  std::filesystem::copy(folder.parent_path() / "style_bank_64_32", folder,
                        std::filesystem::copy_options::recursive);
  std::filesystem::remove(folder / "config.textproto");
  std::ofstream(folder / "config.textproto")
      << "conditional_instance_norm { channels: 64 styles: 32 by_index: true }";
  const grpc::Status status = LoadModel(server, kStyles);
  ASSERT_TRUE(status.ok()) << status.error_message();
}

void LoadModels(TestServer& server) {
  LoadABrokenModel(server);
  LoadStylesByIndex(server);
}

struct Base {
  v1::NormalizeRequest (*make)();
  std::vector<Fault> faults;
};

std::vector<Base> Bases() {
  std::vector<Base> bases = {{OneInput, OneInputFaults()},
                             {TwoInputs, TwoInputFaults()},
                             {WithResidual, ResidualFaults()},
                             {WithIndex, IndexFaults()}};
  const std::vector<Fault> common = CommonFaults();
  for (auto& [make, faults] : bases) faults.insert(faults.begin(), common.begin(), common.end());
  return bases;
}

TEST(RefusalTest, UnaryAndStreamRefuseEachBadRequestInTheSameWords) {
  TestServer server;
  LoadModels(server);
  for (const Base& base : Bases()) {
    for (const Fault& fault : base.faults) {
      SCOPED_TRACE(absl::StrCat(base.make().model(), ", ", fault.name));
      v1::NormalizeRequest request = base.make();
      EXPECT_TRUE(Normalize(server, request).ok()) << "before the fault, and after the others";
      fault.change(request);
      const grpc::Status status = BothWays(server, request);
      EXPECT_EQ(status.error_code(), fault.code);
      EXPECT_THAT(status.error_message(), HasSubstr(fault.message));
    }
  }
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

// What the Open Inference Protocol says with fields of its own, in words of its own.
bool HasOwnWords(const std::string& fault) {
  static const std::set<std::string> kFaults = {
      "LongModel",        "NegativeVersion",    "NoDtype",          "UnknownDtype",
      "UnknownPriority",  "SecondDtypeMissing", "NegativePriority", "NegativeQueueTimeout",
      "UnknownPrecision", "PrecisionOfANorm"};
  return kFaults.contains(fault);
}

TEST(RefusalTest, TheOpenInferenceProtocolRefusesEachBadRequestInTheSameWords) {
  TestServer server;
  LoadModels(server);
  InferStreamClient stream(server.NewChannel());
  for (const Base& base : Bases()) {
    ASSERT_TRUE(Infer(server, ToInfer(base.make())).ok());
    for (const Fault& fault : base.faults) {
      if (HasOwnWords(fault.name)) continue;  // infer_refusal_test has them.
      SCOPED_TRACE(absl::StrCat(base.make().model(), ", ", fault.name));
      v1::NormalizeRequest request = base.make();
      fault.change(request);
      const grpc::Status status = Infer(server, ToInfer(request));
      EXPECT_EQ(status.error_code(), fault.code);
      EXPECT_EQ(status.error_message(), Normalize(server, request).error_message());
      ASSERT_TRUE(stream.Send(ToInfer(request)));
      EXPECT_EQ(stream.Read()->error_message(), status.error_message());
    }
  }
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

// With two faults at once, both ways name the one whose check comes first.
TEST(RefusalTest, UnaryAndStreamCheckInTheSameOrder) {
  TestServer server;
  LoadModels(server);
  for (const Base& base : Bases()) {
    for (const Fault& first : base.faults) {
      for (const Fault& second : base.faults) {
        if (&first == &second || first.step > second.step) continue;
        SCOPED_TRACE(absl::StrCat(base.make().model(), ", ", first.name, " and ", second.name));
        v1::NormalizeRequest request = base.make();
        second.change(request);  // Before the one that may remove what it changes.
        first.change(request);
        const grpc::Status status = BothWays(server, request);
        if (first.step == second.step) continue;  // One may undo the other.
        EXPECT_EQ(status.error_code(), first.code);
        EXPECT_THAT(status.error_message(), HasSubstr(first.message));
      }
    }
  }
}

// A server that takes no request, and what it says.
struct State {
  std::string name;
  Code code;
  std::string message;
  std::function<void(TestServer&)> enter;
  TestServerOptions options = {};
};

std::vector<State> States() {
  TestServerOptions full;
  full.admission.max_inflight_requests = 0;
  return {{"Draining", Code::UNAVAILABLE, "the server is shutting down",
           [](TestServer& server) { server.stop_parts().admission.Close(); }},
          {"NoLane", Code::UNAVAILABLE, "the server has no working lane",
           [](TestServer& server) { server.stop_parts().admission.SetReady(false); }},
          {"Full", Code::RESOURCE_EXHAUSTED, "wanted 1 more, 0 of 0 are free", [](auto&) {}, full}};
}

TEST(RefusalTest, TheBudgetsComeAfterEveryCheckOfTheRequest) {
  for (const State& state : States()) {
    TestServer server(state.options);
    LoadABrokenModel(server);
    // A server without room loads nothing.
    const bool has_styles = state.name != "Full";
    if (has_styles) LoadStylesByIndex(server);
    state.enter(server);
    for (const Base& base : Bases()) {
      if (base.make == WithIndex && !has_styles) continue;
      SCOPED_TRACE(absl::StrCat(state.name, ", ", base.make().model()));
      const grpc::Status refused = BothWays(server, base.make());
      EXPECT_EQ(refused.error_code(), state.code);
      EXPECT_THAT(refused.error_message(), HasSubstr(state.message));
      for (const Fault& fault : base.faults) {
        SCOPED_TRACE(fault.name);
        v1::NormalizeRequest request = base.make();
        fault.change(request);
        const grpc::Status unary = Normalize(server, request);
        EXPECT_EQ(unary.error_code(), fault.code);
        EXPECT_THAT(unary.error_message(), HasSubstr(fault.message));
        const grpc::Status stream = Stream(server, request);
        // A stream's data comes when its header has been accepted.
        const bool in_header = fault.step != Step::kData;
        EXPECT_EQ(stream.error_code(), in_header ? fault.code : state.code);
        EXPECT_THAT(stream.error_message(), HasSubstr(in_header ? fault.message : state.message));
      }
    }
  }
}

TEST(RefusalTest, AConnectionsShareRefusesBothWaysAlike) {
  TestServerOptions options;
  options.admission.max_inflight_requests = 8;
  options.admission.max_connection_share = 0.1;
  TestServer server(options);
  StalledCall inside(server, OneInput());
  const grpc::Status refused = BothWays(server, OneInput());
  EXPECT_EQ(refused.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("--max_connection_share"));
  server.gate().Open();
  EXPECT_TRUE(inside.Wait().ok());
}

TEST(RefusalTest, BothWaysCountARefusalWithTheModelOnceThatIsFound) {
  TestServer server;
  v1::NormalizeRequest wrong_shape = OneInput();
  wrong_shape.mutable_inputs(0)->set_shape(1, 63);
  BothWays(server, wrong_shape);
  v1::NormalizeRequest unknown = OneInput();
  unknown.set_model("nothing");
  BothWays(server, unknown);
  server.WaitIdle();
  for (const char* method : {"Normalize", "NormalizeStream"}) {
    EXPECT_EQ(server.Metric(absl::StrCat(
                  "normd_requests_total{model=\"instance_norm_64\",version=\"1\",method=\"", method,
                  "\",code=\"INVALID_ARGUMENT\"}")),
              1);
    EXPECT_EQ(server.Metric(absl::StrCat("normd_requests_total{model=\"\",version=\"\",method=\"",
                                         method, "\",code=\"NOT_FOUND\"}")),
              1);
  }
}

}  // namespace
}  // namespace normd::testing
