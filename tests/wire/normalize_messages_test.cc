#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "normd/v1/norm_service.pb.h"
#include "tests/support/tensor.h"
#include "tests/wire/agreement.h"
#include "tests/wire/wire_writer.h"
#include "wire/normalize_request.h"
#include "wire/normalize_response.h"

namespace normd::testing {
namespace {

using ::normd::norm::testing::TestSeed;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// With a sanitizer wire_fuzzer (tests/fuzz/run.sh) makes hundreds of thousands of the same
// comparisons.
#ifdef NORMD_SANITIZED
constexpr int kMessages = 4000, kMutatedMessages = 10000;
#else
constexpr int kMessages = 20000, kMutatedMessages = 50000;
#endif

// What the codec says of `wire` in one slice; "" when it accepts it.
std::string Refusal(absl::string_view wire) {
  const Slices slices(wire, {});
  const auto request = DecodeNormalizeRequest(slices.views());
  if (request.ok()) return "";
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(request.status().message());
}

std::string SmallRequest() {
  v1::NormalizeRequest request;
  request.set_model("instance_norm_64");
  request.set_version(300);
  v1::Tensor& input = *request.add_inputs();
  input.set_name("x");
  input.set_dtype(v1::FLOAT16);
  for (const std::int64_t dim : {1, 200, 3}) input.add_shape(dim);
  input.set_data("the tensor's bytes");
  return request.SerializeAsString();
}

TEST(DecodeNormalizeRequestTest, ReadsEveryFieldAndViewsTheDataInPlace) {
  const std::string wire = SmallRequest();
  const Slices slices(wire, {});
  const auto request = DecodeNormalizeRequest(slices.views());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->model, "instance_norm_64");
  EXPECT_EQ(request->version, 300);
  EXPECT_EQ(request->inputs[0].name, "x");
  EXPECT_EQ(request->inputs[0].dtype, v1::FLOAT16);
  EXPECT_THAT(request->inputs[0].shape, ElementsAre(1, 200, 3));
  EXPECT_EQ(Join(request->inputs[0].data), "the tensor's bytes");
  ASSERT_EQ(request->inputs[0].data.size(), 1u);
  const ConstBytes whole = slices.views()[0];
  EXPECT_EQ(request->inputs[0].data[0].data() + request->inputs[0].data[0].size(),
            whole.data() + whole.size())
      << "a view, not a copy";
}

TEST(DecodeNormalizeRequestTest, ReadsHowTheRequestWaitsAndKeepsUnknownPriorities) {
  const std::string wire = SmallRequest();
  const Slices plain(wire, {});
  const auto absent = DecodeNormalizeRequest(plain.views());
  ASSERT_TRUE(absent.ok()) << absent.status();
  EXPECT_EQ(absent->priority, v1::PRIORITY_UNSPECIFIED);
  EXPECT_EQ(absent->queue_timeout_ns, 0);

  const Slices slices(absl::StrCat(wire, IntField(4, 77), IntField(5, 5'000'000)), {});
  const auto request = DecodeNormalizeRequest(slices.views());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(static_cast<int>(request->priority), 77);
  EXPECT_EQ(request->queue_timeout_ns, 5'000'000);
}

TEST(DecodeNormalizeRequestTest, ReadsTheSameWhereverASmallMessageIsCutInThree) {
  const std::string wire = SmallRequest();
  for (std::size_t a = 0; a <= wire.size(); ++a) {
    for (std::size_t b = a; b <= wire.size(); ++b) {
      ASSERT_EQ(RequestDisagreement(wire, {a, b}), "") << "cut at " << a << " and " << b;
    }
  }
}

TEST(DecodeNormalizeRequestTest, ReadsTheSameFromSlicesOfOneByteWithEmptyOnesBetween) {
  const std::string wire = SmallRequest();
  std::vector<std::size_t> cuts;
  for (std::size_t i = 0; i <= wire.size(); ++i) cuts.insert(cuts.end(), {i, i});
  const Slices slices(wire, cuts);
  ASSERT_EQ(RequestDisagreement(wire, cuts), "");
}

TEST(DecodeNormalizeRequestTest, RefusesEveryProperPrefixThatProtobufRefuses) {
  const std::string wire = SmallRequest();
  for (std::size_t size = 0; size < wire.size(); ++size) {
    EXPECT_EQ(RequestDisagreement(wire.substr(0, size), {}), "") << "prefix of " << size;
  }
  EXPECT_THAT(Refusal(wire.substr(0, wire.size() - 1)),
              HasSubstr("request: malformed protobuf in inputs[0]"));
}

// Changes, repeats and drops some of the bytes.
void Mutate(std::string& wire, std::mt19937_64& random) {
  auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  for (auto edits = 1 + below(4); edits > 0 && !wire.empty(); --edits) {
    const std::size_t at = below(wire.size());
    switch (below(5)) {
      case 0: wire[at] = static_cast<char>(random()); break;
      case 1: wire[at] = static_cast<char>(wire[at] ^ (1 << below(8))); break;
      case 2: wire.erase(at, 1 + below(8)); break;
      case 3: wire.insert(at, wire.substr(below(wire.size()), below(12))); break;
      default: wire.resize(at); break;
    }
  }
}

// Messages as they are made, and then mutated ones.
void ExpectAgreement(std::uint64_t seed, std::string (*make)(std::mt19937_64&),
                     decltype(&RequestDisagreement) disagreement) {
  for (const bool mutated : {false, true}) {
    std::mt19937_64 random(TestSeed() + seed + (mutated ? 1 : 0));
    for (int i = 0; i < (mutated ? kMutatedMessages : kMessages); ++i) {
      std::string wire = make(random);
      if (mutated) Mutate(wire, random);
      ASSERT_EQ(disagreement(wire, RandomCuts(random, wire.size(), mutated ? 4 : 6)), "")
          << "message " << i << ": " << absl::BytesToHexString(wire);
    }
  }
}

TEST(DecodeNormalizeRequestTest, AgreesWithTheGeneratedClass) {
  ExpectAgreement(0, RandomRequest, RequestDisagreement);
}

TEST(DecodeNormalizeResponseTest, AgreesWithTheGeneratedClass) {
  ExpectAgreement(3, RandomResponse, ResponseDisagreement);
}

TEST(DecodeNormalizeResponseTest, ReadsTheSameFromSlicesOfOneByteWithEmptyOnesBetween) {
  std::mt19937_64 random(TestSeed() + 5);
  for (int i = 0; i < 20; ++i) {
    const std::string wire = RandomResponse(random);
    std::vector<std::size_t> cuts;
    for (std::size_t at = 0; at <= wire.size(); ++at) cuts.insert(cuts.end(), {at, at, at});
    ASSERT_EQ(ResponseDisagreement(wire, cuts), "") << absl::BytesToHexString(wire);
  }
}

TEST(DecodeNormalizeResponseTest, NamesTheFieldThatIsWrong) {
  const auto refusal = [](const std::string& wire) {
    const Slices slices(wire, {});
    return std::string(DecodeNormalizeResponse(slices.views()).status().message());
  };
  const std::string output = BytesField(5, IntField(2, 1));
  EXPECT_THAT(refusal(output + BytesField(5, absl::StrCat(Varint(4 << 3 | 2), Varint(9), "abc"))),
              HasSubstr("response: malformed protobuf in outputs[1].data near byte"));
  EXPECT_THAT(refusal(BytesField(4, "\x22\x05")),
              HasSubstr("response: malformed protobuf in batch near byte"));
  EXPECT_THAT(refusal(BytesField(5, BytesField(1, std::string(129, 'm')))),
              HasSubstr("outputs[0].name: 129 bytes, wanted at most 128"));
}

TEST(DecodeNormalizeRequestTest, RefusesLengthsBeyondTheMessage) {
  const std::string huge = absl::StrCat(Varint(3 << 3 | 2), Varint(1u << 30), "abc");
  EXPECT_THAT(Refusal(huge), HasSubstr("malformed protobuf in inputs[0]"));
  const std::string data = BytesField(3, absl::StrCat(Varint(4 << 3 | 2), Varint(100), "abc"));
  EXPECT_THAT(Refusal(data), HasSubstr("malformed protobuf in inputs[0].data"));
  // Longer than its tensor, but not than the message.
  EXPECT_THAT(Refusal(absl::StrCat(data, BytesField(9, std::string(200, 'x')))),
              HasSubstr("malformed protobuf in inputs[0].data"));
  const std::string negative = absl::StrCat(Varint(1 << 3 | 2), Varint(~0ull), "abc");
  EXPECT_THAT(Refusal(negative), HasSubstr("malformed protobuf in model"));
}

TEST(DecodeNormalizeRequestTest, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(Refusal(BytesField(1, "\xff\xfe")), HasSubstr("model"));
}

TEST(DecodeNormalizeRequestTest, RefusesNoInputsAndMoreThanTheBound) {
  EXPECT_THAT(Refusal(BytesField(1, "m")), HasSubstr("inputs: none"));
  const std::string input = BytesField(3, IntField(2, 1));
  std::string wire;
  for (std::size_t count = 1; count <= kMaxTensors; ++count) {
    wire += input;
    EXPECT_EQ(Refusal(wire), "") << count;
  }
  EXPECT_THAT(Refusal(wire + input), HasSubstr("inputs: more than 32, wanted at most 32"));
}

TEST(DecodeNormalizeResponseTest, TakesNoOutputsAndRefusesMoreThanTheBound) {
  const std::string output = BytesField(5, IntField(2, 1));
  std::string wire = BytesField(1, "m");
  for (std::size_t count = 0; count <= kMaxTensors; ++count, wire += output) {
    const Slices slices(wire, {});
    const auto response = DecodeNormalizeResponse(slices.views());
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->outputs.size(), count);
  }
  const Slices slices(wire, {});
  EXPECT_EQ(DecodeNormalizeResponse(slices.views()).status(),
            absl::InvalidArgumentError("outputs: more than 32, wanted at most 32"));
}

TEST(DecodeNormalizeRequestTest, CapsTheRankBeforeItStoresMore) {
  const std::string packed(16, '\1');
  EXPECT_EQ(Refusal(BytesField(3, BytesField(3, packed))), "");
  EXPECT_THAT(Refusal(BytesField(3, BytesField(3, packed) + IntField(3, 1))),
              AllOf(HasSubstr("shape"), HasSubstr("at most 16")));
  EXPECT_THAT(Refusal(BytesField(3, BytesField(3, std::string(1000000, '\1')))),
              AllOf(HasSubstr("shape"), HasSubstr("at most 16")));
}

TEST(DecodeNormalizeRequestTest, CapsNamesBeforeItStoresThem) {
  EXPECT_EQ(Refusal(BytesField(1, std::string(128, 'm')) + BytesField(3, "")), "");
  EXPECT_THAT(Refusal(BytesField(1, std::string(129, 'm'))),
              AllOf(HasSubstr("model: 129 bytes"), HasSubstr("at most 128")));
  EXPECT_THAT(Refusal(BytesField(3, BytesField(1, std::string(129, 'm')))),
              HasSubstr("inputs[0].name: 129 bytes"));
  EXPECT_THAT(Refusal(BytesField(3, "") + BytesField(3, BytesField(1, std::string(129, 'm')))),
              HasSubstr("inputs[1].name: 129 bytes"));
}

TEST(DecodeNormalizeRequestTest, ReadsPartsOfSharedMemoryAndCapsTheirNames) {
  v1::NormalizeRequest message;
  v1::SharedMemory& x = *message.add_inputs()->mutable_shared_memory();
  x.set_region(std::string(1024, 'r'));
  x.set_offset(-1);
  x.set_byte_size(std::int64_t{1} << 62);
  message.add_outputs()->mutable_shared_memory();
  const Slices slices(message.SerializeAsString(), {});
  const auto request = DecodeNormalizeRequest(slices.views());
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(request->inputs[0].shared_memory.has_value());
  EXPECT_EQ(request->inputs[0].shared_memory->region, x.region());
  EXPECT_EQ(request->inputs[0].shared_memory->offset, -1);
  EXPECT_EQ(request->inputs[0].shared_memory->byte_size, std::int64_t{1} << 62);
  ASSERT_TRUE(request->outputs[0].shared_memory.has_value()) << "also an empty one";
  EXPECT_EQ(request->outputs[0].shared_memory->region, "");
  *x.mutable_region() += 'r';
  EXPECT_THAT(Refusal(message.SerializeAsString()),
              HasSubstr("inputs[0].shared_memory.region: 1025 bytes, wanted at most 1024"));
}

// Tensors to send, with random names, types, shapes and data. Zeros often: proto3 leaves them out.
struct RandomTensors {
  RandomTensors(std::mt19937_64& random, std::size_t count)
      : names(count), regions(count), shapes(count), data(count), headers(count) {
    for (std::size_t i = 0; i < count; ++i) {
      names[i] = std::string(random() % 3 == 0 ? 0 : random() % 129, 'n');
      shapes[i].resize(random() % 17);
      for (std::int64_t& dim : shapes[i]) dim = Number(random);
      regions[i] = std::string(random() % 3 == 0 ? random() % 300 : 0, 'r');
      // What lies in shared memory has no data.
      const bool is_empty = !regions[i].empty() || random() % 3 == 0;
      data[i] = std::string(is_empty ? 0 : random() % 40000, 'd');
      const auto dtype = static_cast<v1::DataType>(random() % 5);
      headers[i] = {names[i], dtype, shapes[i], static_cast<std::int64_t>(data[i].size())};
      if (!regions[i].empty()) {
        headers[i].shared_memory = {regions[i], Number(random), Number(random)};
      }
    }
  }

  static std::int64_t Number(std::mt19937_64& random) {
    return random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() >> (1 + random() % 63));
  }

  void AddTo(google::protobuf::RepeatedPtrField<v1::Tensor>& tensors) const {
    for (std::size_t i = 0; i < data.size(); ++i) {
      v1::Tensor& tensor = *tensors.Add();
      tensor.set_name(names[i]);
      tensor.set_dtype(headers[i].dtype);
      tensor.mutable_shape()->Assign(shapes[i].begin(), shapes[i].end());
      tensor.set_data(data[i]);
      if (!regions[i].empty()) Set(headers[i].shared_memory, *tensor.mutable_shared_memory());
    }
  }

  static void Set(const SharedPartHeader& part, v1::SharedMemory& message) {
    message.set_region(std::string(part.region));
    message.set_offset(part.offset);
    message.set_byte_size(part.byte_size);
  }

  // The whole message.
  std::string Assemble(const EncodedMessage& message) const {
    if (message.ends.empty()) return std::string(message.bytes.begin(), message.bytes.end());
    EXPECT_EQ(message.ends.size(), data.size());
    std::string whole;
    for (std::size_t i = 0; i < data.size(); ++i) {
      absl::StrAppend(&whole, message.Part(i), data[i]);
    }
    return whole;
  }

  std::vector<std::string> names;
  std::vector<std::string> regions;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::string> data;
  std::vector<TensorHeader> headers;
};

TEST(EncodeNormalizeResponseTest, WritesWhatTheGeneratedClassWrites) {
  std::mt19937_64 random(TestSeed() + 2);
  for (int i = 0; i < 5000; ++i) {
    auto number = [&] { return RandomTensors::Number(random); };
    v1::NormalizeResponse want;
    const std::string model(random() % 129, 'm');
    const std::string lane(random() % 12, 'l');
    const RandomTensors outputs(random, random() % 5);
    NormalizeResponseHead head;
    head.model = model;
    head.version = number();
    for (std::int64_t& ns : head.stage_ns) ns = number();
    head.batch_id = number();
    head.batch_requests = number();
    head.batch_bytes = number();
    head.lane = lane;
    head.outputs = outputs.headers;

    want.set_model(model);
    want.set_version(head.version);
    v1::StageTimes& stages = *want.mutable_stages();
    stages.set_decode_ns(head.stage_ns[0]);
    stages.set_queue_ns(head.stage_ns[1]);
    stages.set_gather_ns(head.stage_ns[2]);
    stages.set_copy_in_ns(head.stage_ns[3]);
    stages.set_compute_ns(head.stage_ns[4]);
    stages.set_copy_out_ns(head.stage_ns[5]);
    v1::BatchInfo& batch = *want.mutable_batch();
    batch.set_id(head.batch_id);
    batch.set_requests(head.batch_requests);
    batch.set_bytes(head.batch_bytes);
    batch.set_lane(lane);
    outputs.AddTo(*want.mutable_outputs());
    ASSERT_EQ(outputs.Assemble(EncodeNormalizeResponse(head)), want.SerializeAsString()) << i;
  }
}

TEST(EncodeNormalizeRequestTest, IsTheMessageThatTheGeneratedClassReads) {
  std::mt19937_64 random(TestSeed() + 6);
  for (int i = 0; i < 5000; ++i) {
    const RandomTensors inputs(random, random() % 5);
    const std::string model(random() % 129, 'm');
    NormalizeRequestHead head;
    head.model = model;
    head.version = RandomTensors::Number(random);
    head.priority = static_cast<v1::Priority>(random() % 4);
    head.queue_timeout_ns = RandomTensors::Number(random);
    head.precision = static_cast<v1::Precision>(random() % 5);
    head.inputs = inputs.headers;
    std::vector<std::string> names(random() % 4);
    std::vector<WantedOutputHeader> outputs;
    for (std::string& name : names) {
      name.assign(random() % 129, 'y');
      outputs.push_back({name});
      if (random() % 2 == 0) {
        outputs.back().shared_memory = {"r", RandomTensors::Number(random),
                                        RandomTensors::Number(random)};
      }
    }
    head.outputs = outputs;
    const absl::StatusOr<EncodedMessage> message = EncodeNormalizeRequest(head);
    ASSERT_TRUE(message.ok()) << message.status();

    v1::NormalizeRequest want;
    want.set_model(model);
    want.set_version(head.version);
    want.set_priority(head.priority);
    want.set_queue_timeout_ns(head.queue_timeout_ns);
    want.set_precision(head.precision);
    inputs.AddTo(*want.mutable_inputs());
    for (const WantedOutputHeader& header : outputs) {
      v1::WantedOutput& output = *want.add_outputs();
      output.set_name(std::string(header.name));
      if (header.shared_memory.region.empty()) continue;
      RandomTensors::Set(header.shared_memory, *output.mutable_shared_memory());
    }
    v1::NormalizeRequest got;
    ASSERT_TRUE(got.ParseFromString(inputs.Assemble(*message)));
    ASSERT_EQ(got.SerializeAsString(), want.SerializeAsString()) << i;
  }
}

TEST(EncodeNormalizeRequestTest, RefusesMoreThanAMessageCarriesInAll) {
  // Two that fit alone, and not together; then two that fit but for the fields between them.
  for (const std::int64_t second : {std::int64_t{1} << 31, (std::int64_t{1} << 31) - 101}) {
    const TensorHeader inputs[] = {{"x", v1::FLOAT32, {}, 100}, {"y", v1::FLOAT32, {}, second}};
    const absl::Status status = EncodeNormalizeRequest({"m", 0, {}, 0, {}, inputs, {}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("wanted at most 2147483647"));
  }
}

}  // namespace
}  // namespace normd::testing
