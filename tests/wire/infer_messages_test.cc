#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "inference/grpc_service.pb.h"
#include "tests/support/tensor.h"
#include "tests/wire/agreement.h"
#include "tests/wire/wire_writer.h"
#include "wire/infer_request.h"
#include "wire/infer_response.h"

namespace normd::testing {
namespace {

using ::normd::norm::testing::TestSeed;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ParameterKind = ReceivedParameter::Kind;

inference::ModelInferRequest OneInput() {
  inference::ModelInferRequest request;
  request.set_model_name("instance_norm_64");
  request.set_model_version("3");
  request.set_id("an id");
  auto& input = *request.add_inputs();
  input.set_name("x");
  input.set_datatype("FP16");
  for (const std::int64_t dim : {1, 200, 3}) input.add_shape(dim);
  request.add_raw_input_contents("the tensor's bytes");
  return request;
}

// What the decoder says of the message; "" when it accepts it.
std::string Refusal(const inference::ModelInferRequest& request) {
  const std::string wire = request.SerializeAsString();
  const Slices slices(wire, {});
  const auto view = DecodeInferRequest(slices.views());
  return view.ok() ? "" : std::string(view.status().message());
}

TEST(DecodeInferRequestTest, ReadsEveryFieldAndViewsRawContentsInPlace) {
  inference::ModelInferRequest request = OneInput();
  (*request.mutable_parameters())["priority"].set_uint64_param(1);
  (*request.mutable_parameters())["timeout"].set_int64_param(-7);
  (*request.mutable_parameters())["other"].set_string_param("dropped");
  request.add_outputs()->set_name("y");
  (*request.mutable_outputs(0)->mutable_parameters())["classification"].set_int64_param(5);
  const std::string wire = request.SerializeAsString();
  const Slices slices(wire, {});
  const auto view = DecodeInferRequest(slices.views());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->model, "instance_norm_64");
  EXPECT_EQ(view->version, "3");
  EXPECT_EQ(view->id, "an id");
  EXPECT_EQ(view->priority.kind, ParameterKind::kUint);
  EXPECT_EQ(view->priority.number, 1);
  EXPECT_EQ(view->timeout.number, -7);
  EXPECT_EQ(view->inputs[0].name, "x");
  EXPECT_EQ(view->inputs[0].datatype, "FP16");
  EXPECT_THAT(view->inputs[0].shape, ElementsAre(1, 200, 3));
  EXPECT_EQ(view->outputs[0].name, "y");
  EXPECT_EQ(view->outputs[0].classification.number, 5);
  ASSERT_EQ(view->inputs[0].data.size(), 1u);
  EXPECT_EQ(Join(view->inputs[0].data), "the tensor's bytes");
  const ConstBytes whole = slices.views()[0];
  const std::byte* data = view->inputs[0].data[0].data();
  EXPECT_TRUE(data > whole.data() && data < whole.data() + whole.size()) << "a view, not a copy";
}

TEST(DecodeInferRequestTest, PackedContentsAreViewsToo) {
  inference::ModelInferRequest request = OneInput();
  request.clear_raw_input_contents();
  for (int i = 0; i < 100; ++i) {
    request.mutable_inputs(0)->mutable_contents()->add_fp64_contents(1.5 * i);
  }
  const std::string wire = request.SerializeAsString();
  const Slices slices(wire, {});
  const auto view = DecodeInferRequest(slices.views());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->inputs[0].contents, InferContents::kFp64);
  EXPECT_EQ(view->inputs[0].data_bytes, 800);
  EXPECT_EQ(view->inputs[0].owned, nullptr);
  ASSERT_EQ(view->inputs[0].data.size(), 1u);
  const ConstBytes whole = slices.views()[0];
  const std::byte* data = view->inputs[0].data[0].data();
  EXPECT_TRUE(data > whole.data() && data < whole.data() + whole.size());
}

TEST(DecodeInferRequestTest, Int64ContentsAreBoundedAsTheyGrow) {
  inference::ModelInferRequest request = OneInput();
  request.clear_raw_input_contents();
  auto& contents = *request.mutable_inputs(0)->mutable_contents();
  for (int i = 0; i < 64 << 10; ++i) contents.add_int64_contents(i % 3 == 0 ? -i : i);
  const std::string wire = request.SerializeAsString();
  const Slices slices(wire, {});
  const auto view = DecodeInferRequest(slices.views());
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->inputs[0].contents, InferContents::kInt64);
  EXPECT_EQ(Join(view->inputs[0].data),
            std::string(reinterpret_cast<const char*>(contents.int64_contents().data()),
                        std::size_t{8} * (64 << 10)));
  contents.add_int64_contents(1);
  EXPECT_EQ(Refusal(request),
            "inputs[0].contents: more than 65536 in int64_contents, wanted raw_input_contents for "
            "so many");
}

TEST(DecodeInferRequestTest, ElementsThatAreNotPackedAreGathered) {
  const auto fixed32 = [](std::uint32_t value) {
    std::string field(1, static_cast<char>(6 << 3 | 5));
    for (int byte = 0; byte < 4; ++byte) field += static_cast<char>(value >> (8 * byte));
    return field;
  };
  const std::string contents =
      BytesField(6, "abcdefgh") + fixed32(0x64636261) + BytesField(6, "ijkl") + fixed32(0x68676665);
  const std::string wire = BytesField(5, BytesField(5, contents));
  for (std::size_t cut = 0; cut <= wire.size(); ++cut) {
    const Slices slices(wire, {cut});
    const auto view = DecodeInferRequest(slices.views());
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(Join(view->inputs[0].data), "abcdefghabcdijklefgh");
    EXPECT_EQ(view->inputs[0].data_bytes, 20);
    EXPECT_EQ(InferRequestDisagreement(wire, {cut}), "");
  }
}

TEST(DecodeInferRequestTest, RefusesWhatItCannotMatchToInputs) {
  inference::ModelInferRequest request = OneInput();
  request.add_raw_input_contents("more");
  EXPECT_EQ(Refusal(request), "raw_input_contents: 2, wanted 1, one for each of inputs");
  request = OneInput();
  *request.add_inputs() = request.inputs(0);
  EXPECT_EQ(Refusal(request), "raw_input_contents: 1, wanted 2, one for each of inputs");
  request.add_raw_input_contents("");
  request.mutable_inputs(1)->mutable_contents()->add_fp32_contents(1);
  EXPECT_EQ(Refusal(request),
            "inputs[1].contents: fp32_contents beside raw_input_contents, wanted one of the two");
  request.clear_raw_input_contents();
  request.mutable_inputs(1)->mutable_contents()->add_int_contents(1);
  EXPECT_EQ(Refusal(request),
            "inputs[1].contents: int_contents and fp32_contents, wanted at most one of them");
  request.clear_inputs();
  EXPECT_EQ(Refusal(request), "inputs: none, wanted at least one");
}

TEST(DecodeInferRequestTest, RefusesWhatIsOverACap) {
  inference::ModelInferRequest request = OneInput();
  request.set_id(std::string(1 << 20, 'i'));
  EXPECT_EQ(Refusal(request), "id: 1048576 bytes, wanted at most 1024");
  request.set_id(std::string(1024, 'i'));
  EXPECT_EQ(Refusal(request), "");
  request.set_model_version(std::string(129, '1'));
  EXPECT_EQ(Refusal(request), "model_version: 129 bytes, wanted at most 128");
  request = OneInput();
  request.mutable_inputs(0)->set_datatype(std::string(129, 'F'));
  EXPECT_EQ(Refusal(request), "inputs[0].datatype: 129 bytes, wanted at most 128");
  request = OneInput();
  for (int i = 0; i < 14; ++i) request.mutable_inputs(0)->add_shape(1);
  EXPECT_THAT(Refusal(request), HasSubstr("inputs[0].shape: more than 16 dimensions"));
  request = OneInput();
  (*request.mutable_parameters())[std::string(1025, 'p')].set_bool_param(true);
  EXPECT_EQ(Refusal(request), "parameters: 1025 bytes, wanted at most 1024");
  request = OneInput();
  (*request.mutable_outputs()->Add()->mutable_parameters())["k\n"].set_string_param(
      std::string(1025, 't'));
  EXPECT_EQ(Refusal(request), "outputs[0].parameters[\"k\\n\"]: 1025 bytes, wanted at most 1024");
  for (auto add : {+[](inference::ModelInferRequest& r) { r.add_inputs(); },
                   +[](inference::ModelInferRequest& r) { r.add_outputs(); },
                   +[](inference::ModelInferRequest& r) { r.add_raw_input_contents(); }}) {
    request = OneInput();
    for (int i = 0; i < 33; ++i) add(request);
    EXPECT_THAT(Refusal(request), HasSubstr("more than 32, wanted at most 32"));
  }
}

TEST(EncodeInferMessageTest, TheGeneratedClassReadsBackWhatWasWritten) {
  const std::int64_t shape[] = {2, 300};
  const InferTensorHeader tensors[] = {
      {"x", "FP32", shape, 5}, {"residual", "BF16", {}, 0}, {"gate", "FP32", {}, 0, {"r", 64, 8}}};
  InferMessageHead head;
  head.model = "a model";
  head.version = "12";
  head.id = "an id";
  head.priority = 1;
  head.timeout_us = 1'000'000;
  head.tensors = tensors;
  const WantedOutputHeader wanted[] = {{"y", {"r", 0, 16}}, {"mean"}};
  head.wanted_outputs = wanted;
  const auto request = EncodeInferRequest(head);
  ASSERT_TRUE(request.ok());
  inference::ModelInferRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(
      absl::StrCat(request->Part(0), "12345", request->Part(1), request->Part(2))));
  EXPECT_EQ(parsed.model_name(), "a model");
  EXPECT_EQ(parsed.model_version(), "12");
  EXPECT_EQ(parsed.id(), "an id");
  EXPECT_EQ(parsed.parameters().size(), 2u);
  EXPECT_EQ(parsed.parameters().at("priority").uint64_param(), 1u);
  EXPECT_EQ(parsed.parameters().at("timeout").int64_param(), 1'000'000);
  ASSERT_EQ(parsed.inputs_size(), 3);
  EXPECT_EQ(parsed.inputs(0).datatype(), "FP32");
  EXPECT_THAT(parsed.inputs(0).shape(), ElementsAre(2, 300));
  EXPECT_EQ(parsed.inputs(1).name(), "residual");
  EXPECT_THAT(parsed.raw_input_contents(), ElementsAre("12345", ""));
  ASSERT_EQ(parsed.outputs_size(), 2);
  const auto& in = parsed.inputs(2).parameters();
  EXPECT_EQ(in.at("shared_memory_region").string_param(), "r");
  EXPECT_EQ(in.at("shared_memory_offset").int64_param(), 64);
  EXPECT_EQ(in.at("shared_memory_byte_size").int64_param(), 8);
  EXPECT_EQ(parsed.outputs(0).name(), "y");
  const auto& out = parsed.outputs(0).parameters();
  EXPECT_EQ(out.at("shared_memory_region").string_param(), "r");
  EXPECT_EQ(out.count("shared_memory_offset"), 0U);
  EXPECT_EQ(out.at("shared_memory_byte_size").int64_param(), 16);
  EXPECT_EQ(parsed.outputs(1).name(), "mean");
  head.wanted_outputs = {};

  head.priority = head.timeout_us = 0;
  head.final_response = true;
  const EncodedMessage response = EncodeInferMessage(InferMessageKind::kStreamResponse, head);
  inference::ModelStreamInferResponse streamed;
  ASSERT_TRUE(streamed.ParseFromString(
      absl::StrCat(response.Part(0), "12345", response.Part(1), response.Part(2))));
  EXPECT_TRUE(streamed.infer_response().parameters().at("triton_final_response").bool_param());
  EXPECT_THAT(streamed.infer_response().raw_output_contents(), ElementsAre("12345", "", ""))
      << "of a response also those in shared memory";
}

// Awkward messages: every kind of parameter and of contents, some twice, two messages in a row.
std::string RandomInferRequest(std::mt19937_64& random) {
  const auto pick = [&random](std::uint64_t n) { return random() % n; };
  const char* const keys[] = {"priority", "timeout", "shared_memory_region", "classification", "k"};
  const auto set = [&](inference::InferParameter& parameter) {
    switch (pick(6)) {
      case 0: parameter.set_bool_param(pick(2) == 0); break;
      case 1: parameter.set_int64_param(static_cast<std::int64_t>(random())); break;
      case 2: parameter.set_string_param("text"); break;
      case 3: parameter.set_double_param(0.5); break;
      case 4: parameter.set_uint64_param(random()); break;
      default: break;
    }
  };
  inference::ModelInferRequest request;
  if (pick(2) == 0) request.set_model_name("m");
  if (pick(2) == 0) request.set_model_version("17");
  if (pick(2) == 0) request.set_id(std::string(pick(40), 'i'));
  while (pick(2) == 0) set((*request.mutable_parameters())[keys[pick(5)]]);
  do {
    auto& input = *request.add_inputs();
    if (pick(2) == 0) input.set_name("x");
    if (pick(2) == 0) input.set_datatype("FP32");
    while (pick(3) > 0) input.add_shape(static_cast<std::int64_t>(random() >> pick(64)));
    while (pick(4) == 0) set((*input.mutable_parameters())[keys[pick(5)]]);
    while (pick(3) == 0) {
      auto& contents = *input.mutable_contents();
      switch (pick(8)) {
        case 0: contents.add_bool_contents(true); break;
        case 1: contents.add_int_contents(-1); break;
        case 2: contents.add_int64_contents(-1); break;
        case 3: contents.add_uint_contents(1); break;
        case 4: contents.add_uint64_contents(random()); break;
        case 5: contents.add_bytes_contents("bytes"); break;
        case 6: contents.add_fp32_contents(1.5f); break;
        default: contents.add_fp64_contents(2.5); break;
      }
    }
  } while (pick(3) == 0);
  while (pick(3) == 0) {
    auto& output = *request.add_outputs();
    if (pick(2) == 0) output.set_name("y");
    while (pick(2) == 0) set((*output.mutable_parameters())[keys[pick(5)]]);
  }
  if (pick(2) == 0) {
    for (int i = 0; i < request.inputs_size(); ++i) {
      request.add_raw_input_contents(std::string(pick(30), 'r'));
    }
  }
  std::string wire = request.SerializeAsString();
  if (pick(4) == 0) wire += IntField(100, random()) + BytesField(3, "the last id counts");
  return wire;
}

TEST(InferMessagesTest, AgreeWithTheGeneratedClassesOnAwkwardMessagesAndTheirMutations) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 20'000; ++i) {
    std::string wire = RandomInferRequest(random);
    if (i % 8 == 0) wire += RandomInferRequest(random);
    for (std::size_t change = random() % 4; change > 0 && !wire.empty(); --change) {
      const std::size_t at = random() % wire.size();
      switch (random() % 3) {
        case 0: wire[at] = static_cast<char>(random()); break;
        case 1: wire.erase(at, 1 + random() % 3); break;
        default: wire.insert(at, 1, static_cast<char>(random())); break;
      }
    }
    const std::vector<std::size_t> cuts = RandomCuts(random, wire.size(), 5);
    ASSERT_EQ(InferRequestDisagreement(wire, cuts), "") << "message " << i;
    // Its fields are numbered as a request's, but for what ends it.
    ASSERT_EQ(InferResponseDisagreement(wire, cuts), "") << "message " << i;
  }
}

}  // namespace
}  // namespace normd::testing
