// Which bodies are inference requests, and what they say.

#include "wire/infer_json_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/wire/infer_json_body.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

// Prints numbers from 0 on as nested arrays of this shape.
std::string Nested(const std::vector<int>& shape, std::size_t level, int& next) {
  if (level == shape.size()) return absl::StrCat(next++);
  std::vector<std::string> parts;
  for (int i = 0; i < shape[level]; ++i) parts.push_back(Nested(shape, level + 1, next));
  return absl::StrCat("[", absl::StrJoin(parts, " , "), "\n]");
}

TEST(InferJsonRequestTest, TakesDataFlatOrNestedAsItsShape) {
  for (const std::vector<int>& shape : std::vector<std::vector<int>>{
           {1}, {7}, {2, 3}, {1, 1}, {3, 1, 2}, {0}, {2, 0}, {0, 2}, {2, 0, 3}, {2, 2, 2, 2, 2}}) {
    int count = 0;
    const std::string nested = Nested(shape, 0, count);
    int unused = 0;
    const std::string flat = Nested({count}, 0, unused);
    for (const absl::string_view type : {"FP32", "FP64", "FP16", "BF16", "INT8", "INT64"}) {
      const std::string dims = absl::StrCat("[", absl::StrJoin(shape, ","), "]");
      const auto from_flat = BytesOf(type, dims, flat);
      const auto from_nested = BytesOf(type, dims, nested);
      ASSERT_TRUE(from_flat.ok()) << from_flat.status();
      ASSERT_TRUE(from_nested.ok()) << from_nested.status();
      EXPECT_EQ(*from_flat, *from_nested);
      if (type != "INT8") continue;
      ASSERT_EQ(from_flat->size(), static_cast<std::size_t>(count));
      for (int i = 0; i < count; ++i) EXPECT_EQ((*from_flat)[static_cast<std::size_t>(i)], i);
    }
  }
  EXPECT_EQ(*BytesOf("INT8", "[]", "[5]"), std::string(1, '\5'));  // A scalar.
}

TEST(InferJsonRequestTest, RefusesAnotherNesting) {
  const std::pair<absl::string_view, absl::string_view> cases[] = {
      {"[1,2,3]", "inputs[0].data: 3 elements, wanted 4, as its shape says"},
      {"[1,2,3,4,5]", "inputs[0].data: more than 4 elements, wanted 4, as its shape says"},
      {"[]", "inputs[0].data: 0 elements, wanted 4, as its shape says"},
      {"[     ]", "inputs[0].data: 0 elements, wanted 4, as its shape says"},
      {"[[1,2]]", "inputs[0].data: 1 elements, wanted 2, as its shape says"},
      {"[[1,2],[3,4],[5,6]]", "inputs[0].data: more than 2 elements, wanted 2, as its shape says"},
      {"[[]]", "inputs[0].data[0]: 0 elements, wanted 2, as its shape says"},
      {"[1,2,3,4,]", "request: malformed JSON in inputs[0].data[4] near byte 71"},
      {"[[1,2],[3,4],]", "request: malformed JSON in inputs[0].data[2] near byte 75"},
      {"[[1,2],[3]]", "inputs[0].data[1]: 1 elements, wanted 2, as its shape says"},
      {"[[1,2],[3,4,5]]", "inputs[0].data[1]: more than 2 elements, wanted 2, as its shape says"},
      {"[[1,2],3,4]", "inputs[0].data[1]: 3, wanted an array"},
      {"[1,2,[3,4]]", "inputs[0].data[2]: an array, wanted a finite FP32 number"},
      {"[[[1],[2]],[3,4]]", "inputs[0].data[0][0]: an array, wanted a finite FP32 number"},
      {"4", "inputs[0].data: 4, wanted an array"},
      {"\"AAAA\"", "inputs[0].data: text, wanted an array"}};
  for (const auto& [data, error] : cases) {
    EXPECT_EQ(BytesOf("FP32", "[2,2]", data).status().message(), error) << data;
  }
}

TEST(InferJsonRequestTest, ReadsFieldsInAnyOrder) {
  const Decoded decoded = Decode(
      R"( { "outputs" : [ { "parameters" : { "binary_data" : false } , "name" : "y" },)"
      R"( {"name":"z"}, {"name":"w","parameters":{"classification":3}} ],)"
      R"( "parameters":{"binary_data_output":true,"priority":1,"timeout":18446744073709551615},)"
      R"( "inputs":[{"data":[[1,2]],"shape":[1,2],"parameters":{"a":1.5,"b":null0},"datatype":)"
      R"("INT8","n\u0061me":"x\u00e9\n"}],"id":"\"q\"" } )");
  EXPECT_FALSE(decoded.request.ok());  // null0
  const Decoded right = Decode(
      R"( { "outputs" : [ { "parameters" : { "binary_data" : false } , "name" : "y" },)"
      R"( {"name":"z"}, {"name":"w","parameters":{"classification":3}} ],)"
      R"( "parameters":{"binary_data_output":true,"priority":1,"timeout":18446744073709551615},)"
      R"( "inputs":[{"data":[[1,2]],"shape":[1,2],"parameters":{"a":1.5,"b":"c"},"datatype":)"
      R"("INT8","n\u0061me":"x\u00e9\n"}],"id":"\"q\"" } )");
  ASSERT_TRUE(right.request.ok()) << right.request.status();
  const InferRequestView& view = right.request->view;
  EXPECT_EQ(view.id, "\"q\"");
  EXPECT_EQ(view.priority.number, 1);
  EXPECT_TRUE(view.timeout.IsHuge());
  EXPECT_EQ(view.timeout.Digits(), "18446744073709551615");
  ASSERT_EQ(view.inputs.size(), 1u);
  EXPECT_EQ(view.inputs[0].name, "x\xc3\xa9\n");
  EXPECT_EQ(BytesOf(view.inputs[0]), "\1\2");
  ASSERT_EQ(view.outputs.size(), 3u);
  EXPECT_EQ(view.outputs[2].classification.number, 3);
  EXPECT_THAT(right.request->binary, ::testing::ElementsAre(false, true, true));
  EXPECT_TRUE(right.request->all_binary);
}

TEST(InferJsonRequestTest, KeepsSharedMemoryAsGrpcDoes) {
  const Decoded decoded =
      Decode(R"({"inputs":[{"name":"x","parameters":{"shared_memory_region":"r",)"
             R"("shared_memory_byte_size":8,"shared_memory_offset":-1}},)"
             R"({"name":"y","parameters":{"shared_memory_what":true}}],)"
             R"("outputs":[{"name":"z","parameters":{"shared_memory_region":7}}]})");
  ASSERT_TRUE(decoded.request.ok()) << decoded.request.status();
  const InferRequestView& view = decoded.request->view;
  ASSERT_NE(view.inputs[0].shared_memory, nullptr);
  EXPECT_EQ(view.inputs[0].shared_memory->region.text, "r");
  EXPECT_EQ(view.inputs[0].shared_memory->byte_size.number, 8);
  EXPECT_EQ(view.inputs[0].shared_memory->offset.number, -1);
  EXPECT_EQ(view.inputs[1].shared_memory->unknown, "shared_memory_what");
  EXPECT_EQ(view.outputs[0].shared_memory->region.kind, ReceivedParameter::Kind::kInt);
}

TEST(InferJsonRequestTest, LeavesBinaryTensorsWhereTheyAre) {
  const std::string text =
      R"({"inputs":[{"name":"a","parameters":{"binary_data_size":3}},{"name":"b","datatype":"INT8",)"
      R"("shape":[1],"data":[7]},{"name":"c","parameters":{"binary_data_size":0}},)"
      R"({"name":"d","parameters":{"binary_data_size":2}}]})";
  const Decoded decoded = Decode(text, "abcde", true);
  ASSERT_TRUE(decoded.request.ok()) << decoded.request.status();
  const ReceivedInferTensors& inputs = decoded.request->view.inputs;
  EXPECT_EQ(BytesOf(inputs[0]), "abc");
  EXPECT_EQ(BytesOf(inputs[1]), "\7");
  EXPECT_EQ(BytesOf(inputs[2]), "");
  EXPECT_EQ(BytesOf(inputs[3]), "de");
  EXPECT_EQ(inputs[0].data[0].data(), decoded.body.view().bytes.data() + text.size());
  EXPECT_EQ(inputs[0].owned, nullptr);

  EXPECT_THAT(std::string(Decode(text, "abcdef", true).request.status().message()),
              HasSubstr("1 bytes after the last binary tensor"));
  EXPECT_THAT(std::string(Decode(text, "abcd", true).request.status().message()),
              HasSubstr("inputs[3].parameters[\"binary_data_size\"]: 2, wanted at most 1"));
  EXPECT_FALSE(Decode(text).request.ok());
  for (const absl::string_view size : {"-1", "9223372036854775807", "18446744073709551615", "1.5",
                                       "\"3\"", "true", "null", "[3]"}) {
    const std::string bad =
        absl::StrCat(R"({"inputs":[{"name":"a","parameters":{"binary_data_size":)", size, "}}]}");
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(bad, "abc", true).request.status())) << size;
  }
  EXPECT_THAT(std::string(Decode(R"({"inputs":[{"data":[1],"parameters":{"binary_data_size":1}}]})",
                                 "a", true)
                              .request.status()
                              .message()),
              HasSubstr("inputs[0].data: beside binary_data_size"));
}

TEST(InferJsonRequestTest, ChecksTheLengthOfTheText) {
  Body body(R"({"inputs":[{}]})");
  for (const std::int64_t length :
       {std::int64_t{-1}, std::int64_t{16}, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    InferJsonBody view = body.view();
    view.json_bytes = length;
    const absl::Status status = DecodeInferJson(view, TakeAll).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Inference-Header-Content-Length"));
  }
  for (std::int64_t length = 0; length < 15; ++length) {
    InferJsonBody view = body.view();
    view.json_bytes = length;
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeInferJson(view, TakeAll).status())) << length;
  }
}

// Each beginning of a good body is refused, and so is each with a byte more.
TEST(InferJsonRequestTest, RefusesWhatIsNotOneJsonObject) {
  const std::string good = R"({"id":"\u00e9","inputs":[{"data":[[1.5e3],[-2]],"name":"x",)"
                           R"("datatype":"FP32","shape":[2,1]}],"more":[true,{"a":null}]})";
  ASSERT_TRUE(Decode(good).request.ok());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(good.substr(0, size)).request.status())) << size;
  }
  for (const absl::string_view more : {"}", "{}", ",", "1", "null", "\"\"", "]", "x", "\xff"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(good + std::string(more)).request.status())) << more;
  }
  for (const absl::string_view text : {"[]",
                                       "1",
                                       "null",
                                       "\"\"",
                                       " ",
                                       "\xef\xbb\xbf{}",
                                       "{\"inputs\":[{}],}",
                                       "{,}",
                                       "{\"a\"}",
                                       "{\"a\":}",
                                       "{a:1}",
                                       "{'a':1}",
                                       "{\"inputs\":[{},]}",
                                       "{\"inputs\":[{}]",
                                       "{\"a\":[1}",
                                       "{\"a\":{]}",
                                       "{\"a\":\"\\x\"}",
                                       "{\"a\":\"\\ud800\"}",
                                       "{\"a\":\"\n\"}",
                                       "{\"a\":\"\xc3\"}",
                                       "{\"\\ud83d\":1}",
                                       "{\"a\":tru}",
                                       "{\"a\":1.}",
                                       "{\"a\":[1 2]}",
                                       "{\"a\" 1}",
                                       "{1:1}",
                                       "//\n{}",
                                       "{\"inputs\":[{\"name\":\"\\u00\"}]}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Decode(text).request.status())) << text;
  }
}

// What is behind a text that is cut off belongs to it least of all when it would complete it.
TEST(InferJsonRequestTest, ReadsNothingBehindTheText) {
  const std::string good = R"({"inputs":[{"parameters":{"binary_data_size":0},"shape":[2,1]},{}],)"
                           R"("outputs":[{"name":"y"}],"parameters":{"a":1},"b":{}})";
  for (std::size_t size = 0; size < good.size(); ++size) {
    for (const std::string& behind : {good.substr(size), std::string("}"), std::string("]}"),
                                      std::string(","), std::string(",{"), std::string("}}}}")}) {
      EXPECT_TRUE(
          absl::IsInvalidArgument(Decode(good.substr(0, size), behind, true).request.status()))
          << good.substr(0, size);
    }
  }
}

TEST(InferJsonRequestTest, NamesTheFieldThatItRefuses) {
  const std::string long_text(2000, 'a');
  const std::pair<std::string, std::string> cases[] = {
      {R"({})", "inputs: none, wanted at least one"},
      {R"({"inputs":[]})", "inputs: none, wanted at least one"},
      {R"({"inputs":{}})", "inputs: an object, wanted an array"},
      {R"({"inputs":[1]})", "inputs[0]: 1, wanted an object"},
      {R"({"inputs":[{},null]})", "inputs[1]: null, wanted an object"},
      {R"({"inputs":[{"name":1}]})", "inputs[0].name: 1, wanted text"},
      {R"({"inputs":[{"datatype":[]}]})", "inputs[0].datatype: an array, wanted text"},
      {R"({"inputs":[{"shape":1}]})", "inputs[0].shape: 1, wanted an array"},
      {R"({"inputs":[{"shape":["1"]}]})", "inputs[0].shape: text, wanted integers of 64 bits"},
      {R"({"inputs":[{"shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]})",
       "inputs[0].shape: more than 16 dimensions, wanted at most 16"},
      {R"({"inputs":[{"name":"a","name":"a"}]})", "inputs[0]: name twice, wanted it once"},
      {R"({"inputs":[{"data":[],"data":[]}]})", "inputs[0]: data twice, wanted it once"},
      {R"({"inputs":[{}],"inputs":[{}]})", "inputs twice, wanted it once"},
      {R"({"id":"a","id":"a"})", "id twice, wanted it once"},
      {R"({"id":1})", "id: 1, wanted text"},
      {R"({"parameters":{"priority":1,"priority":1}})",
       "parameters: priority twice, wanted it once"},
      {R"({"parameters":[]})", "parameters: an array, wanted an object"},
      {R"({"parameters":{"a":[]}})",
       "parameters[\"a\"]: an array, wanted true, false, a number or text"},
      {R"({"parameters":{"priority":null}})", "parameters[\"priority\"]: null, wanted an integer"},
      {R"({"parameters":{"binary_data_output":{}}})",
       "parameters[\"binary_data_output\"]: an object, wanted true or false"},
      {R"({"inputs":[{"parameters":{"shared_memory_region":[]}}]})",
       "inputs[0].parameters[\"shared_memory_region\"]: an array, wanted text"},
      {R"({"parameters":{"binary_data_output":1}})",
       "parameters[\"binary_data_output\"]: not a boolean, wanted true or false"},
      {R"({"outputs":[{"parameters":{"binary_data":"true"}}]})",
       "outputs[0].parameters[\"binary_data\"]: not a boolean, wanted true or false"},
      {R"({"outputs":1})", "outputs: 1, wanted an array"},
      {absl::StrCat(R"({"id":")", long_text, "\"}"), "id: 2000 bytes, wanted at most 1024"},
      {absl::StrCat(R"({"inputs":[{"name":")", long_text, "\"}]}"),
       "inputs[0].name: 2000 bytes, wanted at most 128"},
      {absl::StrCat(R"({"parameters":{")", long_text, R"(":1}})"),
       "parameters: 2000 bytes, wanted at most 1024"},
      {absl::StrCat(R"({"parameters":{"a":")", long_text, "\"}}"),
       "parameters[\"a\"]: 2000 bytes, wanted at most 1024"}};
  for (const auto& [text, error] : cases) EXPECT_EQ(ErrorOf(text), error) << text;
}

TEST(InferJsonRequestTest, SaysWhereATextIsBroken) {
  const std::pair<absl::string_view, absl::string_view> cases[] = {
      {R"({"inputs":[{"name":"x"}]}x)", "request: malformed JSON near byte 25"},
      {R"({"inputs":[{"name":"x")", "request: malformed JSON near byte 21"},
      {R"({"inputs":[{"name":"x)", "request: malformed JSON near byte 20"},
      {R"({"inputs":[{"shape":[1,]}]})", "request: malformed JSON in inputs[0].shape near byte 23"},
  };
  for (const auto& [text, error] : cases) EXPECT_EQ(ErrorOf(text), error) << text;
}

TEST(InferJsonRequestTest, LimitsListsAndDepth) {
  const auto list = [](absl::string_view name, int count) {
    return absl::StrCat(
        "{\"", name, "\":[",
        absl::StrJoin(std::vector<std::string>(static_cast<std::size_t>(count), "{}"), ","), "]}");
  };
  EXPECT_TRUE(Decode(list("inputs", 32)).request.ok());
  EXPECT_EQ(ErrorOf(list("inputs", 33)), "inputs: more than 32, wanted at most 32");
  EXPECT_EQ(ErrorOf(list("outputs", 33)), "outputs: more than 32, wanted at most 32");
  const auto deep = [](std::size_t depth) {
    return absl::StrCat(R"({"inputs":[{}],"a":)", std::string(depth, '['), std::string(depth, ']'),
                        "}");
  };
  EXPECT_TRUE(Decode(deep(100)).request.ok());
  EXPECT_THAT(ErrorOf(deep(101)), HasSubstr("more than 100 levels"));
  EXPECT_THAT(ErrorOf(deep(1'000'000)), HasSubstr("more than 100 levels"));
  const std::string many(1'000'000, '[');
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(absl::StrCat("{\"a\":", many)).request.status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(many).request.status()));
  EXPECT_FALSE(BytesOf("FP32", "[1,1]", std::string(100'000, '[')).ok());
}

// What cannot be read for what it is, is looked at and dropped, and refused later, in gRPC's words.
TEST(InferJsonRequestTest, DropsDataOfUnknownTypesAndImpossibleShapes) {
  for (const auto& [type, shape] :
       std::vector<std::pair<std::string, std::string>>{{"FP8", "[1]"},
                                                        {"BYTES", "[1]"},
                                                        {"", "[1]"},
                                                        {"FP32", "[-1]"},
                                                        {"FP32", "[4294967296,4294967296]"}}) {
    const auto bytes = BytesOf(type, shape, R"([1,"a",[null],{"b":true}])");
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, "");
    EXPECT_FALSE(BytesOf(type, shape, "[1,NaN]").ok());
  }
}

TEST(InferJsonRequestTest, DropsDataWithoutAShape) {
  const Decoded decoded = Decode(R"({"inputs":[{"datatype":"FP32","data":[1,2]}]})");
  ASSERT_TRUE(decoded.request.ok()) << decoded.request.status();
  EXPECT_TRUE(decoded.request->view.inputs[0].shape.empty());
  EXPECT_THAT(ErrorOf(R"({"inputs":[{"datatype":"FP32","data":[1,NaN]}]})"),
              "inputs[0].data: NaN, wanted a JSON value");
}

TEST(InferJsonRequestTest, AsksBeforeItTakesMemory) {
  const std::string text =
      R"({"inputs":[{"name":"x","datatype":"FP64","shape":[3],"data":[1,2,3]},)"
      R"({"name":"x","datatype":"INT8","shape":[2],"data":[1,2]}]})";
  const Body body(text);
  std::vector<std::int64_t> asked;
  const auto request = DecodeInferJson(body.view(), [&](std::int64_t bytes) {
    asked.push_back(bytes);
    return absl::OkStatus();
  });
  ASSERT_TRUE(request.ok());
  const auto index = static_cast<std::int64_t>(text.size() * 5);
  EXPECT_THAT(asked, ::testing::ElementsAre(index, 24, 2));
  EXPECT_EQ(request->freed_bytes, index);
  for (std::size_t refused = 0; refused < 3; ++refused) {
    std::size_t calls = 0;
    const absl::Status status =
        DecodeInferJson(body.view(), [&](std::int64_t) {
          return calls++ == refused ? absl::ResourceExhaustedError("none left") : absl::OkStatus();
        }).status();
    EXPECT_EQ(status, absl::ResourceExhaustedError("none left"));
    EXPECT_EQ(calls, refused + 1);
  }
  // A shape alone takes no memory.
  EXPECT_THAT(std::string(BytesOf("FP64", "[1000000000000]", "[1,2]").status().message()),
              HasSubstr("wanted 1000000000000, as its shape says"));
}

}  // namespace
}  // namespace normd
