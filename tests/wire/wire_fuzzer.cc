// The decoders of messages that carry tensors, held against the generated classes. The first byte
// of the input says which message is read and how many cuts follow, one byte each; the rest is the
// message.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/expect.h"
#include "tests/wire/agreement.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Protobuf logs each text that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  const std::size_t cut_count = size == 0 ? 0 : data[0] % 8;
  if (size < 1 + cut_count || size == 0) return 0;
  std::vector<std::size_t> cuts(data + 1, data + 1 + cut_count);
  std::sort(cuts.begin(), cuts.end());
  const std::string wire(reinterpret_cast<const char*>(data) + 1 + cut_count, size - 1 - cut_count);
  constexpr decltype(&normd::testing::RequestDisagreement) kMessages[] = {
      normd::testing::RequestDisagreement,       normd::testing::ResponseDisagreement,
      normd::testing::InferRequestDisagreement,  normd::testing::InferResponseDisagreement,
      normd::testing::StreamRequestDisagreement, normd::testing::StreamResponseDisagreement};
  const std::string differences = kMessages[data[0] / 8 % std::size(kMessages)](wire, cuts);
  normd::testing::Expect(differences.empty(), "both read the same", differences);
  return 0;
}
