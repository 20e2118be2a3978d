// Where a segment's rows lie, if each is contiguous in memory.

#ifndef NORMD_KERNELS_CPU_ROW_PLACES_H_
#define NORMD_KERNELS_CPU_ROW_PLACES_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/loop_arguments.h"
#include "kernels/cpu/source.h"
#include "kernels/norm.h"
#include "kernels/sample_range.h"

namespace normd::norm::cpu {

// Rows are counted in memory order. With given statistics each channel is a row.
class RowPlaces {
 public:
  RowPlaces(const NormSpec& spec, const Segment& segment)
      : samples_(segment.samples),
        groups_(spec.statistics == Statistics::kGiven ? spec.channels : spec.groups),
        row_channels_(spec.channels / groups_),
        channel_elements_(spec.rows == Rows::kGroup ? segment.spatial : 1),
        positions_(spec.rows == Rows::kGroup ? 1 : segment.spatial),
        gaps_(GapsOf(spec, segment)) {}

  std::int64_t count() const { return samples_ * positions_ * groups_; }
  // Elements of a row.
  std::int64_t length() const { return row_channels_ * channel_elements_; }
  std::int64_t parts() const { return (length() + kPartElements - 1) / kPartElements; }
  // Adjacent elements of a row that share a channel.
  std::int64_t channel_elements() const { return channel_elements_; }

  // Divisions take part of a short row's time, and most norms need none.
  std::int64_t SampleOf(std::int64_t row) const {
    const std::int64_t rows_of_sample = positions_ * groups_;
    return rows_of_sample == 1 ? row : row / rows_of_sample;
  }
  // Element `element` of the row.
  Place At(std::int64_t row, std::int64_t element) const {
    Place place(row * length() + element);
    if (gaps_.any()) {
      place.x += SampleOf(row) * gaps_.x;
      place.y += SampleOf(row) * gaps_.y;
    }
    return place;
  }
  // The end of the rows from this one on that are equally far apart in every tensor.
  std::int64_t EndOfEven(std::int64_t row) const {
    const std::int64_t rows_of_sample = positions_ * groups_;
    if (!gaps_.any() || rows_of_sample == 1) return count();
    return (row / rows_of_sample + 1) * rows_of_sample;
  }
  std::int64_t FirstChannel(std::int64_t row) const {
    return groups_ == 1 ? 0 : row % groups_ * row_channels_;
  }

  // The row as the contract counts it: groups follow samples there, positions do in memory.
  std::int64_t OutputRow(std::int64_t row) const {
    if (positions_ == 1 || groups_ == 1) return row;
    const std::int64_t position = row / groups_ % positions_;
    return (SampleOf(row) * groups_ + row % groups_) * positions_ + position;
  }

  // Calls visit(at, count, channel) for the parts of [begin, end) of a row that share a channel, or
  // once if each element is a channel.
  template <class Visit>
  void ForChannels(std::int64_t row, std::int64_t begin, std::int64_t end,
                   const Visit& visit) const {
    if (channel_elements_ == 1) return visit(begin, end - begin, FirstChannel(row) + begin);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t index = at / channel_elements_;
      const std::int64_t stop = std::min(end, (index + 1) * channel_elements_);
      visit(at, stop - at, FirstChannel(row) + index);
      at = stop;
    }
  }

 private:
  std::int64_t samples_;
  std::int64_t groups_;
  std::int64_t row_channels_;
  std::int64_t channel_elements_;
  std::int64_t positions_;  // Positions of a sample that have rows of their own.
  SampleGaps gaps_;
};

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_ROW_PLACES_H_
