#include "wire/message_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "inference/grpc_service.pb.h"

namespace normd {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

TEST(MessageJsonTest, WritesMetadataWithEmptyFields) {
  inference::ModelMetadataResponse response;
  response.set_name("m\xff\"");
  auto& input = *response.add_inputs();
  input.set_name("x");
  input.add_shape(-1);
  input.add_shape(std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(WriteMessageJson(response),
            "{\"name\":\"m\xef\xbf\xbd\\\"\",\"versions\":[],\"platform\":\"\",\"inputs\":["
            "{\"name\":\"x\",\"datatype\":\"\",\"shape\":[-1,9223372036854775807]}],"
            "\"outputs\":[]}");
}

TEST(MessageJsonTest, WritesConfigs) {
  inference::ModelConfigResponse response;
  inference::ModelConfig& config = *response.mutable_config();
  config.mutable_version_policy()->mutable_specific()->add_versions(1);
  config.add_input()->set_data_type(inference::TYPE_BF16);
  config.mutable_dynamic_batching()->set_max_queue_delay_microseconds(
      std::numeric_limits<std::uint64_t>::max());
  (*config.mutable_dynamic_batching()->mutable_priority_queue_policy())[2].set_timeout_action(
      inference::ModelQueuePolicy::DELAY);
  (*config.mutable_parameters())["b"].set_string_value("2");
  (*config.mutable_parameters())["a"].set_string_value("1");
  const std::string text = WriteMessageJson(response, "config");
  EXPECT_THAT(text,
              HasSubstr(R"("version_policy":{"specific":{"versions":[1]}},"max_batch_size":0)"));
  EXPECT_THAT(text, HasSubstr(R"({"name":"","data_type":"TYPE_BF16","dims":[]})"));
  EXPECT_THAT(text, HasSubstr(R"("max_queue_delay_microseconds":18446744073709551615)"));
  EXPECT_THAT(text, HasSubstr(R"("priority_queue_policy":{"2":{"timeout_action":"DELAY")"));
  EXPECT_THAT(text,
              HasSubstr(R"("parameters":{"a":{"string_value":"1"},"b":{"string_value":"2"}})"));
}

TEST(MessageJsonTest, WritesStatisticsIndexAndRegions) {
  inference::ModelStatisticsResponse statistics;
  statistics.add_model_stats()->mutable_inference_stats()->mutable_success()->set_ns(
      std::uint64_t{1} << 63);
  EXPECT_EQ(
      WriteMessageJson(statistics),
      R"({"model_stats":[{"name":"","version":"","last_inference":0,"inference_count":0,)"
      R"("execution_count":0,"inference_stats":{"success":{"count":0,)"
      R"("ns":9223372036854775808}},"batch_stats":[],"memory_usage":[],"response_stats":{}}]})");
  inference::RepositoryIndexResponse index;
  EXPECT_EQ(WriteMessageJson(index, "models"), "[]");
  index.add_models()->set_state("READY");
  EXPECT_EQ(WriteMessageJson(index, "models"),
            R"([{"name":"","version":"","state":"READY","reason":""}])");
  inference::SystemSharedMemoryStatusResponse regions;
  EXPECT_EQ(WriteMessageJson(regions, "regions"), "[]");
  (*regions.mutable_regions())["b"].set_name("b");
  (*regions.mutable_regions())["a"].set_name("a");
  EXPECT_EQ(WriteMessageJson(regions, "regions"),
            R"([{"name":"a","key":"","offset":0,"byte_size":0},)"
            R"({"name":"b","key":"","offset":0,"byte_size":0}])");
}

TEST(MessageJsonTest, WritesSettingsAsTheirValues) {
  inference::TraceSettingResponse trace;
  (*trace.mutable_settings())["trace_level"].add_value("OFF");
  EXPECT_EQ(WriteMessageJson(trace, "settings"), R"({"trace_level":["OFF"]})");
  inference::LogSettingsResponse log;
  auto& settings = *log.mutable_settings();
  settings["log_file"].set_string_param("");
  settings["log_info"].set_bool_param(false);
  settings["log_verbose_level"].set_uint32_param(0);
  settings["unset"];
  EXPECT_EQ(WriteMessageJson(log, "settings"),
            R"({"log_file":"","log_info":false,"log_verbose_level":0,"unset":null})");
}

template <typename Message>
void ExpectRead(absl::string_view text, const Message& wanted, absl::string_view field = "") {
  Message message;
  const absl::Status status = ReadMessageJson(text, message, field);
  ASSERT_TRUE(status.ok()) << text << ": " << status;
  EXPECT_TRUE(MessageDifferencer::Equals(message, wanted)) << message.DebugString();
}

TEST(MessageJsonTest, ReadsRequests) {
  inference::RepositoryIndexRequest index;
  ExpectRead("{}", index);
  index.set_ready(true);
  ExpectRead(R"({"ready":true,"unknown":{"a":[1]}})", index);
  inference::RepositoryModelLoadRequest load;
  auto& parameters = *load.mutable_parameters();
  parameters["config"].set_string_param("{}");
  parameters["number"].set_int64_param(-5);
  parameters["flag"].set_bool_param(true);
  ExpectRead(R"({"parameters":{"config":"{}","number":-5,"flag":true}})", load);
  inference::SystemSharedMemoryRegisterRequest region;
  region.set_key("/k\xc3\xa9");
  region.set_byte_size(std::numeric_limits<std::uint64_t>::max());
  ExpectRead(R"({"key":"/k\u00e9","offset":0,"byte_size":18446744073709551615})", region);
  inference::CudaSharedMemoryRegisterRequest device;
  device.set_raw_handle(std::string("\0\1\xff", 3));
  device.set_device_id(1);
  ExpectRead(R"({"raw_handle":{"b64":"AAH/"},"device_id":1})", device);
  ExpectRead(R"({"raw_handle":"AAH/","device_id":1})", device);
}

TEST(MessageJsonTest, ReadsSettings) {
  inference::TraceSettingRequest trace;
  auto& settings = *trace.mutable_settings();
  settings["trace_level"].add_value("TIMESTAMPS");
  settings["trace_level"].add_value("TENSORS");
  settings["trace_rate"].add_value("5");
  settings["trace_file"];
  ExpectRead(R"({"trace_level":["TIMESTAMPS","TENSORS"],"trace_rate":"5","trace_file":null})",
             trace, "settings");
  inference::LogSettingsRequest log;
  (*log.mutable_settings())["log_info"].set_bool_param(false);
  (*log.mutable_settings())["log_verbose_level"].set_uint32_param(2);
  (*log.mutable_settings())["log_file"].set_string_param("f");
  ExpectRead(R"({"log_info":false,"log_verbose_level":2,"log_file":"f"})", log, "settings");
}

template <typename Message>
void ExpectRefused(absl::string_view text, absl::string_view error, absl::string_view field = "") {
  Message message;
  EXPECT_EQ(ReadMessageJson(text, message, field), absl::InvalidArgumentError(error)) << text;
}

TEST(MessageJsonTest, RefusesWhatDoesNotFit) {
  using Region = inference::SystemSharedMemoryRegisterRequest;
  for (const absl::string_view text :
       {"", "[]", "1", "null", "{", "{}}", "{\"key\":\"\xff\"}", "{\"key\":NaN}"}) {
    ExpectRefused<Region>(text, "request: malformed, wanted a JSON object");
  }
  ExpectRefused<Region>(R"({"offset":0,"key":1})", "key: 1, wanted text");
  ExpectRefused<Region>(R"({"key":["a"]})", "key: an array, wanted text");
  ExpectRefused<Region>(R"({"unknown":1,"byteSize":"x"})",
                        "byte_size: text, wanted an integer from 0 to 18446744073709551615");
  for (const absl::string_view offset : {"-1", "1.5", "18446744073709551616", "\"x\"", "true"}) {
    Region message;
    EXPECT_THAT(
        std::string(ReadMessageJson(absl::StrCat("{\"offset\":", offset, "}"), message).message()),
        ::testing::MatchesRegex("offset: .*, wanted an integer from 0 to 18446744073709551615"));
  }
  ExpectRefused<inference::RepositoryIndexRequest>(R"({"ready":1})",
                                                   "ready: 1, wanted true or false");
  using Load = inference::RepositoryModelLoadRequest;
  ExpectRefused<Load>(R"({"parameters":[]})", "parameters: an array, wanted an object");
  ExpectRefused<Load>(R"({"parameters":{"a":[]}})",
                      "parameters[\"a\"]: an array, wanted true, false, an integer or text");
  ExpectRefused<Load>(R"({"parameters":{"b":1,"a":1.5}})",
                      "parameters[\"a\"]: 1.5, wanted an integer from -9223372036854775808 to "
                      "9223372036854775807");
  ExpectRefused<inference::CudaSharedMemoryRegisterRequest>(
      R"({"raw_handle":{"b64":"*"}})", "raw_handle: \"*\", wanted text in base64");
  ExpectRefused<inference::LogSettingsRequest>(
      R"({"log_verbose_level":4294967296})",
      "settings[\"log_verbose_level\"]: 4294967296, wanted an integer from 0 to 4294967295",
      "settings");
  ExpectRefused<inference::TraceSettingRequest>(
      R"({"trace_level":[{}]})",
      "settings[\"trace_level\"]: an array, wanted text, or an array of text", "settings");
}

// What walks over values recurses: neither a deep text nor a deep unknown value may end the
// process.
TEST(MessageJsonTest, RefusesDeepText) {
  inference::RepositoryIndexRequest index;
  for (const int depth : {20, 200, 1'000'000}) {
    const std::string open(static_cast<std::size_t>(depth), '[');
    const std::string close(static_cast<std::size_t>(depth), ']');
    EXPECT_TRUE(absl::IsInvalidArgument(ReadMessageJson(open, index)));
    EXPECT_TRUE(
        absl::IsInvalidArgument(ReadMessageJson(absl::StrCat("{\"a\":", open, close, "}"), index)));
    std::string objects;
    for (int i = 0; i < depth; ++i) objects += "{\"a\":";
    EXPECT_TRUE(absl::IsInvalidArgument(ReadMessageJson(objects, index)));
  }
}

}  // namespace
}  // namespace normd
