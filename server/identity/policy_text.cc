#include "server/identity/policy_text.h"

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "google/protobuf/io/tokenizer.h"

namespace normd {
namespace {

// The first error; what follows may come from it.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (!text_.empty()) return;
    // A negative line: the error concerns the whole input.
    if (line >= 0) absl::StrAppend(&text_, "line ", line + 1, ", column ", column + 1, ": ");
    absl::StrAppend(&text_, Printable(message, 160));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

absl::Status PolicyText::Parse(absl::string_view text) {
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(8);
  parser.WriteLocationsTo(&lines_);
  if (parser.ParseFromString(std::string(text), &policy_)) return absl::OkStatus();
  return absl::InvalidArgumentError(error.text());
}

std::string PolicyText::PlaceOfRole(int index) const {
  return Place("role", index, policy_.role(index).name());
}

std::string PolicyText::PlaceOfIdentity(int index) const {
  return Place("identity", index, policy_.identity(index).name());
}

std::string PolicyText::Place(const char* field, int index, absl::string_view name) const {
  const auto location = lines_.GetLocation(v1::Policy::descriptor()->FindFieldByName(field), index);
  return absl::StrCat("line ", location.line + 1, ": ", field, " \"", Printable(name, 64), "\"");
}

}  // namespace normd
