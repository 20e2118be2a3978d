// A fuzzer without libFuzzer, for every compiler: plays its seeds, then random changes of them. It
// does not learn from what it reaches, so it finds what lies near the seeds, in seconds.
//
//   NAME_replay [--runs=N] [--max_bytes=N] [--seed=N] FILE_OR_FOLDER...

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

struct Options {
  std::uint64_t runs = 0;
  std::uint64_t max_bytes = 1024;
  std::uint64_t seed = 1;
  std::vector<std::string> paths;
};

// The input under way, for the handler of signals.
const std::string* g_input = nullptr;

// Writes the input as hexadecimal digits; `xxd -r -p` makes a file of them. Calls nothing that a
// signal's handler must not.
extern "C" void ShowInput(int signal) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto show = [](const char* text, std::size_t size) {
    if (::write(STDERR_FILENO, text, size) < 0) std::_Exit(1);
  };
  constexpr char kIntroduction[] = "the input, in hexadecimal digits:\n";
  show(kIntroduction, sizeof(kIntroduction) - 1);
  for (std::size_t i = 0; g_input != nullptr && i < g_input->size(); ++i) {
    const auto byte = static_cast<unsigned char>((*g_input)[i]);
    const char digits[] = {kHex[byte >> 4], kHex[byte & 15]};
    show(digits, sizeof(digits));
  }
  show("\n", 1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Play(const std::string& input) {
  // In memory of its exact size, so that a sanitizer sees a read beyond it.
  const std::vector<std::uint8_t> exact(input.begin(), input.end());
  g_input = &input;
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  g_input = nullptr;
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& seeds, const Options& options)
      : seeds_(seeds), max_bytes_(options.max_bytes), random_(options.seed) {}

  std::string Next() {
    std::string input = OneOf(seeds_);
    for (std::size_t edits = 1 + Below(8); edits > 0; --edits) Edit(input);
    input.resize(std::min<std::size_t>(input.size(), max_bytes_));
    return input;
  }

 private:
  std::size_t Below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }
  const std::string& OneOf(absl::Span<const std::string> list) { return list[Below(list.size())]; }
  // A part of `text`, mostly a short one.
  std::string Part(const std::string& text) {
    const std::size_t most = Below(4) == 0 ? text.size() + 1 : 16;
    return text.substr(Below(text.size() + 1), Below(most));
  }

  void Edit(std::string& input) {
    static const std::string kNumbers[] = {"0",
                                           "-1",
                                           "9223372036854775807",
                                           "9223372036854775808",
                                           "4294967296",
                                           std::string(4, '\xff'),
                                           std::string(8, '\0'),
                                           "\x80\x80\x80\x80\x10"};
    const std::size_t at = Below(input.size() + 1);
    switch (Below(9)) {
      case 0: input.insert(at, 1, static_cast<char>(random_())); break;
      case 1: input.insert(at, 1, static_cast<char>(Below(16))); break;
      case 2: input.insert(at, OneOf(kNumbers)); break;
      case 3: input.insert(at, Part(input)); break;
      case 4: input.insert(at, Part(OneOf(seeds_))); break;
      case 5: input.erase(at, 1 + Below(Below(4) == 0 ? 64 : 4)); break;
      case 6: input.resize(Below(8) == 0 ? at : input.size()); break;
      default:
        if (at == input.size()) return;
        input[at] = static_cast<char>(Below(2) == 0 ? input[at] ^ 1 << Below(8) : Below(256));
    }
  }

  const std::vector<std::string>& seeds_;
  const std::uint64_t max_bytes_;
  std::mt19937_64 random_;
};

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// In the order of their names, so that a seed of the generator always gives the same inputs.
std::vector<std::string> ReadSeeds(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> seeds;
  for (const std::filesystem::path& file : files) seeds.push_back(ReadFile(file));
  return seeds;
}

bool ParseOptions(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    std::uint64_t* number = nullptr;
    if (absl::ConsumePrefix(&argument, "--runs=")) number = &options.runs;
    if (absl::ConsumePrefix(&argument, "--max_bytes=")) number = &options.max_bytes;
    if (absl::ConsumePrefix(&argument, "--seed=")) number = &options.seed;
    if (number == nullptr) {
      options.paths.emplace_back(argument);
    } else if (!absl::SimpleAtoi(argument, number)) {
      return false;
    }
  }
  return !options.paths.empty();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, options)) {
    std::fprintf(stderr, "usage: %s [--runs=N] [--max_bytes=N] [--seed=N] FILE_OR_FOLDER...\n",
                 argv[0]);
    return 2;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, ShowInput);
  }
  const std::vector<std::string> seeds = ReadSeeds(options.paths);
  if (seeds.empty()) {
    std::fprintf(stderr, "%s: no seeds\n", argv[0]);
    return 1;
  }
  for (const std::string& seed : seeds) Play(seed);
  Mutator mutator(seeds, options);
  for (std::uint64_t run = 0; run < options.runs; ++run) Play(mutator.Next());
  std::printf("%zu seeds and %llu changes of them, --seed=%llu: nothing found\n", seeds.size(),
              static_cast<unsigned long long>(options.runs),
              static_cast<unsigned long long>(options.seed));
  return 0;
}
