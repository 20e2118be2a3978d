#include <array>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "server/exec/device/device_work.h"
#include "server/exec/device/pieces.h"

namespace normd {
namespace {

// The steps of a piece, each on a stream.
constexpr std::size_t kSteps = 3;
constexpr std::array<Stage, kSteps> kStages = {Stage::kCopyIn, Stage::kCompute, Stage::kCopyOut};

// The marks around each step of one piece.
struct PieceMarks {
  std::array<DeviceStream::Mark, kSteps> begin{};
  std::array<DeviceStream::Mark, kSteps> end{};
};

// Takes the pieces of one wave through their steps.
class PieceWork {
 public:
  PieceWork(const DeviceWork& work, DeviceWave& wave);

  // Enqueues the piece's steps.
  absl::Status Enqueue(const Piece& piece);
  // Waits for all of them, if `status` is OK, and takes their times. Leaves the staging and the
  // streams ready for the next wave.
  absl::Status Finish(absl::Status status);

 private:
  // Enqueues a step between its marks, to begin when the one before it has ended.
  absl::Status Take(std::size_t step, PieceMarks& marks, absl::FunctionRef<absl::Status()> enqueue);
  absl::Status CopyIn(const Piece& piece);
  absl::Status CopySegmentIn(DeviceWave::Item& item, const PieceSegment& segment);
  absl::Status CopyInputIn(DeviceWave::Input& input, std::size_t offset, std::size_t bytes);
  absl::Status Launch(const Piece& piece);
  absl::Status CopyOut(const Piece& piece);

  const DeviceWork& work_;
  DeviceWave& wave_;
  const std::array<DeviceStream*, kSteps> streams_;
  std::vector<PieceMarks> marks_;  // One for each piece.
};

PieceWork::PieceWork(const DeviceWork& work, DeviceWave& wave)
    : work_(work),
      wave_(wave),
      streams_{&work.streams.in(), &work.streams.compute(), &work.streams.out()} {
  for (DeviceWave::Item& item : wave.items) {
    for (DeviceWave::Input& input : item.inputs) {
      input.place = input.on_device ? input.there : work.arena + input.offset;
    }
    for (DeviceWave::Output& output : item.outputs) {
      output.place = output.on_device ? output.memory.data() : work.arena + output.offset;
    }
  }
}

absl::Status PieceWork::Enqueue(const Piece& piece) {
  PieceMarks& marks = marks_.emplace_back();
  absl::Status status = Take(0, marks, [&] { return CopyIn(piece); });
  if (status.ok()) status = Take(1, marks, [&] { return Launch(piece); });
  if (status.ok()) status = Take(2, marks, [&] { return CopyOut(piece); });
  return status;
}

absl::Status PieceWork::Take(std::size_t step, PieceMarks& marks,
                             absl::FunctionRef<absl::Status()> enqueue) {
  DeviceStream& stream = *streams_[step];
  const auto add_mark = [&stream](DeviceStream::Mark& target) {
    absl::StatusOr<DeviceStream::Mark> added = stream.AddMark();
    if (added.ok()) target = *added;
    return added.status();
  };
  absl::Status status;
  if (step > 0 && streams_[step - 1] == &stream) {
    marks.begin[step] = marks.end[step - 1];
  } else {
    if (step > 0) status = stream.Await(*streams_[step - 1], marks.end[step - 1]);
    if (status.ok()) status = add_mark(marks.begin[step]);
  }
  if (status.ok()) status = enqueue();
  return status.ok() ? add_mark(marks.end[step]) : status;
}

absl::Status PieceWork::CopyIn(const Piece& piece) {
  for (const PieceSegment& segment : piece.segments) {
    absl::Status status = CopySegmentIn(wave_.items[segment.request], segment);
    if (!status.ok()) return status;
  }
  return work_.staging.Send(*streams_[0]);
}

absl::Status PieceWork::CopySegmentIn(DeviceWave::Item& item, const PieceSegment& segment) {
  for (DeviceWave::Input& input : item.inputs) {
    if (input.on_device) continue;
    absl::Status status =
        CopyInputIn(input, segment.OffsetIn(input.bytes), segment.BytesOf(input.bytes));
    // Between the parts of several tensors lie other parts of them, already in work.
    if (status.ok() && item.places > 1 && segment.count < segment.units) {
      status = work_.staging.Send(*streams_[0]);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status PieceWork::CopyInputIn(DeviceWave::Input& input, std::size_t offset,
                                    std::size_t bytes) {
  DeviceStream& stream = *streams_[0];
  std::byte* const target = work_.arena + input.offset + offset;
  if (input.there == nullptr) return work_.staging.Gather(input.reader, target, bytes, stream);
  DeviceRange range(work_.device, "copy_in");
  if (absl::Status status = work_.staging.Send(stream); !status.ok() || bytes == 0) return status;
  work_.staging.AddCopied(bytes);
  return stream.CopyIn(target, input.there + offset, bytes);
}

absl::Status PieceWork::Launch(const Piece& piece) {
  DeviceRange range(work_.device, "compute");
  absl::InlinedVector<DeviceSegment, 16> segments;
  for (const PieceSegment& segment : piece.segments) {
    segments.push_back(wave_.items[segment.request].Segment(segment, piece.channels));
  }
  return work_.program.Launch(work_.site, work_.dtype, segments);
}

absl::Status PieceWork::CopyOut(const Piece& piece) {
  DeviceRange range(work_.device, "copy_out");
  for (const PieceSegment& segment : piece.segments) {
    for (DeviceWave::Output& output : wave_.items[segment.request].outputs) {
      if (output.on_device || output.bytes == 0) continue;
      const std::size_t offset = segment.OffsetIn(output.bytes);
      const std::size_t bytes = segment.BytesOf(output.bytes);
      absl::Status status =
          streams_[2]->CopyOut(output.memory.data() + offset, output.place + offset, bytes);
      if (!status.ok()) return status;
      wave_.copied_out_bytes += bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status PieceWork::Finish(absl::Status status) {
  for (DeviceWave::Item& item : wave_.items) item.ReleaseInputs();
  // Every piece ends on that stream.
  if (status.ok()) status = streams_[2]->Wait();
  if (!status.ok()) work_.streams.Drain();
  if (status.ok()) {
    for (const PieceMarks& marks : marks_) {
      for (std::size_t i = 0; i < kSteps; ++i) {
        wave_.times[kStages[i]] += streams_[i]->Between(marks.begin[i], marks.end[i]);
      }
    }
  }
  wave_.times[Stage::kGather] = work_.staging.gather_time();
  wave_.copied_in_bytes = work_.staging.copied_bytes();
  work_.staging.Reset();
  for (const auto& stream : work_.streams.all) stream->ClearMarks();
  return status;
}

}  // namespace

absl::Status RunPieces(const DeviceWork& work, const CutRule& cut, std::int64_t piece_bytes,
                       DeviceWave& wave) {
  std::vector<Geometry> geometries;
  for (const DeviceWave::Item& item : wave.items) geometries.push_back(item.request->geometry);
  PieceWork pieces(work, wave);
  absl::Status status;
  for (const Piece& piece : CutIntoPieces(cut, geometries, piece_bytes)) {
    status = pieces.Enqueue(piece);
    if (!status.ok()) break;
  }
  return pieces.Finish(std::move(status));
}

}  // namespace normd
