// A range of a model's channels, for a tensor that is a part of one sample.

#ifndef NORMD_OPERATIONS_CHANNEL_RANGE_H_
#define NORMD_OPERATIONS_CHANNEL_RANGE_H_

#include <cstdint>

namespace normd::norm {
struct NormParams;
struct NormSpec;
}  // namespace normd::norm

namespace normd {

// Whole groups of a channels-first sample, which are adjacent in memory: whole rows.
struct ChannelRange {
  std::int64_t first = 0;
  std::int64_t count = 0;  // 0: every channel.

  bool all() const { return count == 0; }
  friend bool operator==(const ChannelRange&, const ChannelRange&) = default;
};

// The spec and the parameters of those channels. A row computed with them has the same bits as in
// its whole sample.
norm::NormSpec SpecOf(const norm::NormSpec& spec, const ChannelRange& channels);
norm::NormParams ParamsOf(const norm::NormParams& params, const ChannelRange& channels);

}  // namespace normd

#endif  // NORMD_OPERATIONS_CHANNEL_RANGE_H_
