// Selects the code that computes a segment stage by stage.

#include "kernels/cpu/staged.h"

namespace normd::norm::cpu {
namespace {

template <class Acc>
void NormalizeStages(const Batch& batch, const Segment& segment) {
  const NormSpec& spec = batch.spec;
  const bool given = spec.statistics == Statistics::kGiven;
  const bool one_position = segment.spatial == 1;
  const bool channels_adjacent = spec.layout == Layout::kChannelsLast && spec.channels > 1;
  const bool tiled = given ? one_position || channels_adjacent
                     : spec.rows == Rows::kGroup
                         ? channels_adjacent && !one_position
                         : spec.layout == Layout::kChannelsFirst && !one_position;
  if (tiled) {
    ForSamplesTogether(batch, segment, [&](const Segment& part) {
      NormalizeStagedTiles(Stages<Acc>(batch, part));
    });
  } else {
    NormalizeStagedRows(Stages<Acc>(batch, segment));
  }
}

}  // namespace

void NormalizeStaged(const Batch& batch, const Segment& segment) {
  if (batch.spec.dtype == DType::kFloat64) {
    NormalizeStages<double>(batch, segment);
  } else {
    NormalizeStages<float>(batch, segment);
  }
}

}  // namespace normd::norm::cpu
