// Tiles: the parts in which kernels without resident rows process channels-last tensors. A tile is
// a range of positions of one sample by a range of columns; a thread keeps its column, and so its
// channels.

#ifndef NORMD_KERNELS_CUDA_CHANNELS_LAST_TILES_CUH_
#define NORMD_KERNELS_CUDA_CHANNELS_LAST_TILES_CUH_

#include "kernels/cuda/channels_last/columns.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_batch.cuh"

namespace normd::norm::cuda {

constexpr int kTileThreads = 256;

struct TileSegment {
  const char* x;
  char* y;
  std::int64_t positions;       // In a sample.
  std::int64_t tile_positions;  // In a tile; a sample's last may have fewer.
  std::uint32_t end_tile;       // Tiles of the launch up to and including this segment's.
  std::uint32_t end_sample;
  Divisor tiles_per_sample;
};

// A kernel parameter.
struct TileBatch {
  TileSegment segments[48];
  int segment_count;
  std::uint32_t tiles;  // Below 2^31.
  std::uint32_t samples;
  std::int64_t channels;
  int column_blocks;
  int columns;  // Vectors of one position in a tile; the last column block may have fewer.
  int rows;     // Positions that a block's threads touch in one step.
};

// One thread's part of a tile.
struct TileColumn {
  const char* x;  // Its first vector.
  char* y;
  std::int64_t step;   // Bytes from one vector to the next.
  std::int64_t count;  // Vectors.
  int present;         // Elements of a vector that exist.
  int x_width;
  int y_width;
  std::uint32_t sample;  // In the launch.
  std::uint32_t tile;    // In the launch.
  std::int64_t first_channel;
};

template <typename T>
__device__ inline TileColumn FindTileColumn(const TileBatch& batch, std::uint32_t tile) {
  constexpr int kCount = kPerVector<T>;
  const int thread = static_cast<int>(threadIdx.x);
  int index = 0;
  while (tile >= batch.segments[index].end_tile) ++index;
  const TileSegment& segment = batch.segments[index];
  const std::uint32_t local = tile - (index == 0 ? 0 : batch.segments[index - 1].end_tile);
  const std::uint32_t sample = segment.tiles_per_sample.Divide(local);
  const std::uint32_t in_sample = local - sample * segment.tiles_per_sample.value();
  const std::uint32_t chunk = in_sample / static_cast<std::uint32_t>(batch.column_blocks);
  const auto column_block = static_cast<int>(in_sample - chunk * batch.column_blocks);
  const int row = thread / batch.columns;
  const std::int64_t column = column_block * batch.columns + (thread - row * batch.columns);
  const std::int64_t position = chunk * segment.tile_positions + row;
  const std::int64_t end = min((chunk + 1) * segment.tile_positions, segment.positions);
  const std::int64_t position_bytes = batch.channels * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t offset =
      (sample * segment.positions + position) * position_bytes + column * kVectorBytes;
  TileColumn out;
  out.x = segment.x + offset;
  out.y = segment.y + offset;
  out.step = batch.rows * position_bytes;
  out.first_channel = column * kCount;
  out.present = static_cast<int>(
      max(std::int64_t{0}, min(std::int64_t{kCount}, batch.channels - out.first_channel)));
  out.count = row >= batch.rows || out.present == 0 || position >= end
                  ? 0
                  : (end - position + batch.rows - 1) / batch.rows;
  out.x_width = AccessWidth(segment.x, position_bytes, 0);
  out.y_width = AccessWidth(segment.y, position_bytes, 0);
  out.sample = (index == 0 ? 0 : batch.segments[index - 1].end_sample) + sample;
  out.tile = tile;
  return out;
}

constexpr int kTileUnroll = 4;  // Vectors of a thread in flight at once.

// Host side: an empty batch whose tiles are at most `max_columns` vectors wide.
inline TileBatch EmptyTileBatch(const NormSpec& spec, std::int64_t max_columns) {
  const std::int64_t per_vector = kVectorBytes / static_cast<std::int64_t>(SizeOf(spec.dtype));
  const std::int64_t columns = (spec.channels + per_vector - 1) / per_vector;
  TileBatch batch = {};
  batch.channels = spec.channels;
  batch.column_blocks = static_cast<int>((columns + max_columns - 1) / max_columns);
  batch.columns = static_cast<int>((columns + batch.column_blocks - 1) / batch.column_blocks);
  batch.rows = kTileThreads / batch.columns;
  return batch;
}

// Appends as many samples of a segment as the batch has room for; returns their number.
inline std::int64_t AppendTiles(const NormSpec& spec, const Segment& segment, std::int64_t done,
                                std::int64_t tile_positions, TileBatch* batch) {
  constexpr int kMaxSegments = sizeof(batch->segments) / sizeof(batch->segments[0]);
  constexpr std::int64_t kMaxTiles = std::int64_t{1} << 30;
  if (batch->segment_count == kMaxSegments) return 0;
  const std::int64_t tiles_per_sample =
      (segment.spatial + tile_positions - 1) / tile_positions * batch->column_blocks;
  const std::int64_t samples =
      std::min(segment.samples - done, (kMaxTiles - batch->tiles) / tiles_per_sample);
  if (samples <= 0) return 0;
  const std::int64_t skipped =
      done * spec.channels * segment.spatial * static_cast<std::int64_t>(SizeOf(spec.dtype));
  TileSegment& entry = batch->segments[batch->segment_count++];
  entry.x = static_cast<const char*>(segment.x) + skipped;
  entry.y = static_cast<char*>(segment.y) + skipped;
  entry.positions = segment.spatial;
  entry.tile_positions = tile_positions;
  entry.tiles_per_sample = Divisor(static_cast<std::uint32_t>(tiles_per_sample));
  batch->tiles += static_cast<std::uint32_t>(samples * tiles_per_sample);
  batch->samples += static_cast<std::uint32_t>(samples);
  entry.end_tile = batch->tiles;
  entry.end_sample = batch->samples;
  return samples;
}

// Calls tile_positions(segment) for each segment and flush(), which returns a cudaError_t, for each
// full batch and the last.
template <typename TilePositions, typename Flush>
Status ForEachTileBatch(const NormSpec& spec, const Segment* segments, std::size_t count,
                        const char* what, TileBatch* batch, TilePositions tile_positions,
                        Flush flush) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::int64_t done = 0; done < segments[i].samples;) {
      const std::int64_t taken =
          AppendTiles(spec, segments[i], done, tile_positions(segments[i]), batch);
      done += taken;
      if (taken > 0) continue;
      if (const Status status = ToStatus(flush(), what); !status.ok()) return status;
      batch->segment_count = 0;
      batch->tiles = 0;
      batch->samples = 0;
    }
  }
  return batch->tiles == 0 ? Status() : ToStatus(flush(), what);
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_CHANNELS_LAST_TILES_CUH_
