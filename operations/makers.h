// The makers of all operations, which operations.cc lists.

#ifndef NORMD_OPERATIONS_MAKERS_H_
#define NORMD_OPERATIONS_MAKERS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operations/operation.h"

namespace normd {

// InvalidArgument names the first field of the operation's message that is wrong.
using OperationMaker = absl::StatusOr<std::unique_ptr<Operation>>(const v1::ModelConfig& config);

OperationMaker MakeInstanceNorm;  // Each channel of a sample is a row.
OperationMaker MakeGroupNorm;     // Each group of channels of a sample is a row.
OperationMaker MakeLayerNorm;
OperationMaker MakeRmsNorm;
OperationMaker MakeBatchNorm;   // Each channel has statistics from the parameters.
OperationMaker MakeLinearNorm;  // A matrix product, the norm of its rows, an epilogue.
OperationMaker MakeAddRmsNorm;  // These two are of x + residual, which is an output too.
OperationMaker MakeAddLayerNorm;
OperationMaker MakeGatedRmsNorm;       // A gate comes before or after the norm.
OperationMaker MakeLpNormalize;        // Rows are divided by one of their norms.
OperationMaker MakeAdaptiveLayerNorm;  // Scale and shift are each sample's own in these four.
OperationMaker MakeAdaptiveGroupNorm;
OperationMaker MakeAdaptiveInstanceNorm;
OperationMaker MakeConditionalInstanceNorm;
OperationMaker MakeScaleNorm;  // Rows are divided by their Euclidean norm, times one number.

}  // namespace normd

#endif  // NORMD_OPERATIONS_MAKERS_H_
