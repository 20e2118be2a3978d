// What only the Open Inference Protocol can ask for wrongly, each through ModelInfer and
// ModelStreamInfer. refusal_test has the faults that normd.v1's requests can have too.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;
using InferRequest = inference::ModelInferRequest;

struct Fault {
  std::string name;
  std::string message;  // What the refusal contains.
  std::function<void(InferRequest&)> change;
  Code code = Code::INVALID_ARGUMENT;
};

InferRequest OneInput() { return ToInfer(MakeRequest("layer_norm_1024", {2, 1024})); }
InferRequest TwoInputs() { return ToInfer(MakeRequest("fused_linear_512", {2, 512}, {"x", "y"})); }

std::vector<Fault> NameFaults() {
  return {
      {"TextAsVersion", "model_version: \"latest\", wanted a number from 1",
       [](InferRequest& r) { r.set_model_version("latest"); }},
      {"FractionAsVersion", "model_version: \"1.5\", wanted a number from 1",
       [](InferRequest& r) { r.set_model_version("1.5"); }},
      {"VersionZero", "model_version: \"0\"", [](InferRequest& r) { r.set_model_version("0"); }},
      {"NegativeVersion", "model_version: \"-1\"",
       [](InferRequest& r) { r.set_model_version("-1"); }},
      {"VersionOverflow", "model_version: \"9223372036854775808\"",
       [](InferRequest& r) { r.set_model_version("9223372036854775808"); }},
      {"LongModel", "model_name: 200 bytes, wanted at most 128",
       [](InferRequest& r) { r.set_model_name(std::string(200, 'm')); }},
      {"MegabyteId", "id: 1048576 bytes, wanted at most 1024",
       [](InferRequest& r) { r.set_id(std::string(1 << 20, 'i')); }},
  };
}

std::vector<Fault> DatatypeFaults() {
  std::vector<Fault> faults;
  for (const char* text : {"INT32", "INT16", "BYTES", "BOOL", "fp32", "FP32 ", "float32", "FP8"}) {
    faults.push_back({absl::StrCat("Datatype ", text),
                      absl::StrCat("datatype: \"", text, "\", wanted FP32, FP64, FP16 or BF16"),
                      [text](InferRequest& r) { r.mutable_inputs(0)->set_datatype(text); }});
  }
  faults.push_back({"NoDatatype", "datatype: missing",
                    [](InferRequest& r) { r.mutable_inputs(0)->clear_datatype(); }});
  faults.push_back({"LongDatatype", "inputs[0].datatype: 1048576 bytes", [](InferRequest& r) {
                      r.mutable_inputs(0)->set_datatype(std::string(1 << 20, 'F'));
                    }});
  return faults;
}

// Contents in a field that is not the datatype's.
std::vector<Fault> TypedContentsFaults() {
  const auto contents = [](const char* datatype, auto add) {
    return [datatype, add](InferRequest& r) {
      r.clear_raw_input_contents();
      r.mutable_inputs(0)->set_datatype(datatype);
      add(*r.mutable_inputs(0)->mutable_contents());
    };
  };
  return {
      {"DoublesForFloats",
       "contents: fp64_contents for FP32, wanted fp32_contents or raw_input_contents",
       contents("FP32", [](auto& c) { c.add_fp64_contents(1); })},
      {"FloatsForDoubles",
       "contents: fp32_contents for FP64, wanted fp64_contents or raw_input_contents",
       contents("FP64", [](auto& c) { c.add_fp32_contents(1); })},
      {"FloatsForHalves", "contents: fp32_contents for FP16, wanted raw_input_contents",
       contents("FP16", [](auto& c) { c.add_fp32_contents(1); })},
      {"FloatsForBfloats", "contents: fp32_contents for BF16, wanted raw_input_contents",
       contents("BF16", [](auto& c) { c.add_fp32_contents(1); })},
      {"BoolsForFloats", "contents: bool_contents for FP32",
       contents("FP32", [](auto& c) { c.add_bool_contents(true); })},
      {"IntsForFloats", "contents: int_contents for FP32",
       contents("FP32", [](auto& c) { c.add_int_contents(-1); })},
      {"Int64sForFloats", "contents: int64_contents for FP32",
       contents("FP32", [](auto& c) { c.add_int64_contents(-1); })},
      {"UintsForFloats", "contents: uint_contents for FP32",
       contents("FP32", [](auto& c) { c.add_uint_contents(1); })},
      {"Uint64sForFloats", "contents: uint64_contents for FP32",
       contents("FP32", [](auto& c) { c.add_uint64_contents(1); })},
      {"BytesForFloats", "contents: bytes_contents for FP32",
       contents("FP32", [](auto& c) { c.add_bytes_contents("1"); })},
      {"TwoFields", "inputs[0].contents: ",
       contents("FP32",
                [](auto& c) {
                  c.add_fp32_contents(1);
                  c.add_fp64_contents(1);
                })},
      {"TooFewElements", "data: 4 bytes, wanted 8192",
       contents("FP32", [](auto& c) { c.add_fp32_contents(1); })},
  };
}

std::vector<Fault> RawContentsFaults() {
  return {
      {"MixedContents", "beside raw_input_contents",
       [](InferRequest& r) { r.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1); }},
      {"ManyRawContents", "raw_input_contents: 2, wanted 1",
       [](InferRequest& r) { r.add_raw_input_contents(); }},
      {"NoContents", "data: 0 bytes, wanted 8192 for shape [2, 1024]",
       [](InferRequest& r) { r.clear_raw_input_contents(); }},
      {"BytesOfAnotherType", "data: 8192 bytes, wanted 16384",
       [](InferRequest& r) { r.mutable_inputs(0)->set_datatype("FP64"); }},
  };
}

std::vector<Fault> ParameterFaults() {
  const auto parameter = [](const char* key, auto set) {
    return [key, set](InferRequest& r) { set((*r.mutable_parameters())[key]); };
  };
  const auto classes = [](auto set) {
    return [set](InferRequest& r) {
      r.add_outputs()->set_name("y");
      set((*r.mutable_outputs(0)->mutable_parameters())["classification"]);
    };
  };
  return {
      {"Priority", "parameters[\"priority\"]: 4, wanted from 0 to 3",
       parameter("priority", [](auto& p) { p.set_uint64_param(4); })},
      {"HugePriority", "parameters[\"priority\"]: 9223372036854775808, wanted from 0 to 3",
       parameter("priority", [](auto& p) { p.set_uint64_param(std::uint64_t{1} << 63); })},
      {"NegativePriority", "parameters[\"priority\"]: -1, wanted",
       parameter("priority", [](auto& p) { p.set_int64_param(-1); })},
      {"PriorityText", "parameters[\"priority\"]: not an integer",
       parameter("priority", [](auto& p) { p.set_string_param("1"); })},
      {"PriorityBool", "parameters[\"priority\"]: not an integer",
       parameter("priority", [](auto& p) { p.set_bool_param(true); })},
      {"Timeout", "parameters[\"timeout\"]: -1, wanted from 0 to",
       parameter("timeout", [](auto& p) { p.set_int64_param(-1); })},
      {"TimeoutOverflow",
       "parameters[\"timeout\"]: 18446744073709551615, wanted from 0 to 9223372036854775",
       parameter("timeout", [](auto& p) { p.set_uint64_param(~std::uint64_t{0}); })},
      {"TimeoutInDoubles", "parameters[\"timeout\"]: not an integer",
       parameter("timeout", [](auto& p) { p.set_double_param(1); })},
      {"LongParameter", "parameters[\"mine\"]: 1048576 bytes, wanted at most 1024",
       parameter("mine", [](auto& p) { p.set_string_param(std::string(1 << 20, 'p')); })},
      {"Classification", "outputs[0].parameters[\"classification\"]: 3, wanted none",
       classes([](auto& p) { p.set_int64_param(3); })},
      {"ClassificationText",
       "outputs[0].parameters[\"classification\"]: not an integer, wanted none",
       classes([](auto& p) { p.set_string_param("3"); })},
  };
}

// Faults of a part of shared memory, in the parameters of an input and of an output.
std::vector<Fault> RegionParameterFaults() {
  std::vector<Fault> faults;
  const auto shared = [](auto* tensor, const std::string& key) -> auto& {
    auto& parameters = *tensor->mutable_parameters();
    parameters["shared_memory_region"].set_string_param("r");
    parameters["shared_memory_byte_size"].set_int64_param(64);
    return parameters[key];
  };
  const struct {
    const char* name;
    const char* key;
    std::function<void(inference::InferParameter&)> set;
    const char* text;
  } wrong[] = {
      {"RegionNumber", "shared_memory_region", [](auto& p) { p.set_int64_param(64); },
       "[\"shared_memory_region\"]: no text, wanted a region's name"},
      {"RegionMissing", "shared_memory_region", [](auto& p) { p.Clear(); },
       "[\"shared_memory_region\"]: no text, wanted a region's name"},
      {"OffsetText", "shared_memory_offset", [](auto& p) { p.set_string_param("4"); },
       "[\"shared_memory_offset\"]: not an integer, wanted a number of bytes from 0"},
      {"HugeOffset", "shared_memory_offset", [](auto& p) { p.set_uint64_param(~std::uint64_t{0}); },
       "[\"shared_memory_offset\"]: 18446744073709551615, wanted a number of bytes from 0 to "
       "9223372036854775807"},
      {"HugeSize", "shared_memory_byte_size",
       [](auto& p) { p.set_uint64_param(std::uint64_t{1} << 63); },
       "[\"shared_memory_byte_size\"]: 9223372036854775808, wanted a number of bytes from 0 to "
       "9223372036854775807"},
      {"LongRegion", "shared_memory_region",
       [](auto& p) { p.set_string_param(std::string(100'000, 'r')); },
       "[\"shared_memory_region\"]: 100000 bytes, wanted at most 1024"},
      {"SizeMissing", "shared_memory_byte_size", [](auto& p) { p.Clear(); },
       "[\"shared_memory_byte_size\"]: missing, wanted a number of bytes from 0"},
      {"UnknownKey", "shared_memory_ofset", [](auto& p) { p.set_int64_param(0); },
       "[\"shared_memory_ofset\"]: unknown, wanted shared_memory_region"},
  };
  for (const auto& one : wrong) {
    faults.push_back({absl::StrCat("Input", one.name),
                      absl::StrCat("inputs[0].parameters", one.text),
                      [shared, one](InferRequest& r) {
                        one.set(shared(r.mutable_inputs(0), one.key));
                        r.clear_raw_input_contents();
                      }});
    faults.push_back(
        {absl::StrCat("Output", one.name), absl::StrCat("outputs[0].parameters", one.text),
         [shared, one](InferRequest& r) { one.set(shared(r.add_outputs(), one.key)); }});
  }
  return faults;
}

// Bytes and contents that are matched to the wrong one of two inputs.
std::vector<Fault> TwoInputFaults() {
  const auto shared = [](InferRequest& r, std::int64_t bytes) {
    auto& parameters = *r.mutable_inputs(1)->mutable_parameters();
    parameters["shared_memory_region"].set_string_param("r");
    parameters["shared_memory_byte_size"].set_int64_param(bytes);
  };
  return {
      {"TheSumFitsAndTheirPartsDoNot", "input \"x\": data: 2048 bytes, wanted 4096",
       [](InferRequest& r) {
         std::string& x = *r.mutable_raw_input_contents(0);
         r.mutable_raw_input_contents(1)->append(x, 2048);
         x.resize(2048);
       }},
      {"AllInTheFirst", "input \"x\": data: 8192 bytes, wanted 4096",
       [](InferRequest& r) {
         r.mutable_raw_input_contents(0)->append(r.raw_input_contents(1));
         r.mutable_raw_input_contents(1)->clear();
       }},
      {"OneForTwo", "raw_input_contents: 1, wanted 2, one for each of inputs",
       [](InferRequest& r) { r.mutable_raw_input_contents()->RemoveLast(); }},
      {"OneTyped",
       "inputs[1].contents: fp32_contents beside raw_input_contents, wanted one of the two",
       [](InferRequest& r) { r.mutable_inputs(1)->mutable_contents()->add_fp32_contents(1); }},
      {"OnlyOneTyped", "raw_input_contents: 1, wanted 2",
       [](InferRequest& r) {
         r.mutable_inputs(1)->mutable_contents()->add_fp32_contents(1);
         r.mutable_raw_input_contents()->RemoveLast();
       }},
      {"SharedMemoryOfTheSecond", "inputs[1].shared_memory: shared memory is switched off",
       [shared](InferRequest& r) {
         shared(r, 4096);
         r.mutable_raw_input_contents()->RemoveLast();
       },
       Code::UNIMPLEMENTED},
      {"SharedMemoryOfAnotherSize",
       "input \"y\": shared_memory: byte_size 4095, wanted 4096 for shape",
       [shared](InferRequest& r) {
         shared(r, 4095);
         r.mutable_raw_input_contents()->RemoveLast();
       }},
      {"BytesBesideSharedMemory",
       "raw_input_contents: 2, wanted 1, one for each of inputs that is not in shared memory",
       [shared](InferRequest& r) { shared(r, 4096); }},
  };
}

class InferRefusalTest : public ::testing::Test {
 protected:
  // Sends good requests and, between them, each fault's: alone, and in a stream that goes on.
  void RefusesEach(const std::vector<Fault>& faults, const InferRequest& good) {
    ASSERT_TRUE(Infer(server_, good).ok());
    InferStreamClient stream(server_.NewChannel());
    for (const Fault& fault : faults) {
      SCOPED_TRACE(fault.name);
      InferRequest request = good;
      request.set_id(fault.name);
      fault.change(request);
      const grpc::Status status = Infer(server_, request);
      EXPECT_EQ(status.error_code(), fault.code);
      EXPECT_THAT(status.error_message(), HasSubstr(fault.message));
      EXPECT_LT(status.error_message().size(), 600u) << "what came is cut short";

      ASSERT_TRUE(stream.Send(request));
      ASSERT_TRUE(stream.Send(good));
      const auto refused = stream.Read();
      ASSERT_TRUE(refused.has_value());
      EXPECT_EQ(refused->error_message(), status.error_message());
      EXPECT_EQ(refused->infer_response().outputs_size(), 0);
      const bool fits = request.id().size() <= 1024;
      EXPECT_EQ(refused->infer_response().id(), fits ? request.id() : "");
      const auto answered = stream.Read();
      ASSERT_TRUE(answered.has_value());
      EXPECT_EQ(answered->error_message(), "");
    }
    stream.HalfClose();
    EXPECT_TRUE(stream.Finish().ok());
    server_.WaitIdle();
    EXPECT_EQ(server_.Metric("normd_inflight_bytes"), 0);
  }

  TestServer server_;
};

TEST_F(InferRefusalTest, WrongNames) { RefusesEach(NameFaults(), OneInput()); }
TEST_F(InferRefusalTest, WrongDatatypes) { RefusesEach(DatatypeFaults(), OneInput()); }
TEST_F(InferRefusalTest, ContentsOfTheWrongField) {
  RefusesEach(TypedContentsFaults(), OneInput());
}
TEST_F(InferRefusalTest, RawContentsThatDoNotFit) { RefusesEach(RawContentsFaults(), OneInput()); }
TEST_F(InferRefusalTest, WrongParameters) { RefusesEach(ParameterFaults(), OneInput()); }
TEST_F(InferRefusalTest, WrongParametersOfRegions) {
  RefusesEach(RegionParameterFaults(), OneInput());
}
TEST_F(InferRefusalTest, ContentsOfTheWrongInput) { RefusesEach(TwoInputFaults(), TwoInputs()); }

// An unknown type is answered with those that the model takes for the input.
TEST_F(InferRefusalTest, TypesThatTheModelTakes) {
  v1::ModelConfig config;
  config.mutable_conditional_instance_norm()->set_channels(1);
  config.mutable_conditional_instance_norm()->set_styles(1);
  config.mutable_conditional_instance_norm()->set_by_index(true);
  config.add_dtypes(v1::FLOAT16);
  config.add_dtypes(v1::BFLOAT16);
  client::Tensor weight = *client::Tensor::Allocate(norm::DType::kFloat32, *Shape::Create({1, 1}));
  AddModel(server_, "styles", config, {{"weight", weight}});
  InferRequest styles;
  styles.set_model_name("styles");
  for (const char* name : {"x", "style_index"}) {
    auto& input = *styles.add_inputs();
    input.set_name(name);
    input.set_datatype(name[0] == 'x' ? "FP16" : "INT64");
    input.add_shape(1);
  }
  const InferRequest linear = TwoInputs();
  const auto refusal = [&](InferRequest request, int input, const char* datatype) {
    request.mutable_inputs(input)->set_datatype(datatype);
    return Infer(server_, request).error_message();
  };
  EXPECT_THAT(refusal(styles, 0, "INT32"),
              HasSubstr("input \"x\": datatype: \"INT32\", wanted FP16 or BF16"));
  EXPECT_THAT(refusal(styles, 1, "INT32"),
              HasSubstr("input \"style_index\": datatype: \"INT32\", wanted INT64"));
  EXPECT_THAT(refusal(linear, 1, ""),
              HasSubstr("input \"y\": datatype: missing, wanted FP32, FP16 or BF16"));
  v1::NormalizeRequest request;
  request.set_model("styles");
  request.add_inputs()->set_name("x");
  request.add_inputs()->set_name("style_index");
  request.mutable_inputs(0)->set_dtype(v1::FLOAT16);
  for (v1::Tensor& input : *request.mutable_inputs()) input.add_shape(1);
  EXPECT_THAT(Normalize(server_, request).error_message(),
              HasSubstr("input \"style_index\": dtype: missing, wanted INT64"));
}

TEST_F(InferRefusalTest, AMessageThatIsNoneHasItsErrorInTheStream) {
  RawStream stream(server_.NewChannel(), "/inference.GRPCInferenceService/ModelStreamInfer",
                   "\x0b");
  const auto wire = stream.Read();
  ASSERT_TRUE(wire.has_value());
  inference::ModelStreamInferResponse response;
  ASSERT_TRUE(response.ParseFromString(*wire));
  EXPECT_THAT(response.error_message(), HasSubstr("malformed protobuf"));
}

}  // namespace
}  // namespace normd::testing
