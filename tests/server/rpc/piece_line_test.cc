// A stream's pieces in progress, and its window.

#include "server/rpc/piece_line.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/rpc/stream_window.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

std::unique_ptr<Request> MakePiece(std::uint64_t id, std::int64_t input_bytes,
                                   std::int64_t output_bytes) {
  auto request = std::make_unique<Request>();
  request->id = id;
  request->geometry.samples = 1;
  request->geometry.inputs = {{input_bytes}};
  request->geometry.outputs = {{output_bytes}};
  return request;
}

// A result each of whose bytes tells the piece.
Completion MakeResult(std::uint64_t number, std::int64_t bytes, std::int64_t batch_id) {
  auto* memory = new std::vector<std::byte>(static_cast<std::size_t>(bytes),
                                            static_cast<std::byte>(number * 7 + 1));
  Completion completion;
  completion.outputs.emplace_back(memory->data(), memory->size(), [memory] { delete memory; });
  completion.stages[Stage::kCompute] = Duration(3);
  completion.batch.id = batch_id;
  return completion;
}

TEST(PieceLineTest, AnswersInOrderInWhateverOrderPiecesAreComputed) {
  std::mt19937_64 random(norm::testing::TestSeed());
  for (int round = 0; round < 50; ++round) {
    PieceLine line;
    const std::int64_t scale = round % 25 == 0 ? 1 << 20 : 100;  // Several chunks, or one.
    std::vector<std::int64_t> outputs;
    std::vector<std::uint64_t> computing;
    std::int64_t input_bytes = 0;
    std::int64_t answered = 0;
    std::string wanted;
    std::string got;
    const auto take = [&] {
      const PieceLine::Chunk chunk = line.TakeChunk();
      EXPECT_LE(chunk.data.size(), std::size_t{1} << 20);
      got.append(chunk.data.begin(), chunk.data.end());
      answered += chunk.answered_bytes;
    };
    while (outputs.size() < 20 || !line.empty()) {
      const std::uint64_t choice = random() % 4;
      if (choice == 0 && outputs.size() < 20) {
        ASSERT_EQ(line.next(), outputs.size());
        const auto inputs = static_cast<std::int64_t>(random() % 3 * scale + 5);
        outputs.push_back(static_cast<std::int64_t>(random() % 3 * scale + 3));
        input_bytes += inputs;
        wanted.append(static_cast<std::size_t>(outputs.back()),
                      static_cast<char>(line.next() * 7 + 1));
        line.Add(MakePiece(line.next(), inputs, outputs.back()));
      } else if (choice == 1) {
        if (const std::unique_ptr<Request> pushed = line.Push()) computing.push_back(pushed->id);
      } else if (choice == 2 && !computing.empty()) {
        std::swap(computing[random() % computing.size()], computing.back());
        const std::uint64_t number = computing.back();
        computing.pop_back();
        Completion completion = MakeResult(number, outputs[number], 1);
        line.OnDone();
        ASSERT_TRUE(line.SetResult(number, completion, {}).ok());
      } else if (choice == 3 && line.has_chunk()) {
        take();
      }
      ASSERT_EQ(line.computing(), !computing.empty());
    }
    EXPECT_TRUE(got == wanted);
    EXPECT_EQ(answered, input_bytes);
    EXPECT_EQ(line.totals().bytes, static_cast<std::int64_t>(wanted.size()));
    EXPECT_EQ(line.totals().pieces, 20);
    EXPECT_EQ(line.totals().batches, 1);
    EXPECT_EQ(line.totals().stages[Stage::kCompute], Duration(60));
  }
}

TEST(PieceLineTest, CountsABatchOfAdjacentPiecesOnce) {
  PieceLine line;
  for (const std::int64_t batch : {4, 4, 5, 5, 5, 6}) {
    const std::uint64_t number = line.next();
    line.Add(MakePiece(number, 8, 8));
    ASSERT_NE(line.Push(), nullptr);
    line.OnDone();
    Completion completion = MakeResult(number, 8, batch);
    ASSERT_TRUE(line.SetResult(number, completion, {}).ok());
    line.TakeChunk();
  }
  EXPECT_EQ(line.totals().batches, 3);
  EXPECT_EQ(line.batch().id, 6);
}

TEST(PieceLineTest, PushesAPieceAgainThatTheQueueDidNotTake) {
  PieceLine line;
  line.Add(MakePiece(10, 8, 8));
  line.Add(MakePiece(11, 8, 8));
  std::unique_ptr<Request> pushed = line.Push();
  line.OnDone();
  line.PutBack(std::move(pushed));
  EXPECT_FALSE(line.computing());
  EXPECT_EQ(line.Push()->id, 10U);
  EXPECT_EQ(line.Push()->id, 11U);
  EXPECT_EQ(line.Push(), nullptr);
}

TEST(PieceLineTest, AbandonedPiecesComputeUntilTheyAreDone) {
  PieceLine line;
  line.Add(MakePiece(10, 8, 8));
  line.Add(MakePiece(11, 8, 8));
  ASSERT_NE(line.Push(), nullptr);
  std::deque<PieceLine::Piece> pieces;
  line.Abandon(pieces);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].request, nullptr);
  EXPECT_NE(pieces[1].request, nullptr);
  EXPECT_TRUE(line.empty());
  EXPECT_EQ(line.Push(), nullptr);
  EXPECT_TRUE(line.computing());
  line.OnDone();
  EXPECT_FALSE(line.computing());
}

// Chunks of up to 1000 bytes into a window of 4000; the output is as large as the input.
class StreamWindowTest : public ::testing::Test {
 protected:
  StreamWindowTest() {
    geometry_.inputs = {{10000}};
    geometry_.outputs = {{10000}};
    window_.Open(limits_, geometry_);
  }

  StreamLimits limits_{.window_bytes = 4000};
  Geometry geometry_;
  StreamWindow window_;
};

TEST_F(StreamWindowTest, FitsWhileTheLargestChunkDoes) {
  window_.OnChunk(1000);
  window_.OnChunk(1000);
  window_.OnChunk(1000);
  EXPECT_TRUE(window_.Fits());
  window_.OnChunk(1);
  EXPECT_FALSE(window_.Fits());
  window_.OnWrite(1);
  EXPECT_FALSE(window_.Fits()) << "the client has not taken it";
  window_.OnWritten(0);
  EXPECT_TRUE(window_.Fits());
}

TEST_F(StreamWindowTest, TheLeaseFollowsTheBytesInsideWithTheirOutput) {
  EXPECT_EQ(window_.Settle(), std::nullopt);
  window_.OnMessage();
  EXPECT_EQ(window_.Settle(), 0) << "a message without bytes is a step, too";
  EXPECT_EQ(window_.Settle(), std::nullopt);
  window_.OnMessage();
  window_.OnChunk(700);
  EXPECT_EQ(window_.Settle(), 1400);
  window_.OnWrite(300);
  EXPECT_EQ(window_.Settle(), std::nullopt);
  window_.OnWritten(0);
  EXPECT_EQ(window_.Settle(), -600);
  window_.Clear();
  EXPECT_EQ(window_.Settle(), -800);
}

TEST_F(StreamWindowTest, RoomIsForOneMessage) {
  window_.OnChunk(500);
  EXPECT_EQ(window_.AwaitRoom(), 1000);
  EXPECT_TRUE(window_.awaits_room());
  EXPECT_FALSE(window_.TakeRoom(1));
  window_.OnRoom(/*overdraft=*/false, 1);
  EXPECT_FALSE(window_.awaits_room());
  EXPECT_TRUE(window_.TakeRoom(1));
  EXPECT_FALSE(window_.TakeRoom(1));
  EXPECT_FALSE(window_.EndOverdraft());
}

TEST_F(StreamWindowTest, AnOverdraftHasRoomForItsPieceAndEndsWhenThatIsAnswered) {
  window_.OnRoom(/*overdraft=*/true, 3);
  for (int message = 0; message < 5; ++message) EXPECT_TRUE(window_.TakeRoom(3));
  EXPECT_FALSE(window_.TakeRoom(4));
  window_.OnWritten(3);
  EXPECT_FALSE(window_.EndOverdraft());
  window_.OnWritten(4);
  EXPECT_TRUE(window_.EndOverdraft());
  EXPECT_FALSE(window_.EndOverdraft());
}

TEST_F(StreamWindowTest, AFailedStreamEndsItsOverdraft) {
  window_.OnRoom(/*overdraft=*/true, 3);
  window_.Clear();
  EXPECT_TRUE(window_.EndOverdraft());
}

}  // namespace
}  // namespace normd
