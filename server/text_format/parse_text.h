// Files in protobuf's text format, with errors in the words of their schema.

#ifndef NORMD_SERVER_TEXT_FORMAT_PARSE_TEXT_H_
#define NORMD_SERVER_TEXT_FORMAT_PARSE_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace normd {

// The longest part of a text that an error quotes.
inline constexpr std::size_t kMaxQuotedBytes = 40;

// Information that the schema's descriptors do not have. A null function adds nothing.
struct TextSchema {
  const google::protobuf::Descriptor* root;  // ParseText's message type.
  // The valid values of an enum field, unless every named value but 0 is valid.
  std::string (*possible)(const google::protobuf::FieldDescriptor& field) = nullptr;
  // For an unknown field of `message`, or an unknown value of `field`: the replacement, as the end
  // of the sentence ("did you mean ..."). Only for the same meaning.
  std::string (*field_advice)(const google::protobuf::Descriptor& message,
                              absl::string_view name) = nullptr;
  std::string (*value_advice)(const google::protobuf::FieldDescriptor& field,
                              absl::string_view value) = nullptr;
};

// Parses `text`, and reports its fields' places if `places` is not null. InvalidArgument has the
// first error: line and column, counted from 1, its field, what came, and what was wanted. It
// quotes at most kMaxQuotedBytes of a value, and nothing before the first field of the schema: the
// text may be a file of another kind.
absl::Status ParseText(const TextSchema& schema, absl::string_view text,
                       google::protobuf::Message& parsed,
                       google::protobuf::TextFormat::ParseInfoTree* places = nullptr);

// "line 3, column 5: " for an error that begins with the path of a field of `parsed`, such as
// `group_norm.groups: ` or `names["weight"]: `; a missing field has the place of the message around
// it. Empty if that is the whole text. `places` are those of the text.
std::string PlaceInText(const google::protobuf::Message& parsed,
                        const google::protobuf::TextFormat::ParseInfoTree& places,
                        absl::string_view error);

// "NONE, RELU or SILU": the named values of an enum except UNSPECIFIED.
std::string ListValues(const google::protobuf::EnumDescriptor& values);

}  // namespace normd

#endif  // NORMD_SERVER_TEXT_FORMAT_PARSE_TEXT_H_
