// What errors of a config say, for every field of its schema.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "server/model/config.h"
#include "server/model/root_folder.h"
#include "tests/server/model/files.h"

namespace normd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Path = std::vector<const FieldDescriptor*>;

// The paths of all fields, in messages of any depth.
std::vector<Path> AllFields(const Descriptor& message = *v1::ModelConfig::descriptor()) {
  std::vector<Path> paths;
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor* const field = message.field(i);
    paths.push_back({field});
    if (field->message_type() == nullptr) continue;
    for (Path& inner : AllFields(*field->message_type())) {
      inner.insert(inner.begin(), field);
      paths.push_back(std::move(inner));
    }
  }
  return paths;
}

std::string Name(const Path& path) {
  return absl::StrJoin(path, ".", [](std::string* out, const FieldDescriptor* field) {
    absl::StrAppend(out, field->name(), field->is_repeated() ? "[0]" : "");
  });
}

// A text with `last` in the place of the path's last field: a line for each field, of which the
// last is line path.size() + 1, with another line behind it.
std::string TextWith(const Path& path, const std::string& last) {
  std::string text = "# A comment.\n";
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    absl::StrAppend(&text, std::string(2 * i, ' '), path[i]->name(), " {\n");
  }
  absl::StrAppend(&text, std::string(2 * (path.size() - 1), ' '), last, "\n\n");
  for (std::size_t i = 0; i + 1 < path.size(); ++i) text += "}\n";
  return text;
}

std::string Place(const Path& path, std::size_t column) {
  return absl::StrCat("line ", path.size() + 1, ", column ", 2 * (path.size() - 1) + column, ": ");
}

std::string ParseError(const std::string& text) {
  const absl::Status status = ParseModelConfig(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

// Values that protobuf does not take in the field.
std::vector<std::string> WrongValues(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return {"\"4\"", "four", "1.5", "-x", "9223372036854775808", "-9223372036854775809", "true"};
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT: return {"\"4\"", "four", "-y", "0x10", "010", "true"};
    case FieldDescriptor::CPPTYPE_BOOL: return {"\"true\"", "yes", "TRUE", "2", "-1", "1.5"};
    case FieldDescriptor::CPPTYPE_ENUM:
      return {"NO_SUCH", "\"NO_SUCH\"", "1.5", "2147483648", "-2147483649", "-NONE"};
    case FieldDescriptor::CPPTYPE_STRING: return {"plain", "1", "1.5", "-\"a\""};
    default: return {"1", "plain", "\"text\""};
  }
}

TEST(ConfigErrorsTest, AWrongValueHasLineFieldWhatCameAndWhatIsPossible) {
  int tried = 0;
  for (const Path& path : AllFields()) {
    const FieldDescriptor& field = *path.back();
    for (const std::string& wrong : WrongValues(field)) {
      const std::string name = absl::StrCat(field.name(), ": ");
      const std::string error = ParseError(TextWith(path, name + wrong));
      EXPECT_THAT(error, HasSubstr(absl::StrCat(Place(path, name.size() + 1), Name(path), ": ",
                                                wrong, ", wanted ")));
      if (!field.is_repeated()) continue;
      EXPECT_THAT(ParseError(TextWith(path, absl::StrCat(name, "[", wrong, "]"))),
                  HasSubstr(absl::StrCat(Place(path, name.size() + 2), Name(path), ": ", wrong,
                                         ", wanted ")));
      ++tried;
    }
    EXPECT_THAT(ParseError(TextWith(path, absl::StrCat(field.name(), " = 1"))),
                HasSubstr(absl::StrCat(", wanted ")));
    ++tried;
  }
  EXPECT_GT(tried, 100);
}

TEST(ConfigErrorsTest, ABraceThatIsMissingIsSaidToBe) {
  EXPECT_EQ(ParseError("dtypes: FLOAT32\nrms_norm {\n  normalized_shape: 4\n"),
            "line 2, column 10: rms_norm: a { that is not closed, wanted } before the end of the "
            "file");
  EXPECT_EQ(ParseError("version_policy <\n  latest { num_versions: 2 }\n"),
            "line 1, column 16: version_policy: a < that is not closed, wanted > before the end of "
            "the file");
  EXPECT_EQ(ParseError("rms_norm {\n  normalized_shape: 4\n}\n}\n"),
            "line 4, column 1: a } that closes nothing, wanted the name of a field");
  EXPECT_THAT(ParseError("rms_norm {\n  normalized_shape: 4\ndtypes: FLOAT32\n"),
              AllOf(HasSubstr("line 3, column 1: rms_norm: unknown field \"dtypes\""),
                    HasSubstr("is a } missing before it?")));
  EXPECT_THAT(ParseError("rms_norm\n  normalized_shape: 4\n}\n"),
              HasSubstr("line 2, column 3: rms_norm: normalized_shape, wanted {"));
}

TEST(ConfigErrorsTest, JsonIsSaidToBeThat) {
  for (const char* text : {"{\"rms_norm\": {\"normalized_shape\": [4]}}", "[1]", "\n { }"}) {
    EXPECT_THAT(ParseError(text), HasSubstr(": JSON, wanted protobuf text format, such as"));
  }
  EXPECT_EQ(ParseError("rms_norm: { \"normalized_shape\": 4 }"),
            "line 1, column 13: rms_norm: a name in quotes, as in JSON, wanted the name of a field "
            "or }, without quotes");
  // Nothing is quoted of a file that may be of another kind.
  EXPECT_THAT(ParseError("\"secret\": 1"), Not(HasSubstr("secret")));
}

TEST(ConfigErrorsTest, AConfigOfTritonsIsSaidToBeThat) {
  EXPECT_THAT(ParseError("name: \"resnet\"\nplatform: \"onnxruntime_onnx\"\n"),
              AllOf(HasSubstr("line 1, column 1: unknown field \"name\""),
                    HasSubstr("that is of Triton's config.pbtxt: here the folder has the model's "
                              "name, and an operation says the rest"),
                    Not(HasSubstr("resnet"))));
  for (const char* field : {"backend", "max_batch_size", "input", "instance_group"}) {
    EXPECT_THAT(ParseError(absl::StrCat("rms_norm { normalized_shape: 4 }\n", field, ": 1")),
                HasSubstr("that is of Triton's config.pbtxt"));
  }
}

TEST(ConfigErrorsTest, AnUnknownFieldHasLineMessageNameAndTheFieldsThere) {
  std::vector<Path> messages = {{}};
  for (Path& path : AllFields()) {
    if (path.back()->message_type() != nullptr) messages.push_back(std::move(path));
  }
  for (Path path : messages) {
    const Descriptor& message =
        path.empty() ? *v1::ModelConfig::descriptor() : *path.back()->message_type();
    const std::string where = path.empty() ? "" : absl::StrCat(Name(path), ": ");
    path.push_back(nullptr);
    // At the top a name that resembles none is not quoted: nothing has shown yet that this is a
    // config.
    const std::string name = where.empty() ? "" : " \"no_such_thing\"";
    const std::string error = ParseError(TextWith(path, "no_such_thing: 1"));
    EXPECT_THAT(error, HasSubstr(absl::StrCat(Place(path, 1), where, "unknown field", name,
                                              ", wanted one of ")));
    EXPECT_THAT(error, Not(HasSubstr("did you mean")));
    for (int i = 0; i < message.field_count(); ++i) {
      EXPECT_THAT(error, HasSubstr(message.field(i)->name()));
    }
  }
}

TEST(ConfigErrorsTest, ASecondValueIsToldWhereItStands) {
  for (const Path& path : AllFields()) {
    const FieldDescriptor& field = *path.back();
    if (field.is_repeated()) continue;
    std::string value = ": 1";
    if (field.message_type() != nullptr) value = " {}";
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) value = ": \"a\"";
    const std::string one = field.name() + value;
    EXPECT_THAT(ParseError(TextWith(path, absl::StrCat(one, " ", one))),
                HasSubstr(absl::StrCat(Place(path, one.size() + 2), Name(path),
                                       ": a second one, wanted one")));
  }
}

// What an error lists after ", wanted ", by name.
std::set<std::string> Listed(const std::string& error) {
  const std::size_t begin = error.find(", wanted ") + 9;
  std::string list = error.substr(begin, error.find(';', begin) - begin);
  list = absl::StrReplaceAll(list, {{" or ", ", "}, {" (not of linear_norm)", ""}});
  return absl::StrSplit(list, ", ");
}

// Changes one letter of a name, takes it away, or adds one.
std::set<std::string> NearNames(const std::string& name) {
  std::set<std::string> near = {"X" + name, name + "X", "B" + name, "C" + name};
  for (std::size_t i = 0; i < name.size(); ++i) {
    near.insert(name.substr(0, i) + name.substr(i + 1));
    for (const char c : {'X', 'S', '1', '3', '6'}) {
      std::string changed = name;
      changed[i] = c;
      near.insert(changed);
    }
  }
  return near;
}

std::string Folded(std::string name) { return absl::StrReplaceAll(name, {{"_", ""}}); }

TEST(ConfigErrorsTest, AnErrorOfAnEnumListsWhatIsTakenThereAndGuessesNoOtherFunction) {
  const std::set<std::string> others = absl::StrSplit(
      "GELU RELU6 PRELU SELU ELU CRELU TANH FLOAT8_E5M2 UINT8 INT16 INT32 BOOL FLOAT128 "
      "PER_COL PER_TOKEN PRECISION_TF16 PRECISION_FLOAT16 PRECISION_FLOAT64",
      ' ');
  for (const Path& path : AllFields()) {
    const EnumDescriptor* const values = path.back()->enum_type();
    if (values == nullptr) continue;
    const auto error_of = [&](const std::string& value) {
      return ParseError(TextWith(path, absl::StrCat(path.back()->name(), ": ", value)));
    };
    const std::set<std::string> listed = Listed(error_of("NO_SUCH"));
    EXPECT_GE(listed.size(), 2u);
    for (const std::string& value : listed) {
      std::string text = absl::StrCat(path.back()->name(), ": ", value);
      if (path.back()->name() == "scales") text += " dtype: INT8";
      if (path.front()->name() == "quantization") {
        text += value == "PER_ROW" || value == "PER_BLOCK" ? "" : " scale: 1";
        text += "\n} rms_norm { normalized_shape: 4";
      } else if (path.front()->name() == "linear_norm") {
        text += " in_features: 4 out_features: 4";
      } else {
        text += " group_norm { channels: 4 groups: 2 }";
      }
      const auto config = ParseModelConfig(TextWith(path, text));
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(CheckModelConfig(*config), absl::OkStatus()) << value;
    }
    std::set<std::string> wrong = others;
    for (int i = 0; i < values->value_count(); ++i) {
      for (const std::string& near : NearNames(values->value(i)->name())) wrong.insert(near);
    }
    for (const std::string& name : wrong) {
      if (values->FindValueByName(name) != nullptr || std::isdigit(name[0])) continue;
      const std::string error = error_of(name);
      const std::size_t guess = error.find("did you mean ");
      if (guess == std::string::npos || name == "GELU") continue;
      const std::string meant =
          error.substr(guess + 13, error.find_first_of("?,", guess) - guess - 13);
      EXPECT_TRUE(Folded(name) == Folded(meant) || "CHANNELS" + name.substr(7) == meant)
          << name << ": " << error;
    }
  }
  EXPECT_THAT(ParseError("activation: GELU\nlayout: CHANNELS_LAST"),
              HasSubstr("line 1, column 13: activation: GELU, wanted NONE, RELU, LEAKY_RELU, SILU, "
                        "GELU_ERF or GELU_TANH; did you mean GELU_ERF, torch.nn.GELU, or "
                        "GELU_TANH, its approximate=\"tanh\"?"));
  EXPECT_THAT(ParseError("\ndtypes: [float32]"),
              HasSubstr("line 2, column 10: dtypes[0]: float32, wanted FLOAT32, FLOAT64 (not of "
                        "linear_norm), FLOAT16 or BFLOAT16; did you mean FLOAT32?"));
  EXPECT_THAT(ParseError("dtypes: \"float32\""), HasSubstr("BFLOAT16 without quotes; did you mean "
                                                           "FLOAT32?"));
  EXPECT_THAT(ParseError("quantization { dtype: FLOAT8 }"),
              HasSubstr("wanted INT8 or FLOAT8_E4M3"));
}

TEST(ConfigErrorsTest, NamesThatMeanSomethingElseAreNotGuessed) {
  for (const char* other : {"l1_normalize {", "l2_norm {", "layer_norm { bias: true",
                            "group_norm { group_size: 4", "rms_norm { dim: 4", "weight_norm {"}) {
    EXPECT_THAT(ParseError(other), Not(HasSubstr("did you mean"))) << other;
  }
  EXPECT_THAT(ParseError("rms_norm { normalised_shape: 4 }"),
              HasSubstr("did you mean \"normalized_shape\"?"));
}

// What a config of each operation needs.
constexpr const char* kOperations[] = {"instance_norm { channels: 4 }",
                                       "group_norm { channels: 4 groups: 2 }",
                                       "layer_norm { normalized_shape: 4 }",
                                       "rms_norm { normalized_shape: 4 }",
                                       "batch_norm { channels: 4 }",
                                       "linear_norm { in_features: 4 out_features: 4 }",
                                       "add_rms_norm { normalized_shape: 4 }",
                                       "add_layer_norm { normalized_shape: 4 }",
                                       "gated_rms_norm { normalized_shape: 4 }",
                                       "lp_normalize { normalized_shape: 4 }",
                                       "adaptive_layer_norm { features: 4 }",
                                       "adaptive_group_norm { channels: 4 groups: 2 }",
                                       "adaptive_instance_norm { channels: 4 }",
                                       "conditional_instance_norm { channels: 4 styles: 2 }",
                                       "scale_norm { normalized_shape: 4 }"};

// Sets the field at the end of `path` to the value's `index`; false: there are no more.
bool SetValue(Message& config, const Path& path, std::size_t index) {
  Message* message = &config;
  for (std::size_t i = 0; i + 1 < path.size(); ++i) {
    const auto* const reflection = message->GetReflection();
    message = path[i]->is_repeated() ? reflection->AddMessage(message, path[i])
                                     : reflection->MutableMessage(message, path[i]);
  }
  const auto* const reflection = message->GetReflection();
  const FieldDescriptor* const field = path.back();
  const auto set = [&](const auto& values, auto set_one, auto add_one) {
    if (index >= values.size()) return false;
    if (field->is_repeated()) {
      (reflection->*add_one)(message, field, values[index]);
    } else {
      (reflection->*set_one)(message, field, values[index]);
    }
    return true;
  };
  using google::protobuf::Reflection;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: {
      constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
      return set(std::vector<std::int64_t>{-1, 0, 3, kMost, -kMost}, &Reflection::SetInt64,
                 &Reflection::AddInt64);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return set(std::vector<double>{-1, 0, NAN, INFINITY, -INFINITY, 1e300, 1e-300},
                 &Reflection::SetDouble, &Reflection::AddDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return set(std::vector<float>{0.5F}, &Reflection::SetFloat, &Reflection::AddFloat);
    case FieldDescriptor::CPPTYPE_ENUM:
      return set(std::vector<int>{-1, 0, 1, 2, 3, 4, 5, 6, 7, 99}, &Reflection::SetEnumValue,
                 &Reflection::AddEnumValue);
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::vector<std::string> values = {"", "\xff", std::string(600, 'a'), "weight",
                                               "a name, wanted: [0]: {}"};
      if (index >= values.size()) return false;
      if (field->is_repeated()) {
        reflection->AddString(message, field, values[index]);
      } else {
        reflection->SetString(message, field, values[index]);
      }
      return true;
    }
    default: return false;
  }
}

std::string FileError(const std::string& text) {
  const testing::TempFolder dir;
  dir.Write("config.textproto", text);
  const absl::StatusOr<RootFolder> root = RootFolder::Open(dir.path());
  EXPECT_TRUE(root.ok()) << root.status();
  absl::StatusOr<InputFile> file = root->OpenFile("config.textproto", kMaxConfigBytes);
  EXPECT_TRUE(file.ok()) << file.status();
  return std::string(ReadModelConfig(*file).status().message());
}

// The error has the place of its field, or of a message around it, in `text`.
void ExpectWhole(const std::string& error, const std::string& text) {
  static const std::regex kError(
      "config\\.textproto: line (\\d+), column (\\d+): "
      "([a-z_0-9]+(?:(?:\\[\\d+\\])?\\.[a-z_0-9]+)*)(?:\\[[^\n]*\\])?: ([^\n]+), wanted [^\n]+");
  std::smatch parts;
  ASSERT_TRUE(std::regex_match(error, parts, kError)) << error << "\n" << text;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const auto line = static_cast<std::size_t>(std::stoi(parts[1]));
  const auto column = static_cast<std::size_t>(std::stoi(parts[2]));
  ASSERT_LE(line, lines.size()) << error;
  const std::string at = lines[line - 1].substr(column - 1);
  const std::string name = at.substr(0, at.find_first_of(": "));
  const std::vector<std::string> path =
      absl::StrSplit(std::regex_replace(parts[3].str(), std::regex("\\[\\d+\\]"), ""), '.');
  ASSERT_NE(std::find(path.begin(), path.end(), name), path.end()) << error << "\n" << text;
  // It is the message around the field only where that is not there.
  if (name == path.back()) return;
  const std::string indent(2 * path.size() - 2, ' ');
  for (const std::string& other : lines) {
    EXPECT_FALSE(absl::StartsWith(other, indent + path.back() + ":")) << error << "\n" << text;
  }
}

TEST(ConfigErrorsTest, AValueOutOfRangeHasLineFieldWhatCameAndWhatIsPossible) {
  int refused = 0;
  for (const char* operation : kOperations) {
    for (const Path& path : AllFields()) {
      const bool is_operation = path.front()->real_containing_oneof() != nullptr;
      const bool own = absl::StartsWith(operation, path.front()->name() + " ");
      if (is_operation ? !own : operation != kOperations[1] && operation != kOperations[3])
        continue;
      for (std::size_t index = 0;; ++index) {
        v1::ModelConfig config;
        ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(operation, &config));
        if (!SetValue(config, path, index)) break;
        std::string text;
        ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(config, &text));
        const std::string error = FileError(text);
        if (error.empty()) continue;
        ++refused;
        ExpectWhole(error, text);
      }
    }
  }
  EXPECT_GT(refused, 150);
}

TEST(ConfigErrorsTest, NamesTheLineOfTheEntryThatIsWrong) {
  EXPECT_THAT(FileError("rms_norm { normalized_shape: 4 }\n"
                        "parameter_names { key: \"weight\" value: \"w\" }\n"
                        "parameter_names { key: \"bias\" value: \"b\" }\n"
                        "parameter_names { key: \"weight\" value: \"v\" }\n"),
              HasSubstr("line 3, column 1: parameter_names[\"bias\"]: unknown key, wanted weight"));
  EXPECT_THAT(FileError("rms_norm { normalized_shape: 4 }\n"
                        "version_alias { name: \"a\" version: 1 }\n"
                        "version_alias {\n  name: \"b\"\n  version: -1\n}\n"),
              HasSubstr("line 5, column 3: version_alias[1].version: -1, wanted a version"));
  EXPECT_THAT(FileError("rms_norm {\n  normalized_shape: [1,\n  0]\n}\n"),
              HasSubstr("normalized_shape[1]: 0, wanted at least 1"));
}

}  // namespace
}  // namespace normd
