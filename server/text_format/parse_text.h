// Files in protobuf's text format, with errors in the words of their schema.

#ifndef NORMD_SERVER_TEXT_FORMAT_PARSE_TEXT_H_
#define NORMD_SERVER_TEXT_FORMAT_PARSE_TEXT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace normd {

// The longest part of a text that an error quotes.
inline constexpr std::size_t kMaxQuotedBytes = 40;

// What the schema's descriptors do not say. A null function adds nothing.
struct TextSchema {
  const google::protobuf::Descriptor* root;  // Of ParseText's message.
  // What may stand in an enum field, where not every named value but 0 may.
  std::string (*possible)(const google::protobuf::FieldDescriptor& field) = nullptr;
  // For a name that is none of `message`'s fields, or a value that is none of `field`'s: what to
  // write instead, as the sentence's end ("did you mean ..."). Only for what means the same.
  std::string (*field_advice)(const google::protobuf::Descriptor& message,
                              absl::string_view name) = nullptr;
  std::string (*value_advice)(const google::protobuf::FieldDescriptor& field,
                              absl::string_view value) = nullptr;
};

// Parses `text`, and tells where its fields stand if `places` is not null. InvalidArgument has the
// first error: line and column, counted from 1, its field, what came, and what was wanted. It
// quotes at most kMaxQuotedBytes of a value, and nothing before the first field of the schema: the
// text may be a file of another kind.
absl::Status ParseText(const TextSchema& schema, absl::string_view text,
                       google::protobuf::Message& parsed,
                       google::protobuf::TextFormat::ParseInfoTree* places = nullptr);

// "line 3, column 5: " for an error that begins with the path of a field of `parsed`, such as
// `group_norm.groups: ` or `names["weight"]: `; a field that is not there has the place of the
// message around it. Empty where that is the whole text. `places` are those of the text.
std::string PlaceInText(const google::protobuf::Message& parsed,
                        const google::protobuf::TextFormat::ParseInfoTree& places,
                        absl::string_view error);

// "NONE, RELU or SILU": the named values of an enum but its UNSPECIFIED.
std::string ListValues(const google::protobuf::EnumDescriptor& values);

// The one of `names` that `name` is, but for case, underscores, and two slips at most, fewer in
// a short one; empty when there is none. Names with other digits are other names.
std::string NearestName(absl::string_view name, const std::vector<std::string>& names);
// Without underscores and in lower case: "GroupNorm" is "group_norm" to its writer.
std::string FoldedName(absl::string_view name);

}  // namespace normd

#endif  // NORMD_SERVER_TEXT_FORMAT_PARSE_TEXT_H_
