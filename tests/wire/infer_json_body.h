// Bodies of inference requests in JSON, read for tests.

#ifndef NORMD_TESTS_WIRE_INFER_JSON_BODY_H_
#define NORMD_TESTS_WIRE_INFER_JSON_BODY_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "wire/infer_json_request.h"

namespace normd {

inline absl::Status TakeAll(std::int64_t) { return absl::OkStatus(); }

// A body with what must be readable behind it: something that would change what is read.
class Body {
 public:
  explicit Body(absl::string_view text, absl::string_view binary = "", bool header = false)
      : text_(text.size()), header_(header) {
    bytes_ = absl::StrCat(text, binary);
    size_ = bytes_.size();
    // Half of the texts have the zero behind them with which they are not copied.
    if (size_ % 2 == 0) bytes_ += '\0';
    for (std::size_t i = 0; i < kJsonPadding; ++i) bytes_ += "9]}\""[i % 4];
  }

  InferJsonBody view() const {
    InferJsonBody body{ConstBytes(reinterpret_cast<const std::byte*>(bytes_.data()), size_), {}};
    if (header_) body.json_bytes = static_cast<std::int64_t>(text_);
    return body;
  }

 private:
  std::string bytes_;
  std::size_t size_ = 0;
  const std::size_t text_;
  const bool header_;
};

// The body that owns what the views are of has to stay.
struct Decoded {
  Body body;
  absl::StatusOr<InferJsonRequest> request;
};
inline Decoded Decode(absl::string_view text, absl::string_view binary = "", bool header = false) {
  Decoded decoded{Body(text, binary, header), absl::UnknownError("")};
  decoded.request = DecodeInferJson(decoded.body.view(), TakeAll);
  return decoded;
}

inline std::string BytesOf(const ReceivedInferTensor& tensor) {
  std::string bytes;
  for (const ConstBytes view : tensor.data) {
    bytes.append(reinterpret_cast<const char*>(view.data()), view.size());
  }
  EXPECT_EQ(bytes.size(), static_cast<std::size_t>(tensor.data_bytes));
  return bytes;
}

// The bytes of the only input, or the error.
inline absl::StatusOr<std::string> BytesOf(absl::string_view datatype, absl::string_view shape,
                                           absl::string_view data) {
  const Decoded decoded = Decode(absl::StrCat(R"({"inputs":[{"name":"x","datatype":")", datatype,
                                              R"(","shape":)", shape, R"(,"data":)", data, "}]}"));
  if (!decoded.request.ok()) return decoded.request.status();
  return BytesOf(decoded.request->view.inputs[0]);
}

inline absl::StatusOr<std::string> OneElement(absl::string_view datatype,
                                              absl::string_view number) {
  return BytesOf(datatype, "[1]", absl::StrCat("[", number, "]"));
}

inline std::string ErrorOf(absl::string_view text) {
  const Decoded decoded = Decode(text);
  EXPECT_TRUE(absl::IsInvalidArgument(decoded.request.status())) << text;
  return std::string(decoded.request.status().message());
}

}  // namespace normd

#endif  // NORMD_TESTS_WIRE_INFER_JSON_BODY_H_
