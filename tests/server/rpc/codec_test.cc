#include "server/rpc/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "normd/v1/norm_service.pb.h"
#include "tests/server/rpc/codec_agreement.h"
#include "tests/server/rpc/wire_writer.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using ::normd::norm::testing::TestSeed;
using ::testing::AllOf;
using testing::BytesField;
using testing::Disagreement;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IntField;
using testing::Join;
using testing::RandomCuts;
using testing::RandomRequest;
using testing::Slices;
using testing::Varint;

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
      ASSERT_EQ(Disagreement(wire, {a, b}), "") << "cut at " << a << " and " << b;
    }
  }
}

TEST(DecodeNormalizeRequestTest, ReadsTheSameFromSlicesOfOneByteWithEmptyOnesBetween) {
  const std::string wire = SmallRequest();
  std::vector<std::size_t> cuts;
  for (std::size_t i = 0; i <= wire.size(); ++i) cuts.insert(cuts.end(), {i, i});
  const Slices slices(wire, cuts);
  ASSERT_EQ(Disagreement(wire, cuts), "");
}

TEST(DecodeNormalizeRequestTest, AgreesWithTheGeneratedClassOnRandomMessages) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 20000; ++i) {
    const std::string wire = RandomRequest(random);
    ASSERT_EQ(Disagreement(wire, RandomCuts(random, wire.size(), 6)), "")
        << "message " << i << ": " << absl::BytesToHexString(wire);
  }
}

TEST(DecodeNormalizeRequestTest, RefusesEveryProperPrefixThatProtobufRefuses) {
  const std::string wire = SmallRequest();
  for (std::size_t size = 0; size < wire.size(); ++size) {
    EXPECT_EQ(Disagreement(wire.substr(0, size), {}), "") << "prefix of " << size;
  }
  EXPECT_THAT(Refusal(wire.substr(0, wire.size() - 1)),
              HasSubstr("request: malformed protobuf in inputs[0]"));
}

TEST(DecodeNormalizeRequestTest, AgreesWithTheGeneratedClassOnMutatedMessages) {
  std::mt19937_64 random(TestSeed() + 1);
  auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  for (int i = 0; i < 50000; ++i) {
    std::string wire = RandomRequest(random);
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
    ASSERT_EQ(Disagreement(wire, RandomCuts(random, wire.size(), 4)), "")
        << "message " << i << ": " << absl::BytesToHexString(wire);
  }
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

TEST(DecodeNormalizeRequestTest, RefusesNoInputsAndMoreThanTwo) {
  EXPECT_THAT(Refusal(BytesField(1, "m")), HasSubstr("inputs: none"));
  const std::string input = BytesField(3, IntField(2, 1));
  EXPECT_EQ(Refusal(input), "");
  EXPECT_EQ(Refusal(input + input), "");
  EXPECT_THAT(Refusal(input + input + input), HasSubstr("inputs: more than 2, wanted at most 2"));
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

TEST(EncodeNormalizeResponseHeadTest, WritesWhatTheGeneratedClassWrites) {
  std::mt19937_64 random(TestSeed() + 2);
  for (int i = 0; i < 5000; ++i) {
    // Zeros often: proto3 leaves them out.
    auto number = [&] {
      return random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() >> (1 + random() % 63));
    };
    v1::NormalizeResponse want;
    const std::string model(random() % 129, 'm');
    const std::string lane(random() % 12, 'l');
    const std::string data(random() % 3 == 0 ? 0 : random() % 40000, 'd');
    std::vector<std::int64_t> shape(random() % 17);
    NormalizeResponseHead head;
    head.model = model;
    head.version = number();
    for (std::int64_t& ns : head.stage_ns) ns = number();
    head.batch_id = number();
    head.batch_requests = number();
    head.batch_bytes = number();
    head.lane = lane;
    head.dtype = v1::BFLOAT16;
    for (std::int64_t& dim : shape) dim = number();
    head.shape = shape;
    head.data_bytes = static_cast<std::int64_t>(data.size());

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
    v1::Tensor& output = *want.add_outputs();
    output.set_dtype(v1::BFLOAT16);
    output.mutable_shape()->Assign(shape.begin(), shape.end());
    output.set_data(data);
    ASSERT_EQ(EncodeNormalizeResponseHead(head) + data, want.SerializeAsString()) << i;
  }
}

}  // namespace
}  // namespace normd
