#include "operations/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/model/config.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TensorEntry Entry(const std::string& name, const std::vector<std::int64_t>& dims = {4},
                  const std::string& dtype = "F32") {
  return {name, dtype, *Shape::Create(dims), 0, 0};
}
std::vector<TensorEntry> Entries(const std::vector<std::string>& names) {
  std::vector<TensorEntry> entries;
  for (const std::string& name : names) entries.push_back(Entry(name));
  return entries;
}

v1::ModelConfig Config(const std::string& text) {
  const auto config = ParseModelConfig(text);
  EXPECT_TRUE(config.ok() && CheckModelConfig(*config).ok()) << text;
  return config.value_or(v1::ModelConfig());
}

// "parameter=tensor" of each match.
std::vector<std::string> Match(const std::string& config, const std::vector<TensorEntry>& tensors) {
  const auto matches = MatchParameters(Config(config), tensors);
  EXPECT_TRUE(matches.ok()) << matches.status();
  std::vector<std::string> out;
  if (!matches.ok()) return out;
  for (const MatchedParameter& match : *matches) {
    out.push_back(absl::StrCat(match.parameter.name, "=", tensors[match.tensor].name));
  }
  return out;
}
std::string Error(const std::string& config, const std::vector<TensorEntry>& tensors) {
  const absl::Status status = MatchParameters(Config(config), tensors).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << config;
  return std::string(status.message());
}

constexpr char kGroup[] = "group_norm { channels: 4 groups: 2 }";
constexpr char kInstance[] = "instance_norm { channels: 4 }";
constexpr char kAffineInstance[] = "instance_norm { channels: 4 affine: true }";
constexpr char kBatch[] = "batch_norm { channels: 4 }";
constexpr char kLayer[] = "layer_norm { normalized_shape: 4 }";
constexpr char kRms[] = "rms_norm { normalized_shape: 4 }";

TEST(MatchParametersTest, TakesWeightAndBiasOrOneOfThem) {
  for (const char* config : {kGroup, kAffineInstance, kLayer}) {
    EXPECT_THAT(Match(config, Entries({"bias", "weight"})),
                ElementsAre("weight=weight", "bias=bias"));
    EXPECT_THAT(Match(config, Entries({"weight"})), ElementsAre("weight=weight"));
    EXPECT_THAT(Match(config, Entries({"bias"})), ElementsAre("bias=bias"));
    EXPECT_THAT(Error(config, {}),
                HasSubstr("parameter weight: missing, wanted shape [4]; the file has no tensors"));
  }
  EXPECT_THAT(Match(kBatch, Entries({"weight", "running_mean", "running_var"})),
              UnorderedElementsAre("weight=weight", "running_mean=running_mean",
                                   "running_var=running_var"));
  EXPECT_THAT(Error(kBatch, Entries({"running_mean", "running_var"})),
              HasSubstr("parameter weight: missing"));
  EXPECT_THAT(Error(kBatch, Entries({"weight", "bias", "running_mean"})),
              HasSubstr("parameter running_var: missing"));
  EXPECT_THAT(Error(kRms, {}), HasSubstr("parameter weight: missing"));
}

TEST(MatchParametersTest, TellsWhatTheFileHas) {
  EXPECT_THAT(Error(kRms, {Entry("scale", {5}, "BF16"), Entry("position_ids", {1, 7}, "I64")}),
              HasSubstr("parameter weight: missing, wanted shape [4]; the file has scale BF16 [5], "
                        "position_ids I64 [1, 7]"));
  std::vector<TensorEntry> many;
  for (int i = 0; i < 100000; ++i) many.push_back(Entry(absl::StrCat(std::string(300, 'n'), i)));
  const std::string error = Error(kRms, many);
  EXPECT_THAT(error, HasSubstr(" and 99992 more"));
  EXPECT_LT(error.size(), 1500u);
}

TEST(MatchParametersTest, SaysWhichPrefixWouldFindIt) {
  EXPECT_THAT(Error(kRms, Entries({"module.norm.weight"})),
              HasSubstr("; parameter_prefix: \"module.norm.\" would find it"));
  EXPECT_THAT(Error(kRms, Entries({"a.weight", "b.weight"})),
              HasSubstr("parameter_prefix: \"a.\" or parameter_prefix: \"b.\" would find it"));
  EXPECT_THAT(Error(std::string(kRms) + " parameter_prefix: \"norm\"", Entries({"norm.weight"})),
              HasSubstr("parameter weight (normweight): missing"));
}

TEST(MatchParametersTest, PassesOverWhatNobodyAskedForOfEveryType) {
  for (const char* dtype :
       {"I64", "BOOL", "F8_E4M3", "F8_E5M2", "C64", "U16", "F4", "F32", "F64", "F16", "BF16"}) {
    EXPECT_THAT(Match(kRms, {Entry("other", {4}, dtype), Entry("weight")}),
                ElementsAre("weight=weight"))
        << dtype;
  }
  EXPECT_THAT(Match(kBatch, {Entry("running_mean"), Entry("running_var"), Entry("weight"),
                             Entry("bias"), Entry("num_batches_tracked", {}, "I64")})
                  .size(),
              4u);
}

TEST(MatchParametersTest, RefusesAParameterOfAnotherShapeOrType) {
  EXPECT_EQ(Error(kRms, {Entry("weight", {5})}), "parameter weight: shape [5], wanted [4]");
  EXPECT_EQ(Error(kRms, {Entry("weight", {4, 1})}), "parameter weight: shape [4, 1], wanted [4]");
  EXPECT_EQ(Error("layer_norm { normalized_shape: [2, 2] }", Entries({"weight"})),
            "parameter weight: shape [4], wanted [2, 2]");
  EXPECT_EQ(Error(kLayer, {Entry("weight"), Entry("bias", {})}),
            "parameter bias: shape [], wanted [4]");
  EXPECT_EQ(Error(kRms, {Entry("weight", {4}, "I32")}),
            "parameter weight: dtype I32, wanted F32, F64, F16 or BF16");
  EXPECT_EQ(Error(std::string(kRms) + " parameter_prefix: \"n.\"", {Entry("n.weight", {5})}),
            "parameter weight (n.weight): shape [5], wanted [4]");
}

TEST(MatchParametersTest, TakesOneNumberWithADimensionOrWithout) {
  const std::string scale = "scale_norm { normalized_shape: 4 }";
  EXPECT_THAT(Match(scale, {Entry("g", {})}), ElementsAre("g=g"));
  EXPECT_THAT(Match(scale, {Entry("g", {1}, "BF16")}), ElementsAre("g=g"));
  EXPECT_EQ(Error(scale, {Entry("g", {4})}), "parameter g: shape [4], wanted []");
  EXPECT_EQ(Error(scale, {Entry("g", {1, 1})}), "parameter g: shape [1, 1], wanted []");
  EXPECT_EQ(Error(scale, {Entry("g", {0})}), "parameter g: shape [0], wanted []");
  EXPECT_THAT(Error(scale, {Entry("norm.g", {1})}),
              HasSubstr("; parameter_prefix: \"norm.\" would find it"));
  // For an operation with an element for each channel, a number is no vector.
  EXPECT_EQ(Error("rms_norm { normalized_shape: 1 }", {Entry("weight", {})}),
            "parameter weight: shape [], wanted [1]");
}

TEST(MatchParametersTest, LooksBehindThePrefixAlone) {
  const std::string config = std::string(kGroup) + " parameter_prefix: \"module.norm1.\"";
  EXPECT_THAT(
      Match(config, Entries({"module.norm1.weight", "module.norm1.bias", "module.norm2.weight",
                             "weight", "norm1.weight", "module.running_mean"})),
      ElementsAre("weight=module.norm1.weight", "bias=module.norm1.bias"));
  // Another norm's bias is not this one's.
  EXPECT_THAT(Match(config, Entries({"module.norm1.weight", "module.norm2.bias"})),
              ElementsAre("weight=module.norm1.weight"));
  EXPECT_THAT(Error(config, Entries({"module.norm1.weight", "module.norm1.running_var"})),
              HasSubstr("parameter module.norm1.running_var: present, but the config does not"));
}

TEST(MatchParametersTest, TakesTheNamesThatTheConfigGives) {
  const std::string names =
      " parameter_names { key: \"weight\" value: \"scale\" } "
      "parameter_names { key: \"bias\" value: \"shift\" }";
  EXPECT_THAT(Match(kGroup + names, Entries({"scale", "shift", "gate"})),
              ElementsAre("weight=scale", "bias=shift"));
  EXPECT_THAT(Match(kGroup + names + " parameter_prefix: \"n.\"", Entries({"n.scale", "n.shift"})),
              ElementsAre("weight=n.scale", "bias=n.shift"));
  // What is named must be there, also where it would be optional.
  EXPECT_THAT(Error(kGroup + names, Entries({"scale"})),
              HasSubstr("parameter bias (shift): missing"));
  // And what is there under PyTorch's name is not left out silently.
  EXPECT_THAT(Error(kGroup + names, Entries({"scale", "shift", "weight"})),
              HasSubstr("parameter weight: present, but the config does not use it"));
}

TEST(MatchParametersTest, RefusesAFileOfWhichOnlyAPartWouldBeUsed) {
  // affine is false by default: the weights would be left out.
  EXPECT_THAT(Error(kInstance, Entries({"weight", "bias"})),
              HasSubstr("parameter weight: present, but the config does not use it, wanted no "
                        "parameters"));
  EXPECT_THAT(Error(kGroup, Entries({"weight", "bias", "running_mean"})),
              HasSubstr("parameter running_mean: present, but the config does not use it, wanted "
                        "weight, bias"));
  EXPECT_THAT(Error(kInstance, Entries({"encoder.norm1.weight"})),
              HasSubstr("tensor encoder.norm1.weight F32 [4]: looks like a parameter of this "
                        "operation and would not be used; set affine: true and parameter_prefix: "
                        "\"encoder.norm1.\""));
  EXPECT_THAT(Error(kInstance, Entries({"_orig_mod.running_mean"})), HasSubstr("looks like"));
  EXPECT_THAT(Error(kInstance, Entries({"gamma"})), HasSubstr("set affine: true, or leave"));
  // One of the two has another name.
  EXPECT_THAT(Error(kGroup, Entries({"gamma", "bias"})), HasSubstr("say in parameter_names"));
  EXPECT_THAT(Error(kGroup, Entries({"weight", "module.bias"})),
              HasSubstr("parameter_prefix: \"module.\""));
  // Two modules, and nobody says which.
  EXPECT_THAT(Error(kRms, Entries({"weight", "norm2.weight"})), HasSubstr("norm2.weight"));
  EXPECT_THAT(Error("group_norm { channels: 4 groups: 2 affine: false }", Entries({"n.weight"})),
              HasSubstr("looks like"));
  // The weights of a norm beneath the fused layer, whose own norm has none.
  const std::vector<TensorEntry> fused = {Entry("m.linear.weight", {4, 4}), Entry("m.linear.bias"),
                                          Entry("m.norm.weight")};
  EXPECT_THAT(
      Error("linear_norm { in_features: 4 out_features: 4 } parameter_prefix: \"m.\"", fused),
      HasSubstr("m.norm.weight"));
}

TEST(MatchParametersTest, PassesOverModulesThatCannotBeThisOperations) {
  EXPECT_THAT(Match(kInstance, {Entry("conv.weight", {4, 3, 3, 3}), Entry("fc.bias", {10}),
                                Entry("embedding", {4}, "I64")}),
              IsEmpty());
  EXPECT_THAT(Match(kRms, {Entry("weight"), Entry("fc.weight", {9, 4}), Entry("fc.bias", {9})}),
              ElementsAre("weight=weight"));
}

// Whatever lies in a file: either it is refused, or every tensor of the norm's own module that
// PyTorch would use is used, and nothing is used twice or with another shape.
TEST(MatchParametersTest, ARandomFileIsRefusedOrUsedWhole) {
  std::mt19937_64 random(norm::testing::TestSeed());
  const auto pick = [&random](const auto& list) { return list[random() % list.size()]; };
  const std::vector<std::string> prefixes = {"", "", "n.", "module.n.", "module."};
  const std::vector<std::string> names = {"weight", "bias",  "running_mean",       "running_var",
                                          "scale",  "gamma", "num_batches_tracked"};
  const std::vector<std::string> dtypes = {"F32", "F32", "F32", "F16", "I64"};
  const std::vector<std::string> operations = {kGroup, kInstance, kAffineInstance,
                                               kBatch, kLayer,    kRms};
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string operation = pick(operations);
    const std::string prefix = operation == kInstance ? "" : pick(prefixes);
    std::vector<TensorEntry> tensors;
    for (std::size_t count = random() % 6; count > 0; --count) {
      const std::string name = pick(prefixes) + pick(names);
      const auto same = [&name](const TensorEntry& tensor) { return tensor.name == name; };
      if (std::any_of(tensors.begin(), tensors.end(), same)) continue;
      tensors.push_back(Entry(name, {random() % 4 == 0 ? 5 : 4}, pick(dtypes)));
    }
    const auto matches = MatchParameters(
        Config(absl::StrCat(operation, " parameter_prefix: \"", prefix, "\"")), tensors);
    if (!matches.ok()) continue;
    ++accepted;
    std::vector<int> uses(tensors.size(), 0);
    for (const MatchedParameter& match : *matches) {
      ++uses[match.tensor];
      ASSERT_EQ(tensors[match.tensor].name, prefix + match.parameter.name);
      ASSERT_EQ(tensors[match.tensor].shape, match.parameter.shape);
    }
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const std::string& name = tensors[k].name;
      const bool torchs = absl::StartsWith(name, prefix) &&
                          std::find(names.begin(), names.begin() + 4, name.substr(prefix.size())) !=
                              names.begin() + 4;
      ASSERT_EQ(uses[k], torchs ? 1 : 0) << operation << prefix << ": " << name;
    }
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace normd
