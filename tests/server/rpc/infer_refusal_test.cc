// What only the Open Inference Protocol can ask for wrongly, each through ModelInfer and
// ModelStreamInfer. refusal_test has the faults that normd.v1's requests can have too.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/raw_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using testing::InferStreamClient;
using testing::MakeRequest;
using testing::TestServer;
using testing::ToInfer;
using Code = grpc::StatusCode;
using InferRequest = inference::ModelInferRequest;

struct Fault {
  std::string name;
  Code code;
  std::string message;  // What the refusal contains.
  std::function<void(InferRequest&)> change;
};

InferRequest OneInput() { return ToInfer(MakeRequest("layer_norm_1024", {2, 1024})); }
InferRequest TwoInputs() {
  v1::NormalizeRequest plain = MakeRequest("fused_linear_512", {2, 512});
  plain.mutable_inputs(0)->set_name("x");
  *plain.add_inputs() = plain.inputs(0);
  plain.mutable_inputs(1)->set_name("y");
  return ToInfer(plain);
}

std::vector<Fault> NameFaults() {
  return {
      {"TextAsVersion", Code::INVALID_ARGUMENT, "model_version: \"latest\", wanted a number from 1",
       [](InferRequest& r) { r.set_model_version("latest"); }},
      {"FractionAsVersion", Code::INVALID_ARGUMENT,
       "model_version: \"1.5\", wanted a number from 1",
       [](InferRequest& r) { r.set_model_version("1.5"); }},
      {"VersionZero", Code::INVALID_ARGUMENT, "model_version: \"0\"",
       [](InferRequest& r) { r.set_model_version("0"); }},
      {"NegativeVersion", Code::INVALID_ARGUMENT, "model_version: \"-1\"",
       [](InferRequest& r) { r.set_model_version("-1"); }},
      {"VersionOverflow", Code::INVALID_ARGUMENT, "model_version: \"9223372036854775808\"",
       [](InferRequest& r) { r.set_model_version("9223372036854775808"); }},
      {"UnknownVersion", Code::NOT_FOUND, "version 7",
       [](InferRequest& r) { r.set_model_version("7"); }},
      {"LongModel", Code::INVALID_ARGUMENT, "model_name: 200 bytes, wanted at most 128",
       [](InferRequest& r) { r.set_model_name(std::string(200, 'm')); }},
      {"MegabyteId", Code::INVALID_ARGUMENT, "id: 1048576 bytes, wanted at most 1024",
       [](InferRequest& r) { r.set_id(std::string(1 << 20, 'i')); }},
      {"UnknownOutput", Code::INVALID_ARGUMENT, "outputs[0].name: \"z\", wanted \"y\"",
       [](InferRequest& r) { r.add_outputs()->set_name("z"); }},
      {"OutputTwice", Code::INVALID_ARGUMENT, "outputs[1].name: \"y\" twice",
       [](InferRequest& r) {
         r.add_outputs()->set_name("y");
         r.add_outputs()->set_name("y");
       }},
      {"LongOutput", Code::INVALID_ARGUMENT, "outputs[0].name: 129 bytes, wanted at most 128",
       [](InferRequest& r) { r.add_outputs()->set_name(std::string(129, 'y')); }},
      {"ManyOutputs", Code::INVALID_ARGUMENT, "outputs: more than ",
       [](InferRequest& r) {
         for (int i = 0; i < 500; ++i) r.add_outputs();
       }},
  };
}

std::vector<Fault> DatatypeFaults() {
  std::vector<Fault> faults;
  for (const char* text : {"INT32", "INT16", "BYTES", "BOOL", "fp32", "FP32 ", "float32", "FP8"}) {
    faults.push_back({absl::StrCat("Datatype ", text), Code::INVALID_ARGUMENT,
                      absl::StrCat("datatype: \"", text, "\", wanted FP32, FP64, FP16, BF16"),
                      [text](InferRequest& r) { r.mutable_inputs(0)->set_datatype(text); }});
  }
  faults.push_back({"NoDatatype", Code::INVALID_ARGUMENT, "datatype: missing",
                    [](InferRequest& r) { r.mutable_inputs(0)->clear_datatype(); }});
  faults.push_back(
      {"LongDatatype", Code::INVALID_ARGUMENT, "inputs[0].datatype: 1048576 bytes",
       [](InferRequest& r) { r.mutable_inputs(0)->set_datatype(std::string(1 << 20, 'F')); }});
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
      {"DoublesForFloats", Code::INVALID_ARGUMENT,
       "contents: fp64_contents for FP32, wanted fp32_contents or raw_input_contents",
       contents("FP32", [](auto& c) { c.add_fp64_contents(1); })},
      {"FloatsForDoubles", Code::INVALID_ARGUMENT,
       "contents: fp32_contents for FP64, wanted fp64_contents or raw_input_contents",
       contents("FP64", [](auto& c) { c.add_fp32_contents(1); })},
      {"FloatsForHalves", Code::INVALID_ARGUMENT,
       "contents: fp32_contents for FP16, wanted raw_input_contents",
       contents("FP16", [](auto& c) { c.add_fp32_contents(1); })},
      {"FloatsForBfloats", Code::INVALID_ARGUMENT,
       "contents: fp32_contents for BF16, wanted raw_input_contents",
       contents("BF16", [](auto& c) { c.add_fp32_contents(1); })},
      {"BoolsForFloats", Code::INVALID_ARGUMENT, "contents: bool_contents for FP32",
       contents("FP32", [](auto& c) { c.add_bool_contents(true); })},
      {"IntsForFloats", Code::INVALID_ARGUMENT, "contents: int_contents for FP32",
       contents("FP32", [](auto& c) { c.add_int_contents(-1); })},
      {"Int64sForFloats", Code::INVALID_ARGUMENT, "contents: int64_contents for FP32",
       contents("FP32", [](auto& c) { c.add_int64_contents(-1); })},
      {"UintsForFloats", Code::INVALID_ARGUMENT, "contents: uint_contents for FP32",
       contents("FP32", [](auto& c) { c.add_uint_contents(1); })},
      {"Uint64sForFloats", Code::INVALID_ARGUMENT, "contents: uint64_contents for FP32",
       contents("FP32", [](auto& c) { c.add_uint64_contents(1); })},
      {"BytesForFloats", Code::INVALID_ARGUMENT, "contents: bytes_contents for FP32",
       contents("FP32", [](auto& c) { c.add_bytes_contents("1"); })},
      {"TwoFields", Code::INVALID_ARGUMENT, "inputs[0].contents: ",
       contents("FP32",
                [](auto& c) {
                  c.add_fp32_contents(1);
                  c.add_fp64_contents(1);
                })},
      {"TooFewElements", Code::INVALID_ARGUMENT, "data: 4 bytes, wanted 8192",
       contents("FP32", [](auto& c) { c.add_fp32_contents(1); })},
  };
}

std::vector<Fault> RawContentsFaults() {
  return {
      {"MixedContents", Code::INVALID_ARGUMENT, "beside raw_input_contents",
       [](InferRequest& r) { r.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1); }},
      {"ManyRawContents", Code::INVALID_ARGUMENT, "raw_input_contents: 2, wanted 1",
       [](InferRequest& r) { r.add_raw_input_contents(); }},
      {"NoContents", Code::INVALID_ARGUMENT, "data: 0 bytes, wanted 8192 for shape [2, 1024]",
       [](InferRequest& r) { r.clear_raw_input_contents(); }},
      {"ShortContents", Code::INVALID_ARGUMENT, "data: 8191 bytes, wanted 8192",
       [](InferRequest& r) { r.mutable_raw_input_contents(0)->pop_back(); }},
      {"LongContents", Code::INVALID_ARGUMENT, "data: 8193 bytes, wanted 8192",
       [](InferRequest& r) { r.mutable_raw_input_contents(0)->push_back('x'); }},
      {"BytesOfAnotherType", Code::INVALID_ARGUMENT, "data: 8192 bytes, wanted 16384",
       [](InferRequest& r) { r.mutable_inputs(0)->set_datatype("FP64"); }},
  };
}

std::vector<Fault> ShapeFaults() {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const auto shape = [](std::vector<std::int64_t> dims) {
    return [dims](InferRequest& r) {
      r.mutable_inputs(0)->mutable_shape()->Assign(dims.begin(), dims.end());
    };
  };
  return {
      {"NegativeShape", Code::INVALID_ARGUMENT, "shape[0]: -1, wanted 0 or more",
       shape({-1, 1024})},
      {"LeastShape", Code::INVALID_ARGUMENT, "shape[0]: -9223372036854775808",
       shape({std::numeric_limits<std::int64_t>::min(), 1024})},
      {"NegativeLast", Code::INVALID_ARGUMENT, "shape[1]: -1024", shape({2, -1024})},
      {"TwoNegatives", Code::INVALID_ARGUMENT, "shape[0]: -2", shape({-2, -1024})},
      {"OverflowingElements", Code::INVALID_ARGUMENT, "2^63 elements", shape({kMost, 1024})},
      {"OverflowsToTheRightBytes", Code::INVALID_ARGUMENT, "2^63",
       shape({(std::int64_t{1} << 54) + 2, 1024})},
      {"OverflowingBytes", Code::INVALID_ARGUMENT, "2^63 bytes", shape({kMost / 1024, 1024})},
      {"OverflowBesideZero", Code::INVALID_ARGUMENT, "2^63", shape({0, kMost, kMost, 1024})},
      {"NoShape", Code::INVALID_ARGUMENT, "shape: []", shape({})},
      {"ManyDimensions", Code::INVALID_ARGUMENT, "shape: more than 16 dimensions",
       shape(std::vector<std::int64_t>(1000, 1))},
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
      {"Priority", Code::INVALID_ARGUMENT, "parameters[\"priority\"]: 4, wanted from 0 to 3",
       parameter("priority", [](auto& p) { p.set_uint64_param(4); })},
      {"HugePriority", Code::INVALID_ARGUMENT,
       "parameters[\"priority\"]: 9223372036854775808, wanted from 0 to 3",
       parameter("priority", [](auto& p) { p.set_uint64_param(std::uint64_t{1} << 63); })},
      {"NegativePriority", Code::INVALID_ARGUMENT, "parameters[\"priority\"]: -1, wanted",
       parameter("priority", [](auto& p) { p.set_int64_param(-1); })},
      {"PriorityText", Code::INVALID_ARGUMENT, "parameters[\"priority\"]: not an integer",
       parameter("priority", [](auto& p) { p.set_string_param("1"); })},
      {"PriorityBool", Code::INVALID_ARGUMENT, "parameters[\"priority\"]: not an integer",
       parameter("priority", [](auto& p) { p.set_bool_param(true); })},
      {"Timeout", Code::INVALID_ARGUMENT, "parameters[\"timeout\"]: -1, wanted from 0 to",
       parameter("timeout", [](auto& p) { p.set_int64_param(-1); })},
      {"TimeoutOverflow", Code::INVALID_ARGUMENT,
       "parameters[\"timeout\"]: 18446744073709551615, wanted from 0 to 9223372036854775",
       parameter("timeout", [](auto& p) { p.set_uint64_param(~std::uint64_t{0}); })},
      {"TimeoutInDoubles", Code::INVALID_ARGUMENT, "parameters[\"timeout\"]: not an integer",
       parameter("timeout", [](auto& p) { p.set_double_param(1); })},
      {"LongParameter", Code::INVALID_ARGUMENT,
       "parameters[\"mine\"]: 1048576 bytes, wanted at most 1024",
       parameter("mine", [](auto& p) { p.set_string_param(std::string(1 << 20, 'p')); })},
      {"Classification", Code::INVALID_ARGUMENT,
       "outputs[0].parameters[\"classification\"]: 3, wanted none",
       classes([](auto& p) { p.set_int64_param(3); })},
      {"ClassificationText", Code::INVALID_ARGUMENT,
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
    faults.push_back({absl::StrCat("Input", one.name), Code::INVALID_ARGUMENT,
                      absl::StrCat("inputs[0].parameters", one.text),
                      [shared, one](InferRequest& r) {
                        one.set(shared(r.mutable_inputs(0), one.key));
                        r.clear_raw_input_contents();
                      }});
    faults.push_back(
        {absl::StrCat("Output", one.name), Code::INVALID_ARGUMENT,
         absl::StrCat("outputs[0].parameters", one.text),
         [shared, one](InferRequest& r) { one.set(shared(r.add_outputs(), one.key)); }});
  }
  return faults;
}

// Bytes and contents that are matched to the wrong one of two inputs.
std::vector<Fault> TwoInputFaults() {
  return {
      {"TheSumFitsAndTheirPartsDoNot", Code::INVALID_ARGUMENT,
       "input \"x\": data: 2048 bytes, wanted 4096",
       [](InferRequest& r) {
         std::string& x = *r.mutable_raw_input_contents(0);
         r.mutable_raw_input_contents(1)->append(x, 2048);
         x.resize(2048);
       }},
      {"AllInTheFirst", Code::INVALID_ARGUMENT, "input \"x\": data: 8192 bytes, wanted 4096",
       [](InferRequest& r) {
         r.mutable_raw_input_contents(0)->append(r.raw_input_contents(1));
         r.mutable_raw_input_contents(1)->clear();
       }},
      {"OneForTwo", Code::INVALID_ARGUMENT,
       "raw_input_contents: 1, wanted 2, one for each of inputs",
       [](InferRequest& r) { r.mutable_raw_input_contents()->RemoveLast(); }},
      {"OneTyped", Code::INVALID_ARGUMENT,
       "inputs[1].contents: fp32_contents beside raw_input_contents, wanted one of the two",
       [](InferRequest& r) { r.mutable_inputs(1)->mutable_contents()->add_fp32_contents(1); }},
      {"OnlyOneTyped", Code::INVALID_ARGUMENT, "raw_input_contents: 1, wanted 2",
       [](InferRequest& r) {
         r.mutable_inputs(1)->mutable_contents()->add_fp32_contents(1);
         r.mutable_raw_input_contents()->RemoveLast();
       }},
      {"OtherType", Code::INVALID_ARGUMENT, "input \"y\": dtype: float16, wanted float32",
       [](InferRequest& r) { r.mutable_inputs(1)->set_datatype("FP16"); }},
      {"SharedMemoryOfTheSecond", Code::UNIMPLEMENTED,
       "inputs[1].shared_memory: shared memory is switched off",
       [](InferRequest& r) {
         auto& parameters = *r.mutable_inputs(1)->mutable_parameters();
         parameters["shared_memory_region"].set_string_param("r");
         parameters["shared_memory_byte_size"].set_int64_param(4096);
         r.mutable_raw_input_contents()->RemoveLast();
       }},
      {"SharedMemoryOfAnotherSize", Code::INVALID_ARGUMENT,
       "input \"y\": shared_memory: byte_size 4095, wanted 4096 for shape",
       [](InferRequest& r) {
         auto& parameters = *r.mutable_inputs(1)->mutable_parameters();
         parameters["shared_memory_region"].set_string_param("r");
         parameters["shared_memory_byte_size"].set_int64_param(4095);
         r.mutable_raw_input_contents()->RemoveLast();
       }},
      {"BytesBesideSharedMemory", Code::INVALID_ARGUMENT,
       "raw_input_contents: 2, wanted 1, one for each of inputs that is not in shared memory",
       [](InferRequest& r) {
         auto& parameters = *r.mutable_inputs(1)->mutable_parameters();
         parameters["shared_memory_region"].set_string_param("r");
         parameters["shared_memory_byte_size"].set_int64_param(4096);
       }},
  };
}

class InferRefusalTest : public ::testing::Test {
 protected:
  grpc::Status Infer(const InferRequest& request) {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    return stub_->ModelInfer(&context, request, &response);
  }

  // Sends good requests and, between them, each fault's: alone, and in a stream that goes on.
  void RefusesEach(const std::vector<Fault>& faults, const InferRequest& good) {
    ASSERT_TRUE(Infer(good).ok());
    InferStreamClient stream(server_.NewChannel());
    for (const Fault& fault : faults) {
      SCOPED_TRACE(fault.name);
      InferRequest request = good;
      request.set_id(fault.name);
      fault.change(request);
      const grpc::Status status = Infer(request);
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
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_ =
      inference::GRPCInferenceService::NewStub(server_.NewChannel());
};

TEST_F(InferRefusalTest, WrongNames) { RefusesEach(NameFaults(), OneInput()); }
TEST_F(InferRefusalTest, WrongDatatypes) { RefusesEach(DatatypeFaults(), OneInput()); }
TEST_F(InferRefusalTest, ContentsOfTheWrongField) {
  RefusesEach(TypedContentsFaults(), OneInput());
}
TEST_F(InferRefusalTest, RawContentsThatDoNotFit) { RefusesEach(RawContentsFaults(), OneInput()); }
TEST_F(InferRefusalTest, WrongShapes) { RefusesEach(ShapeFaults(), OneInput()); }
TEST_F(InferRefusalTest, WrongParameters) { RefusesEach(ParameterFaults(), OneInput()); }
TEST_F(InferRefusalTest, WrongParametersOfRegions) {
  RefusesEach(RegionParameterFaults(), OneInput());
}
TEST_F(InferRefusalTest, ContentsOfTheWrongInput) { RefusesEach(TwoInputFaults(), TwoInputs()); }

TEST_F(InferRefusalTest, AMessageThatIsNoneHasItsErrorInTheStream) {
  testing::RawStream stream(server_.NewChannel(),
                            "/inference.GRPCInferenceService/ModelStreamInfer", "\x0b");
  const auto wire = stream.Read();
  ASSERT_TRUE(wire.has_value());
  inference::ModelStreamInferResponse response;
  ASSERT_TRUE(response.ParseFromString(*wire));
  EXPECT_THAT(response.error_message(), HasSubstr("malformed protobuf"));
}

}  // namespace
}  // namespace normd
