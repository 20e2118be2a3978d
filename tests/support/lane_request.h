// A request for any operation as a lane gets it: random inputs in memory of any layout, its end,
// and the check of its outputs against float64.

#ifndef NORMD_TESTS_SUPPORT_LANE_REQUEST_H_
#define NORMD_TESTS_SUPPORT_LANE_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/batching/request.h"
#include "tests/support/tensor.h"

namespace normd {

using Dims = std::vector<std::int64_t>;

// The layout of an input's bytes. Pieces lie apart, except for kAdjacent.
enum class Split {
  kOnePiece,
  kMisaligned,   // One piece at an odd address.
  kAtSamples,    // Pieces of whole samples.
  kAnywhere,     // Pieces of up to two samples.
  kSingleBytes,  // The first 128 KiB; one piece has the rest.
  kAdjacent,     // Two pieces that touch.
  kWithEmpty,    // An empty piece among pieces of odd lengths.
  kSlices,       // Pieces of up to 777 bytes.
};
inline constexpr Split kSplits[] = {Split::kOnePiece,  Split::kMisaligned,  Split::kAtSamples,
                                    Split::kAnywhere,  Split::kSingleBytes, Split::kAdjacent,
                                    Split::kWithEmpty, Split::kSlices};

// How close outputs are to float64.
enum class Closeness {
  kRounded,  // Each element is the rounded reference: fake devices compute that.
  kKernels,  // Within TightTolerance; sums exact, quantized elements one step away at the most.
  kDeviceKernels,  // The same, but for the longest rows: float32 within 2e-5, float64 1e-11.
};

// Moves as a value; `done` may run after its end. Not thread-safe, but a lane's thread may run
// `done` before the test looks.
class LaneRequest {
 public:
  // Each input in one piece, with values that `seed` decides. `shapes`: one for each input.
  LaneRequest(const std::shared_ptr<const Model>& model, const std::vector<Dims>& shapes,
              norm::DType dtype = norm::DType::kFloat32, std::uint64_t seed = 0);

  // The request, to be changed and executed. Null once it has been moved on.
  std::unique_ptr<Request>& request() { return request_; }
  // A change of its values reaches the request with the next Lay.
  norm::testing::Tensor& input(std::size_t index) { return inputs_[index]; }

  // Asks for the outputs on request too.
  void AskForStatistics();
  // Copies the inputs to new memory: all alike, or one split for each.
  void Lay(Split split) { Lay(std::vector<Split>(inputs_.size(), split)); }
  void Lay(const std::vector<Split>& splits);
  // Has the output written to `memory`.
  void NameOutput(std::size_t index, MutableBytes memory, MemoryPlace place = {});
  void NameOutput(std::size_t index, norm::testing::Tensor& tensor);
  // Leaves `channels` of its only sample, the rows of which have `row_channels` each. Of one input.
  void CutTo(ChannelRange channels, std::int64_t row_channels, Split split = Split::kOnePiece);

  int done_calls() const { return end_->calls; }
  const Completion& completion() const { return end_->completion; }
  absl::StatusCode code() const { return completion().status.code(); }
  bool InputsReleasedBeforeDone() const { return end_->inputs_released; }
  // The bytes of the output, wherever they are.
  norm::testing::Tensor Output(std::size_t index) const;
  // "" if it has ended once, with OK and the outputs that were asked for, and these are right. The
  // model still exists.
  std::string Wrong(Closeness closeness) const;
  // "" if its outputs have the bits of the other's, which has all that this one asked for.
  std::string Differs(const LaneRequest& other) const;

 private:
  struct End {
    std::weak_ptr<void> inputs;
    int calls = 0;
    bool inputs_released = false;
    Completion completion;
  };

  // "" if it has ended once with OK and buffers of the right sizes.
  std::string WrongEnd() const;
  std::int64_t PartBytes() const;
  ByteViews Lay(ConstBytes bytes, Split split, std::vector<std::byte>& memory) const;
  void Own(std::shared_ptr<void> memory);

  std::weak_ptr<const Model> model_;  // weak: tests see when lanes let go of it.
  std::uint64_t seed_;
  Geometry geometry_;  // As Model::Check made it, with the outputs that are asked for.
  std::optional<ChannelRange> part_;
  std::vector<norm::testing::Tensor> inputs_;
  std::vector<const std::byte*> named_;  // For each output, null where none is named.
  std::shared_ptr<End> end_;             // shared: with the request's done.
  std::unique_ptr<Request> request_;
};

// A batch of these requests, of the first one's model and type.
std::unique_ptr<Batch> BatchOf(absl::Span<LaneRequest* const> requests);

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_LANE_REQUEST_H_
