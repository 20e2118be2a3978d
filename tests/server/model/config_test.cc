#include "server/model/config.h"
#include "operations/kernel_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "operations/operations.h"
#include "server/text_format/parse_text.h"

namespace normd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

v1::ModelConfig Parse(const std::string& text) {
  absl::StatusOr<v1::ModelConfig> config = ParseModelConfig(text);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *std::move(config) : v1::ModelConfig();
}

struct BadCase {
  const char* name;
  std::string text;
  const char* message;  // Part of the error's.
};
std::string CaseName(const ::testing::TestParamInfo<BadCase>& info) { return info.param.name; }
void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

class ParseErrorTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(ParseErrorTest, NamesLineColumnAndCause) {
  const absl::Status status = ParseModelConfig(GetParam().text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
}

const BadCase kParseErrors[] = {
    {"UnknownField", "group_norm {\n  chanels: 4\n}",
     "line 2, column 3: group_norm: unknown field \"chanels\", wanted one of channels, "
     "groups, eps, affine; did you mean \"channels\"?"},
    {"TorchsGroups", "group_norm { num_groups: 4 }", "did you mean \"groups\"?"},
    {"TorchsChannels", "group_norm { num_channels: 4 }", "did you mean \"channels\"?"},
    {"TorchsFeatures", "batch_norm { num_features: 4 }", "did you mean \"channels\"?"},
    {"TorchsAffine", "layer_norm { elementwise_affine: true }", "did you mean \"affine\"?"},
    {"TorchsStatistics", "instance_norm { track_running_stats: true }",
     "did you mean \"use_running_stats\"?"},
    {"TorchsStatisticsOfBatchNorm", "batch_norm { track_running_stats: true }", "always used here"},
    {"TorchsMomentum", "batch_norm { momentum: 0.1 }", "inference does not use it"},
    {"TorchsClass", "GroupNorm { channels: 4 }", "did you mean \"group_norm\"?"},
    {"BritishSpelling", "rms_norm { normalised_shape: 4 }", "did you mean \"normalized_shape\"?"},
    {"FieldOfTheOperationBesideIt", "channels: 4", "it belongs inside the operation"},
    {"FieldBesideTheOperationInIt", "group_norm { layout: CHANNELS_LAST }",
     "it belongs beside the operation"},
    {"UnknownEnumValue", "activation: SWISH", "activation: SWISH, wanted NONE, RELU,"},
    {"AnotherSpelling", "activation: GeluTanh", "did you mean GELU_TANH?"},
    {"WrongBoolean", "group_norm { affine: maybe }", "affine: maybe, wanted true or false"},
    {"IntegerTooLarge", "group_norm { channels: 99999999999999999999 }", "line 1"},
    {"TwoOperations", "group_norm { channels: 4 }\nlayer_norm {}",
     "layer_norm: a second operation, wanted one"},
    {"Garbage",
     std::string("\x7f"
                 "ELF\x02\x01\x00\n\x1b[31m",
                 12),
     "line 1, column 1: "},
    {"DeepNesting", std::string(100000, '{'), "line 1"}};

INSTANTIATE_TEST_SUITE_P(Config, ParseErrorTest, ::testing::ValuesIn(kParseErrors), CaseName);

// Underscores do not count when a name is compared with those of the schema.
TEST(ParseModelConfigTest, QuotesNoNameThatIsLong) {
  const std::string filler(std::size_t{1} << 19, '_');
  for (const std::string& text : {"instance_norm { chan" + filler + "nels: 4 }", filler + ": 4",
                                  "activation: SI" + filler + "LU"}) {
    const std::string message(ParseModelConfig(text).status().message());
    EXPECT_THAT(message, HasSubstr(", wanted ")) << message.substr(0, 1000);
    EXPECT_THAT(message, Not(HasSubstr(std::string(kMaxQuotedBytes, '_'))));
    EXPECT_THAT(message, Not(HasSubstr("did you mean")));
    EXPECT_LT(message.size(), 700U);
  }
}

// Whatever file it was: one that does not begin with a field of the schema is not shown.
TEST(ParseModelConfigTest, QuotesNothingOfAFileThatIsNoConfig) {
  const std::string secret = "hunter2secret";
  for (const std::string& text :
       {secret, secret + ":x:0:0::/:/bin/sh", "\"" + secret + "\"", "'" + secret,
        "[" + secret + "/x]: 1", secret + " {", "# " + secret + "\n}",
        "# " + secret + "\n" + secret, "channels " + secret, "-" + secret, "{ " + secret,
        "\"a\" \"" + secret + "\" :"}) {
    const absl::Status status = ParseModelConfig(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(secret))) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("line ")) << text;
  }
}

TEST(ParseModelConfigTest, ReportsTheFirstError) {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += "dtypes: \"\\q\" ";
  const std::string message(ParseModelConfig(text).status().message());
  EXPECT_THAT(message, HasSubstr("line 1, column 11: dtypes: an unknown escape, wanted "));
  EXPECT_LT(message.size(), 200u);
}

class CheckErrorTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(CheckErrorTest, NamesFieldValueAndWish) {
  const absl::Status status = CheckModelConfig(Parse(GetParam().text));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), GetParam().message);
}

const BadCase kCheckErrors[] = {
    {"NoOperation", "activation: RELU",
     "operation: missing, wanted one of instance_norm, group_norm, layer_norm, "
     "rms_norm, batch_norm, linear_norm, add_rms_norm, add_layer_norm, gated_rms_norm, "
     "lp_normalize, adaptive_layer_norm, adaptive_group_norm, adaptive_instance_norm, "
     "conditional_instance_norm, scale_norm"},
    {"AxesCount", "layer_norm { normalized_shape: [2, 3] axes: 1 }",
     "layer_norm.axes: [1], wanted one for each of the 2 dimensions of "
     "normalized_shape"},
    {"AxesRepeated", "rms_norm { normalized_shape: [2, 3] axes: [1, 1] }",
     "rms_norm.axes[1]: 1, wanted more than 1: ascending, each once"},
    {"AxesDescending", "rms_norm { normalized_shape: [2, 3] axes: [-1, -3] }",
     "rms_norm.axes[1]: -3, wanted more than -1: ascending, each once"},
    {"AxesInManyRuns", "rms_norm { normalized_shape: [2, 2, 2, 2, 2] axes: [1, 3, 5, 7, 9] }",
     "rms_norm.axes: [1, 3, 5, 7, 9], wanted at most 4 runs of adjacent axes"},
    {"AxesOfBothSigns", "rms_norm { normalized_shape: [2, 3] axes: [-1, 1] }",
     "rms_norm.axes: [-1, 1], wanted all of them from 1 on, or all negative"},
    {"AxesFarOutInFront", "lp_normalize { normalized_shape: 3 axes: -17 }",
     "lp_normalize.axes[0]: -17, wanted at least -16"},
    {"AxesOfSamples", "layer_norm { normalized_shape: 3 axes: 0 }",
     "layer_norm.axes[0]: 0, wanted 1 to 15: dimension 0 counts samples"},
    {"AxesFarOut", "lp_normalize { normalized_shape: 3 axes: 16 }",
     "lp_normalize.axes[0]: 16, wanted 1 to 15: dimension 0 counts samples"},
    {"QuantizationWithoutAScale",
     "rms_norm { normalized_shape: 3 affine: false } quantization { dtype: INT8 }",
     "quantization.scale: missing, wanted a normal float32 value above 0, or scales: "
     "PER_ROW or PER_BLOCK"},
    {"QuantizationScaleOfRows",
     "rms_norm { normalized_shape: 3 affine: false } quantization { dtype: INT8 scales: "
     "PER_ROW scale: 2 }",
     "quantization.scale: 2, wanted none: scales PER_ROW are computed"},
    {"QuantizationScaleOfNothing",
     "rms_norm { normalized_shape: 3 affine: false } quantization { dtype: INT8 scale: 0 }",
     "quantization.scale: 0, wanted a normal float32 value above 0"},
    {"QuantizationScaleNaN",
     "rms_norm { normalized_shape: 3 affine: false } quantization { dtype: INT8 scale: "
     "nan }",
     "quantization.scale: nan, wanted a normal float32 value above 0"},
    {"QuantizationNoDtype",
     "rms_norm { normalized_shape: 3 affine: false } quantization { scale: 1 }",
     "quantization.dtype: missing, wanted INT8 or FLOAT8_E4M3"},
    {"QuantizationDtype",
     "rms_norm { normalized_shape: 3 affine: false } quantization { dtype: INT64 scale: 1 }",
     "quantization.dtype: INT64, wanted INT8 or FLOAT8_E4M3"},
    {"QuantizationOfGivenStatistics",
     "batch_norm { channels: 3 affine: false } "
     "quantization { dtype: INT8 scales: PER_ROW }",
     "quantization.scales: PER_ROW, wanted PER_TENSOR: given statistics have no rows"},
    {"QuantizationInBlocksOfGroups",
     "group_norm { channels: 4 groups: 2 affine: false } "
     "quantization { dtype: INT8 scales: PER_BLOCK }",
     "quantization.scales: PER_BLOCK, wanted PER_TENSOR or PER_ROW: blocks are for rows "
     "over the last dimensions"},
    {"QuantizationOfALayer",
     "linear_norm { in_features: 4 out_features: 4 } "
     "quantization { dtype: INT8 scale: 1 }",
     "quantization: present, wanted none: the operation's output has x's type"},
    {"WeightOffset", "rms_norm { normalized_shape: 3 weight_offset: inf }",
     "rms_norm.weight_offset: inf, wanted a finite float32 value"},
    {"WeightOffsetBeyondFloat32", "gated_rms_norm { normalized_shape: 3 weight_offset: 3.5e38 }",
     "gated_rms_norm.weight_offset: 3.5e+38, wanted a finite float32 value"},
    {"ScaleOffsetBeyondFloat32",
     "adaptive_group_norm { channels: 4 groups: 2 scale_offset: -1e300 }",
     "adaptive_group_norm.scale_offset: -1e+300, wanted a finite float32 value"},
    {"LpNormalizeShapeBeyondTheKernels",
     "lp_normalize { normalized_shape: [1152921504606846976, 1] }",
     "lp_normalize.normalized_shape: 1152921504606846976 elements in "
     "[1152921504606846976, 1], wanted at most 1152921504606846975"},
    {"ScaleNormShapeThatGWouldFillMemoryFor", "scale_norm { normalized_shape: [4097, 4096] }",
     "scale_norm.normalized_shape: 16781312 elements, wanted at most 16777216"},
    {"ScaleNormEps", "scale_norm { normalized_shape: 3 eps: -1 }",
     "scale_norm.eps: -1, wanted a finite value >= 0"},
    {"AddLayerNormNoShape", "add_layer_norm {}",
     "add_layer_norm.normalized_shape: missing, wanted at least one dimension"},
    {"GatedRmsNormGroupSize", "gated_rms_norm { normalized_shape: [2, 3] group_size: 4 }",
     "gated_rms_norm.group_size: 4, wanted a divisor of 6 elements"},
    {"GatedRmsNormGroupSizeZero", "gated_rms_norm { normalized_shape: 3 group_size: 0 }",
     "gated_rms_norm.group_size: 0, wanted a divisor of 3 elements"},
    {"LpNormalizeP", "lp_normalize { normalized_shape: 3 p: 3 }",
     "lp_normalize.p: 3, wanted 1, 2 or inf"},
    {"LpNormalizeNegativeP", "lp_normalize { normalized_shape: 3 p: -inf }",
     "lp_normalize.p: -inf, wanted 1, 2 or inf"},
    {"AdaptiveLayerNormNoFeatures", "adaptive_layer_norm {}",
     "adaptive_layer_norm.features: 0, wanted 1 to 2147483648"},
    {"AdaptiveLayerNormLayout", "adaptive_layer_norm { features: 4 } layout: CHANNELS_LAST",
     "layout: CHANNELS_LAST, wanted none: adaptive_layer_norm has its features last"},
    {"AdaptiveLayerNormScaleOffset", "adaptive_layer_norm { features: 4 scale_offset: nan }",
     "adaptive_layer_norm.scale_offset: nan, wanted a finite float32 value"},
    {"AdaptiveGroupNormGroups", "adaptive_group_norm { channels: 4 groups: 3 }",
     "adaptive_group_norm.groups: 3, wanted a divisor of 4 channels"},
    {"AdaptiveInstanceNormNoChannels", "adaptive_instance_norm {}",
     "adaptive_instance_norm.channels: 0, wanted 1 to 2147483648"},
    {"ConditionalInstanceNormNoStyles", "conditional_instance_norm { channels: 4 }",
     "conditional_instance_norm.styles: 0, wanted 1 to 1048576"},
    {"InstanceNormNoChannels", "instance_norm {}",
     "instance_norm.channels: 0, wanted 1 to 2147483648"},
    {"InstanceNormNegativeChannels", "instance_norm { channels: -3 }",
     "instance_norm.channels: -3, wanted 1 to 2147483648"},
    {"InstanceNormTooManyChannels", "instance_norm { channels: 2147483649 }",
     "instance_norm.channels: 2147483649, wanted 1 to 2147483648"},
    {"InstanceNormEps", "instance_norm { channels: 1 eps: -1 }",
     "instance_norm.eps: -1, wanted a finite value >= 0"},
    {"GroupNormNoChannels", "group_norm { groups: 1 }",
     "group_norm.channels: 0, wanted 1 to 2147483648"},
    {"GroupNormNoGroups", "group_norm { channels: 4 }",
     "group_norm.groups: 0, wanted a divisor of 4 channels"},
    {"GroupNormNegativeGroups", "group_norm { channels: 4 groups: -2 }",
     "group_norm.groups: -2, wanted a divisor of 4 channels"},
    {"GroupNormGroupsDoNotDivide", "group_norm { channels: 4 groups: 3 }",
     "group_norm.groups: 3, wanted a divisor of 4 channels"},
    {"GroupNormMoreGroupsThanChannels", "group_norm { channels: 4 groups: 8 }",
     "group_norm.groups: 8, wanted a divisor of 4 channels"},
    {"GroupNormEps", "group_norm { channels: 4 groups: 2 eps: inf }",
     "group_norm.eps: inf, wanted a finite value >= 0"},
    {"LayerNormNoShape", "layer_norm {}",
     "layer_norm.normalized_shape: missing, wanted at least one dimension"},
    {"LayerNormZeroDim", "layer_norm { normalized_shape: [4, 0] }",
     "layer_norm.normalized_shape[1]: 0, wanted at least 1"},
    {"LayerNormNegativeDim", "layer_norm { normalized_shape: -4 }",
     "layer_norm.normalized_shape[0]: -4, wanted at least 1"},
    {"LayerNormOverflow", "layer_norm { normalized_shape: [4294967296, 4294967296] }",
     "layer_norm.normalized_shape: shape: [4294967296, 4294967296] has more than 2^63 "
     "elements, wanted at most 9223372036854775807"},
    {"LayerNormEps", "layer_norm { normalized_shape: 4 eps: nan }",
     "layer_norm.eps: nan, wanted a finite value >= 0"},
    {"RmsNormNoShape", "rms_norm {}",
     "rms_norm.normalized_shape: missing, wanted at least one dimension"},
    {"RmsNormTooManyDims",
     "rms_norm { normalized_shape: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1] }",
     "rms_norm.normalized_shape: shape: 17 dimensions, wanted at most 16"},
    {"RmsNormEps", "rms_norm { normalized_shape: 4 eps: -inf }",
     "rms_norm.eps: -inf, wanted a finite value >= 0"},
    {"AddRmsNormNoShape", "add_rms_norm {}",
     "add_rms_norm.normalized_shape: missing, wanted at least one dimension"},
    {"AddRmsNormZeroDim", "add_rms_norm { normalized_shape: [4, 0] }",
     "add_rms_norm.normalized_shape[1]: 0, wanted at least 1"},
    {"AddRmsNormEps", "add_rms_norm { normalized_shape: 4 eps: -1 }",
     "add_rms_norm.eps: -1, wanted a finite value >= 0"},
    {"AddRmsNormLayout", "add_rms_norm { normalized_shape: 4 } layout: CHANNELS_LAST",
     "layout: CHANNELS_LAST, wanted none for an operation without channels"},
    {"BatchNormNoChannels", "batch_norm {}", "batch_norm.channels: 0, wanted 1 to 2147483648"},
    {"BatchNormEps", "batch_norm { channels: 4 eps: -0.5 }",
     "batch_norm.eps: -0.5, wanted a finite value >= 0"},
    {"UnspecifiedDtype", "batch_norm { channels: 4 } dtypes: DATA_TYPE_UNSPECIFIED",
     "dtypes[0]: DATA_TYPE_UNSPECIFIED, wanted FLOAT32, FLOAT64, FLOAT16 or BFLOAT16"},
    {"UnknownDtype", "batch_norm { channels: 4 } dtypes: [FLOAT32, 9]",
     "dtypes[1]: 9, wanted FLOAT32, FLOAT64, FLOAT16 or BFLOAT16"},
    {"HugeDtype", "batch_norm { channels: 4 } dtypes: 2147483647",
     "dtypes[0]: 2147483647, wanted FLOAT32, FLOAT64, FLOAT16 or BFLOAT16"},
    {"DtypeTwice", "batch_norm { channels: 4 } dtypes: [FLOAT32, FLOAT16, FLOAT32]",
     "dtypes[2]: FLOAT32, wanted each type once"},
    {"UnknownLayout", "batch_norm { channels: 4 } layout: 2",
     "layout: 2, wanted CHANNELS_FIRST or CHANNELS_LAST"},
    {"LayoutWithoutChannels", "layer_norm { normalized_shape: 4 } layout: CHANNELS_LAST",
     "layout: CHANNELS_LAST, wanted none for an operation without channels"},
    {"UnknownActivation", "batch_norm { channels: 4 } activation: -1",
     "activation: -1, wanted NONE, RELU, LEAKY_RELU, SILU, GELU_ERF or GELU_TANH"},
    {"SlopeWithoutLeakyRelu", "batch_norm { channels: 4 } activation: RELU leaky_slope: 0.5",
     "leaky_slope: 0.5, wanted none for activation RELU"},
    {"InfiniteSlope", "batch_norm { channels: 4 } activation: LEAKY_RELU leaky_slope: inf",
     "leaky_slope: inf, wanted a finite float32 value"},
    {"ZeroRows", "batch_norm { channels: 4 } batching { max_rows: 0 }",
     "batching.max_rows: 0, wanted at least 1"},
    {"NegativeBytes", "batch_norm { channels: 4 } batching { max_bytes: -1 }",
     "batching.max_bytes: -1, wanted at least 1"},
    {"ZeroQueue", "batch_norm { channels: 4 } batching { max_queue_requests: 0 }",
     "batching.max_queue_requests: 0, wanted at least 1"},
    {"NegativeDelay", "batch_norm { channels: 4 } batching { max_queue_delay_us: -1 }",
     "batching.max_queue_delay_us: -1, wanted 0 to 60000000"},
    {"EndlessDelay",
     "batch_norm { channels: 4 } batching { max_queue_delay_us: 9223372036854775807 }",
     "batching.max_queue_delay_us: 9223372036854775807, wanted 0 to 60000000"},
    {"PrefixWithoutParameters", "instance_norm { channels: 4 } parameter_prefix: \"n.\"",
     "parameter_prefix: n., wanted none: the operation takes no parameters"},
    {"PrefixNotUtf8", "batch_norm { channels: 4 } parameter_prefix: \"\\377\"",
     "parameter_prefix: \\xff, wanted 1 to 512 bytes of valid UTF-8"},
    {"NameOfNoParameter",
     "rms_norm { normalized_shape: 4 } parameter_names { key: \"bias\" value: \"b\" }",
     "parameter_names[\"bias\"]: unknown key, wanted weight"},
    {"EmptyParameterName", "rms_norm { normalized_shape: 4 } parameter_names { key: \"weight\" }",
     "parameter_names[\"weight\"]: \"\", wanted 1 to 512 bytes of valid UTF-8"},
    {"OneTensorForTwoParameters",
     "layer_norm { normalized_shape: 4 } parameter_names { key: \"weight\" value: "
     "\"bias\" }",
     "parameter_names[\"bias\"]: bias, wanted a tensor of its own for each parameter"},
    {"DescriptionNotUtf8", "batch_norm { channels: 4 } description: \"a\\377\"",
     "description: a\\xff, wanted valid UTF-8"},
    {"DescriptionSurrogate", "batch_norm { channels: 4 } description: \"\\355\\240\\200\"",
     "description: \\xed\\xa0\\x80, wanted valid UTF-8"},
    {"DescriptionOverlong", "batch_norm { channels: 4 } description: \"\\300\\200\"",
     "description: \\xc0\\x80, wanted valid UTF-8"},
    {"DescriptionCut", "batch_norm { channels: 4 } description: \"\\342\\202\"",
     "description: \\xe2\\x82, wanted valid UTF-8"}};

INSTANTIATE_TEST_SUITE_P(Config, CheckErrorTest, ::testing::ValuesIn(kCheckErrors), CaseName);

TEST(CheckModelConfigTest, TakesTheLimits) {
  for (const char* text :
       {"instance_norm { channels: 2147483648 eps: 0 }",
        "group_norm { channels: 4 groups: 4 } dtypes: [FLOAT32, FLOAT64, FLOAT16, BFLOAT16]",
        "layer_norm { normalized_shape: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1] }",
        "batch_norm { channels: 1 } activation: LEAKY_RELU leaky_slope: -2",
        "batch_norm { channels: 1 } batching { max_rows: 1 max_bytes: 1 max_queue_delay_us: 0 }",
        "batch_norm { channels: 1 } batching { max_queue_delay_us: 60000000 max_queue_requests: 1 "
        "}",
        "rms_norm { normalized_shape: 8 } description: \"\\316\\263 \\360\\237\\216\\262\""}) {
    const absl::Status status = CheckModelConfig(Parse(text));
    EXPECT_TRUE(status.ok()) << text << ": " << status;
  }
}

// What the kernels compute for a config on inputs of `dtype`.
norm::NormSpec MakeSpec(const v1::ModelConfig& config, norm::DType dtype) {
  const auto operation = MakeOperation(config);
  EXPECT_TRUE(operation.ok()) << operation.status();
  return std::get<NormProgram>((*operation)->MakeProgram({})).Spec(dtype);
}

TEST(MakeSpecTest, TakesTheDefaultsOfAbsentFields) {
  const norm::NormSpec spec =
      MakeSpec(Parse("group_norm { channels: 6 groups: 3 }"), norm::DType::kFloat32);
  EXPECT_EQ(spec.channels, 6);
  EXPECT_EQ(spec.groups, 3);
  EXPECT_EQ(spec.eps, 1e-5);
  EXPECT_EQ(spec.statistics, norm::Statistics::kMeanVariance);
  EXPECT_EQ(spec.layout, norm::Layout::kChannelsFirst);
  EXPECT_EQ(spec.activation, norm::Activation::kNone);
  EXPECT_EQ(spec.leaky_slope, 0.01);
}

TEST(MakeSpecTest, KeepsTheLeakySlopeInDouble) {
  const char* text = "batch_norm { channels: 4 } activation: LEAKY_RELU leaky_slope: 0.2";
  EXPECT_EQ(MakeSpec(Parse(text), norm::DType::kFloat64).leaky_slope, 0.2);
}

TEST(MakeSpecTest, KeepsAnEpsOfZero) {
  EXPECT_EQ(MakeSpec(Parse("layer_norm { normalized_shape: 4 eps: 0 }"), norm::DType::kFloat32).eps,
            0);
}

// As torch.nn.RMSNorm: of the type that the statistics are computed in.
TEST(MakeSpecTest, RmsNormWithoutEpsTakesTheMachineEpsilon) {
  for (const std::string operation : {"rms_norm", "add_rms_norm"}) {
    const v1::ModelConfig absent = Parse(operation + " { normalized_shape: 4 }");
    EXPECT_EQ(MakeSpec(absent, norm::DType::kFloat64).eps, 0x1p-52);
    EXPECT_EQ(MakeSpec(absent, norm::DType::kFloat32).eps, 0x1p-23);
    EXPECT_EQ(MakeSpec(absent, norm::DType::kFloat16).eps, 0x1p-23);
    EXPECT_EQ(MakeSpec(absent, norm::DType::kBFloat16).eps, 0x1p-23);
    for (const double eps : {0.0, 1e-6}) {
      const v1::ModelConfig given =
          Parse(operation + " { normalized_shape: 4 eps: " + std::to_string(eps) + " }");
      EXPECT_EQ(MakeSpec(given, norm::DType::kFloat64).eps, eps);
      EXPECT_EQ(MakeSpec(given, norm::DType::kFloat16).eps, eps);
    }
  }
}

TEST(MakeSpecTest, MapsEveryOperation) {
  norm::NormSpec spec = MakeSpec(Parse("instance_norm { channels: 6 }"), norm::DType::kFloat32);
  EXPECT_EQ(spec.groups, 6);
  EXPECT_EQ(spec.statistics, norm::Statistics::kMeanVariance);
  spec = MakeSpec(Parse("instance_norm { channels: 6 use_running_stats: true }"),
                  norm::DType::kFloat32);
  EXPECT_EQ(spec.groups, 6);
  EXPECT_EQ(spec.statistics, norm::Statistics::kGiven);
  spec = MakeSpec(Parse("layer_norm { normalized_shape: [2, 3] }"), norm::DType::kFloat32);
  EXPECT_EQ(spec.channels, 6);
  EXPECT_EQ(spec.groups, 1);
  EXPECT_EQ(spec.statistics, norm::Statistics::kMeanVariance);
  spec = MakeSpec(Parse("rms_norm { normalized_shape: [2, 3] }"), norm::DType::kFloat32);
  EXPECT_EQ(spec.channels, 6);
  EXPECT_EQ(spec.statistics, norm::Statistics::kMeanSquare);
  EXPECT_FALSE(spec.residual || spec.residual_out);
  spec = MakeSpec(Parse("add_rms_norm { normalized_shape: [2, 3] }"), norm::DType::kFloat32);
  EXPECT_EQ(spec.channels, 6);
  EXPECT_EQ(spec.statistics, norm::Statistics::kMeanSquare);
  EXPECT_TRUE(spec.residual && spec.residual_out);
  spec = MakeSpec(Parse("batch_norm { channels: 6 } layout: CHANNELS_LAST"), norm::DType::kFloat32);
  EXPECT_EQ(spec.channels, 6);
  EXPECT_EQ(spec.statistics, norm::Statistics::kGiven);
  EXPECT_EQ(spec.layout, norm::Layout::kChannelsLast);
}

TEST(MakeSpecTest, MapsEveryActivation) {
  const auto activation = [](const std::string& name) {
    return MakeSpec(Parse("batch_norm { channels: 1 } activation: " + name), norm::DType::kFloat32)
        .activation;
  };
  EXPECT_EQ(activation("NONE"), norm::Activation::kNone);
  EXPECT_EQ(activation("RELU"), norm::Activation::kRelu);
  EXPECT_EQ(activation("LEAKY_RELU"), norm::Activation::kLeakyRelu);
  EXPECT_EQ(activation("SILU"), norm::Activation::kSilu);
  EXPECT_EQ(activation("GELU_ERF"), norm::Activation::kGeluErf);
  EXPECT_EQ(activation("GELU_TANH"), norm::Activation::kGeluTanh);
}

TEST(NormalizedShapeTest, IsThatOfLayerNormAndRmsNormAlone) {
  const auto shape = [](const char* text) {
    const auto operation = *MakeOperation(Parse(text));
    const auto dims = operation->parameters().norm_shape.dims();
    return operation->has_channels() ? std::vector<std::int64_t>()
                                     : std::vector<std::int64_t>(dims.begin(), dims.end());
  };
  EXPECT_THAT(shape("layer_norm { normalized_shape: [2, 3] }"), ElementsAre(2, 3));
  EXPECT_THAT(shape("rms_norm { normalized_shape: 7 }"), ElementsAre(7));
  EXPECT_THAT(shape("batch_norm { channels: 7 }"), IsEmpty());
}

}  // namespace
}  // namespace normd
