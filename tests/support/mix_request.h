// Requests of the mix operation whose tensors lie in memory of any kind and in any pieces, and
// checks of their ends.

#ifndef NORMD_TESTS_SUPPORT_MIX_REQUEST_H_
#define NORMD_TESTS_SUPPORT_MIX_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/memory.h"
#include "server/batching/request.h"

namespace normd {

// The layout of a tensor: its memory, and whether it is in one piece that is aligned to its
// element.
struct MixLayout {
  MemoryPlace place;
  bool in_one_piece = true;
};

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

#endif  // NORMD_TESTS_SUPPORT_MIX_REQUEST_H_
