// The messages of the Open Inference Protocol's control calls as the JSON bodies of HTTP: names as
// in the .proto file, 64-bit integers as numbers, enumerators by name, bytes in base64, and every
// field but unset messages and members of a oneof. Three forms are shorter, as published:
//
//   one oneof of scalars (a parameter)              its value
//   one list of text (a trace setting)              the list
//   a map of messages that have its key as `name`   a list of them

#ifndef NORMD_WIRE_MESSAGE_JSON_H_
#define NORMD_WIRE_MESSAGE_JSON_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace normd {

// The message, or, with a `field`, the value of that alone. Bytes that are not UTF-8 become U+FFFD.
std::string WriteMessageJson(const google::protobuf::Message& message,
                             absl::string_view field = "");

// Reads a request from an object with its fields, or, with a `field`, which is a map, from the
// entries of that. {"b64": TEXT} is bytes too; a setting is text, a list, or null for none. Unknown
// keys are ignored. InvalidArgument for what is not JSON, is nested too deeply or does not fit.
// Takes some ten times the bytes of the text, which the caller limits.
absl::Status ReadMessageJson(absl::string_view text, google::protobuf::Message& message,
                             absl::string_view field = "");

}  // namespace normd

#endif  // NORMD_WIRE_MESSAGE_JSON_H_
