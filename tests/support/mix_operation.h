// An operation for tests: three inputs and two outputs, of different types, so that nothing between
// the front ends and the lanes can rely on one of each.

#ifndef NORMD_TESTS_SUPPORT_MIX_OPERATION_H_
#define NORMD_TESTS_SUPPORT_MIX_OPERATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/memory.h"
#include "server/batching/request.h"
#include "server/exec/cpu_program.h"
#include "server/model/model.h"

namespace normd {

// A sample has x, three float32; g, three float16 of the values 0 to 8; s, one float64.
//   y = x * g (three float32),  t = s + the sum of x (one float64)
inline constexpr std::int64_t kMixWidth = 3;
inline constexpr std::array<std::int64_t, 3> kMixInputBytes = {12, 6, 8};  // In a sample.
inline constexpr std::array<std::int64_t, 2> kMixOutputBytes = {12, 8};

// The outputs of samples from their inputs.
void ComputeMix(absl::Span<const std::byte* const> inputs, absl::Span<std::byte* const> outputs,
                std::int64_t samples);

// Without a backend state. `metrics` outlives the model.
std::shared_ptr<Model> MakeMixModel(ModelMetrics& metrics);

// The types of a request's inputs.
std::vector<TensorType> MixTypes(std::int64_t samples);

// On the CPU. With `overwrites`, x is gathered into y where it has to be.
std::unique_ptr<CpuProgram> MakeCpuMix(bool overwrites);

// The layout of a tensor: its memory, and whether it is in one piece that is aligned to its
// element.
struct MixLayout {
  MemoryPlace place;
  bool in_one_piece = true;
};

// A request whose tensors lie in memory of any kind and in any pieces, and checks of its end.
class MixRequest {
 public:
  struct Layouts {
    MixLayout inputs[3];
    // Memory that the request names; other outputs are in the lane's.
    bool named[2] = {};
    MemoryPlace outputs[2];
  };

  // Random values. `model` is of MakeMixModel.
  MixRequest(std::shared_ptr<const Model> model, std::uint64_t id, std::int64_t samples,
             const Layouts& layouts, std::mt19937_64& random);

  std::unique_ptr<Request>& request() { return request_; }
  int done_calls() const { return end_->calls; }
  const Completion& completion() const { return end_->completion; }
  // "" if it has ended once, with OK and, where they are wanted, the right bits, and has written
  // nothing beside them; otherwise the error.
  std::string Wrong() const;
  // Whether its inputs are unchanged.
  bool InputsIntact() const;

 private:
  struct End {
    int calls = 0;
    Completion completion;
  };
  using Bytes = std::vector<std::byte>;

  const std::int64_t samples_;
  const Layouts layouts_;
  Bytes values_[3];
  // The memory of the views, with a guard before and after.
  std::shared_ptr<std::vector<Bytes>> memory_;
  Bytes named_[2];
  std::size_t named_at_[2] = {};
  std::shared_ptr<End> end_;  // shared: with the request's done.
  std::unique_ptr<Request> request_;
};

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_MIX_OPERATION_H_
