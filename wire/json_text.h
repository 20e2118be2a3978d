// Text in JSON.

#ifndef NORMD_WIRE_JSON_TEXT_H_
#define NORMD_WIRE_JSON_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace normd {

// Appends a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonText(absl::string_view text, std::string& out);

}  // namespace normd

#endif  // NORMD_WIRE_JSON_TEXT_H_
