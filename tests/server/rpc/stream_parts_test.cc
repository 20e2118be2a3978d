// A stream's parts without a connection: its pieces, its header.

#include <gmock/gmock.h>
#include <grpc/slice.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "normd/v1/norm_service.pb.h"
#include "operations/norm_operation.h"
#include "server/rpc/piece_output.h"
#include "server/rpc/stream_patience.h"
#include "server/rpc/stream_pieces.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

Geometry MakeGeometry(const norm::NormSpec& spec, std::int64_t samples, std::int64_t spatial) {
  Geometry geometry;
  geometry.samples = samples;
  geometry.spatial = spatial;
  geometry.rows = samples * spec.groups;
  geometry.inputs = {{samples * spatial * spec.channels * 4}};
  geometry.outputs = {{samples * spatial * spec.channels * 4}};
  return geometry;
}

TEST(PieceSequenceTest, CutsLargeSamplesBetweenRowsAndSmallOnesNot) {
  const norm::NormSpec spec = norm::GroupNormSpec(12, 4, norm::DType::kFloat32);
  // A row of 3 channels x 8 elements: 96 bytes; a sample: 384.
  PieceSequence rows(CutRuleOf(spec), MakeGeometry(spec, 2, 8), 300);
  EXPECT_EQ(rows.unit_bytes(), 96);
  Geometry piece = rows.Next();
  EXPECT_EQ(piece.OutputBytes(), 288);
  EXPECT_EQ(piece.rows, 3);
  EXPECT_EQ(piece.samples, 1);
  EXPECT_EQ(piece.channels, (ChannelRange{0, 9}));
  piece = rows.Next();
  EXPECT_EQ(piece.OutputBytes(), 96) << "a piece ends with its sample";
  EXPECT_EQ(piece.channels, (ChannelRange{9, 3}));
  EXPECT_EQ(rows.Next().channels, (ChannelRange{0, 9}));

  PieceSequence samples(CutRuleOf(spec), MakeGeometry(spec, 5, 8), 800);
  EXPECT_EQ(samples.unit_bytes(), 384);
  piece = samples.Next();
  EXPECT_EQ(piece.samples, 2);
  EXPECT_EQ(piece.rows, 8);
  EXPECT_TRUE(piece.channels.all());
}

TEST(PieceSequenceTest, NeverCutsAChannelsLastSample) {
  norm::NormSpec spec = norm::GroupNormSpec(12, 4, norm::DType::kFloat32);
  spec.layout = norm::Layout::kChannelsLast;
  PieceSequence pieces(CutRuleOf(spec), MakeGeometry(spec, 3, 8), 100);
  EXPECT_EQ(pieces.unit_bytes(), 384);
  EXPECT_EQ(pieces.Next().samples, 1);
}

TEST(PieceSequenceTest, NeverCutsASampleWhoseAxesAreApart) {
  norm::NormSpec spec = norm::LayerNormSpec(12, norm::DType::kFloat32);
  spec.layout = norm::Layout::kMixedRuns;
  spec.rows = norm::Rows::kPosition;
  spec.channel_runs = {4, 3, 1, 1};
  PieceSequence pieces(CutRuleOf(spec), MakeGeometry(spec, 5, 8), 800);
  EXPECT_EQ(pieces.unit_bytes(), 384);
  const Geometry piece = pieces.Next();
  EXPECT_EQ(piece.samples, 2);
  EXPECT_TRUE(piece.channels.all());
}

TEST(PieceSequenceTest, CoversEveryRowOnce) {
  std::mt19937_64 random(norm::testing::TestSeed());
  const auto pick = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 500; ++round) {
    const std::int64_t groups = pick(1, 6);
    norm::NormSpec spec = norm::GroupNormSpec(groups * pick(1, 4), groups, norm::DType::kFloat32);
    if (pick(0, 1) == 1) spec.layout = norm::Layout::kChannelsLast;
    const Geometry tensor = MakeGeometry(spec, pick(0, 5), pick(1, 9));
    const std::int64_t target = pick(1, 2000);
    std::int64_t bytes = 0;
    std::int64_t rows = 0;
    for (PieceSequence pieces(CutRuleOf(spec), tensor, target); !pieces.done();) {
      const Geometry piece = pieces.Next();
      const norm::NormSpec part = SpecOf(spec, piece.channels);
      ASSERT_EQ(piece.OutputBytes(), piece.samples * piece.spatial * part.channels * 4);
      ASSERT_EQ(piece.rows, piece.samples * part.groups);
      ASSERT_EQ(piece.InputBytes(), piece.OutputBytes());
      ASSERT_LE(piece.OutputBytes(), std::max(target, pieces.unit_bytes()));
      if (!piece.channels.all()) {
        const std::int64_t sample_bytes = tensor.OutputBytes() / tensor.samples;
        ASSERT_EQ(bytes % sample_bytes, piece.channels.first * tensor.spatial * 4);
      }
      bytes += piece.OutputBytes();
      rows += piece.rows;
    }
    ASSERT_EQ(bytes, tensor.OutputBytes());
    ASSERT_EQ(rows, tensor.rows);
  }
}

TEST(PieceAssemblerTest, GivesEveryByteToItsPieceHoweverTheyArrive) {
  std::mt19937_64 random(norm::testing::TestSeed());
  const norm::NormSpec spec = norm::InstanceNormSpec(8, norm::DType::kFloat32);
  const Geometry tensor = MakeGeometry(spec, 3, 1000);  // Rows of 4000 bytes.
  std::string bytes(static_cast<std::size_t>(tensor.OutputBytes()), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (const std::size_t largest : {std::size_t{5}, std::size_t{1500}, std::size_t{50000}}) {
    PieceAssembler assembler(PieceSequence(CutRuleOf(spec), tensor, 9000),
                             static_cast<std::int64_t>(random() % 6000));
    std::vector<ReceivedPiece> pieces;
    for (std::size_t at = 0; at < bytes.size();) {
      // A slice with bytes around the chunk's, as a message has.
      const std::size_t size = std::min(bytes.size() - at, random() % largest + 1);
      const grpc::Slice slice("head" + bytes.substr(at, size) + "tail");
      const ConstBytes view(reinterpret_cast<const std::byte*>(slice.begin()) + 4, size);
      assembler.Add(slice, view, pieces);
      at += size;
    }
    EXPECT_EQ(assembler.received_bytes(), tensor.OutputBytes());
    std::string joined;
    for (const ReceivedPiece& piece : pieces) {
      const std::size_t begin = joined.size();
      for (const ConstBytes view : piece.inputs[0]) {
        joined.append(reinterpret_cast<const char*>(view.data()), view.size());
      }
      EXPECT_EQ(static_cast<std::int64_t>(joined.size() - begin), piece.geometry.OutputBytes());
      // Tiny slices are not kept one by one.
      EXPECT_LT(piece.inputs[0].size(), 40U);
    }
    EXPECT_TRUE(joined == bytes);
  }
}

TEST(PieceAssemblerTest, ThePiecesOwnTheirBytes) {
  const norm::NormSpec spec = norm::InstanceNormSpec(1, norm::DType::kFloat32);
  PieceAssembler assembler(PieceSequence(CutRuleOf(spec), MakeGeometry(spec, 1, 1024), 1 << 20),
                           4096);
  std::vector<ReceivedPiece> pieces;
  bool released = false;
  {
    static std::vector<std::byte> memory(4096, std::byte{7});
    const grpc::Slice slice(
        memory.data(), memory.size(), [](void* flag) { *static_cast<bool*>(flag) = true; },
        &released);
    assembler.Add(slice, ConstBytes(memory), pieces);
  }
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_FALSE(released);
  pieces[0].owner.reset();
  EXPECT_TRUE(released);
}

// The transport's memory: blocks that messages lie in one behind the other, cut where a block ends.
class SlicedTransport {
 public:
  explicit SlicedTransport(std::size_t block_bytes) : block_bytes_(block_bytes) {}
  ~SlicedTransport() { grpc_slice_unref(block_); }
  SlicedTransport(const SlicedTransport&) = delete;
  SlicedTransport& operator=(const SlicedTransport&) = delete;

  // The slices of `size` bytes that come next.
  std::vector<grpc::Slice> Receive(std::size_t size) {
    std::vector<grpc::Slice> slices;
    while (size > 0) {
      if (used_ == block_bytes_) NewBlock();
      const std::size_t part = std::min(size, block_bytes_ - used_);
      slices.emplace_back(grpc_slice_sub(block_, used_, used_ + part), grpc::Slice::STEAL_REF);
      used_ += part;
      size -= part;
    }
    return slices;
  }
  // That somebody keeps.
  std::int64_t held_bytes() const { return held_bytes_; }

 private:
  void NewBlock() {
    struct Block {
      std::unique_ptr<char[]> memory;
      std::size_t bytes;
      std::int64_t& held;
    };
    grpc_slice_unref(block_);
    auto* block = new Block{std::make_unique<char[]>(block_bytes_), block_bytes_, held_bytes_};
    held_bytes_ += static_cast<std::int64_t>(block_bytes_);
    block_ = grpc_slice_new_with_user_data(
        block->memory.get(), block_bytes_,
        [](void* data) {
          const std::unique_ptr<Block> gone(static_cast<Block*>(data));
          gone->held -= static_cast<std::int64_t>(gone->bytes);
        },
        block);
    used_ = 0;
  }

  const std::size_t block_bytes_;
  std::size_t used_ = block_bytes_;
  grpc_slice block_ = grpc_empty_slice();
  std::int64_t held_bytes_ = 0;
};

TEST(PieceAssemblerTest, KeepsNoMoreThanTwiceItsBytesWhateverComesBesideThem) {
  const norm::NormSpec spec = norm::InstanceNormSpec(64, norm::DType::kFloat32);
  const Geometry tensor = MakeGeometry(spec, 1, 5000);  // 1.28 MB.
  for (const std::size_t block : {8 << 10, 64 << 10}) {
    for (const std::size_t chunk :
         {1, 100, 1000, 1023, 1024, 4096, 16000, 32767, 32768, 32769, 65536, 300000}) {
      for (const std::size_t beside : {0, 1, 1000, 15000, 16384, 32768, 65536, 200000}) {
        SlicedTransport transport(block);
        PieceAssembler assembler(PieceSequence(CutRuleOf(spec), tensor, 100000));
        std::vector<ReceivedPiece> pieces;
        // Small chunks: enough of them to fill some blocks.
        const std::int64_t bytes =
            std::min<std::int64_t>(tensor.OutputBytes(), static_cast<std::int64_t>(chunk) * 3000);
        while (assembler.received_bytes() < bytes) {
          std::size_t size = std::min<std::size_t>(
              chunk, static_cast<std::size_t>(tensor.OutputBytes() - assembler.received_bytes()));
          for (const grpc::Slice& slice : transport.Receive(size)) {
            assembler.Add(
                slice, ConstBytes(reinterpret_cast<const std::byte*>(slice.begin()), slice.size()),
                pieces, chunk >= beside);
          }
          transport.Receive(beside);  // Unknown fields.
          // The block that is being filled is the transport's, and one is not decided on yet.
          ASSERT_LE(transport.held_bytes(),
                    2 * assembler.received_bytes() + 2 * static_cast<std::int64_t>(block))
              << "blocks of " << block << ", chunks of " << chunk << " beside " << beside;
        }
        pieces.clear();
      }
    }
  }
}

Buffer MakeBuffer(const std::string& bytes, std::int64_t& alive) {
  auto* memory = new std::string(bytes);
  ++alive;
  return Buffer(reinterpret_cast<std::byte*>(memory->data()), memory->size(), [memory, &alive] {
    delete memory;
    --alive;
  });
}

// Samples of `inner` bytes, each of which tells its output, its sample and its place.
std::string Samples(int output, std::int64_t samples, std::int64_t inner) {
  std::string bytes;
  for (std::int64_t i = 0; i < samples * inner; ++i) {
    bytes.push_back(static_cast<char>(output * 97 + i / inner * 31 + i % inner));
  }
  return bytes;
}

TEST(PieceOutputTest, GivesASampleOfEachOutputInTurnHoweverItIsCut) {
  std::mt19937_64 random(norm::testing::TestSeed());
  for (int round = 0; round < 300; ++round) {
    const std::size_t outputs = 1 + random() % 4;
    const auto samples = static_cast<std::int64_t>(1 + random() % 5);
    std::int64_t alive = 0;
    Geometry piece;
    piece.samples = samples;
    OutputBuffers buffers;
    std::vector<std::string> bytes;
    std::vector<std::size_t> inner;
    for (std::size_t k = 0; k < outputs; ++k) {
      inner.push_back(1 + random() % 40);
      bytes.push_back(Samples(static_cast<int>(k), samples, static_cast<std::int64_t>(inner[k])));
      piece.outputs.push_back({static_cast<std::int64_t>(bytes[k].size())});
      buffers.push_back(MakeBuffer(bytes[k], alive));
    }
    std::string wanted;
    for (std::size_t sample = 0; sample < static_cast<std::size_t>(samples); ++sample) {
      for (std::size_t k = 0; k < outputs; ++k) {
        wanted += bytes[k].substr(sample * inner[k], inner[k]);
      }
    }
    std::string got;
    std::vector<grpc::Slice> sent;
    {
      absl::StatusOr<PieceOutput> output = PieceOutput::Create(piece, std::move(buffers));
      ASSERT_TRUE(output.ok()) << output.status();
      EXPECT_EQ(output->bytes(), static_cast<std::int64_t>(wanted.size()));
      while (got.size() < wanted.size()) {
        const std::size_t size =
            std::min<std::size_t>(wanted.size() - got.size(), 1 + random() % 60);
        sent.push_back(output->Next(static_cast<std::int64_t>(size)));
        got.append(sent.back().begin(), sent.back().end());
      }
    }
    EXPECT_TRUE(got == wanted);
    sent.clear();
    EXPECT_EQ(alive, 0) << "the outputs outlive the last slice";
  }
}

TEST(PieceOutputTest, RefusesOutputsOfAnotherNumberOrSize) {
  std::int64_t alive = 0;
  Geometry piece;
  piece.samples = 1;
  piece.outputs = {{8}, {4}};
  const auto create = [&](std::vector<std::size_t> sizes) {
    OutputBuffers buffers;
    for (const std::size_t size : sizes) {
      buffers.push_back(MakeBuffer(std::string(size, 'x'), alive));
    }
    return PieceOutput::Create(piece, std::move(buffers)).status();
  };
  EXPECT_TRUE(create({8, 4}).ok());
  for (const std::vector<std::size_t>& sizes :
       std::vector<std::vector<std::size_t>>{{}, {8}, {7, 4}, {8, 5}, {4, 8}, {8, 4, 1}}) {
    EXPECT_TRUE(absl::IsInternal(create(sizes)));
  }
  EXPECT_EQ(alive, 0);
}

constexpr auto kMs = std::chrono::milliseconds(1);

TEST(StreamPatienceTest, GivesUpAClientThatDoesNothingInItsTurn) {
  const TimePoint begin = TimePoint{} + std::chrono::hours(1);
  StreamPatience patience(100 * kMs, begin);
  EXPECT_EQ(patience.CheckAt(), begin + 100 * kMs);
  EXPECT_TRUE(patience.Check(begin + 99 * kMs, /*servers_turn=*/false).ok());
  const absl::Status given_up = patience.Check(begin + 100 * kMs, false);
  EXPECT_TRUE(absl::IsDeadlineExceeded(given_up));
  EXPECT_THAT(std::string(given_up.message()),
              HasSubstr("the client sent and took nothing for 100 ms"));
  patience.OnProgress(begin + 50 * kMs);
  EXPECT_TRUE(patience.Check(begin + 149 * kMs, false).ok());
  EXPECT_FALSE(patience.Check(begin + 150 * kMs, false).ok());
}

TEST(StreamPatienceTest, TheServersTurnIsNotTheClients) {
  const TimePoint begin = TimePoint{} + std::chrono::hours(1);
  StreamPatience patience(100 * kMs, begin);
  EXPECT_TRUE(patience.Check(begin + 500 * kMs, /*servers_turn=*/true).ok());
  EXPECT_TRUE(patience.Check(begin + 599 * kMs, false).ok());
  EXPECT_FALSE(patience.Check(begin + 600 * kMs, false).ok());
}

TEST(StreamPatienceTest, AClientThatSendsWithoutTakingIsGivenUp) {
  const TimePoint begin = TimePoint{} + std::chrono::hours(1);
  StreamPatience patience(100 * kMs, begin);
  patience.OnWrite(begin + 10 * kMs);
  patience.OnProgress(begin + 90 * kMs);
  EXPECT_EQ(patience.CheckAt(), begin + 110 * kMs);
  EXPECT_TRUE(patience.Check(begin + 109 * kMs, false).ok());
  for (const bool servers_turn : {false, true}) {
    EXPECT_THAT(std::string(patience.Check(begin + 110 * kMs, servers_turn).message()),
                HasSubstr("the client took nothing for 100 ms"));
  }
  patience.OnTaken(begin + 110 * kMs);
  EXPECT_TRUE(patience.Check(begin + 209 * kMs, false).ok());
}

TEST(StreamPatienceTest, AnOverdraftHasAnEndWhateverTheClientSends) {
  const TimePoint begin = TimePoint{} + std::chrono::hours(1);
  StreamPatience patience(100 * kMs, begin);
  patience.BeginOverdraft(begin, 300 * kMs);
  patience.OnProgress(begin + 299 * kMs);
  EXPECT_TRUE(patience.Check(begin + 299 * kMs, false).ok());
  EXPECT_THAT(std::string(patience.Check(begin + 300 * kMs, false).message()),
              HasSubstr("did not send a row and take its result within 300 ms"));
  patience.EndOverdraft();
  EXPECT_TRUE(patience.Check(begin + 300 * kMs, false).ok());
}

}  // namespace
}  // namespace normd
