#include "tests/server/process/normd_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace normd::testing {
namespace {

std::vector<std::string> CommandLine(const std::vector<std::string>& flags) {
  std::vector<std::string> args = {NORMD_BINARY,           "--model_repository=" NORMD_DEMO_MODELS,
                                   "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                                   "--http_listen=",       "--device=cpu"};
  args.insert(args.end(), flags.begin(), flags.end());
  return args;
}

// The word after `key` in `line`.
std::string ValueOf(const std::string& line, const std::string& key) {
  const std::size_t at = line.find(key);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + key.size();
  return line.substr(begin, line.find(' ', begin) - begin);
}

}  // namespace

NormdProcess::NormdProcess(const std::vector<std::string>& flags) : child_(CommandLine(flags)) {
  const std::string line = child_.ReadUntil("serving: ");
  grpc_address_ = ValueOf(line, "grpc=");
  metrics_address_ = ValueOf(line, "metrics=");
  http_address_ = ValueOf(line, "http=");
}

std::unique_ptr<v1::NormService::Stub> NormdProcess::NewStub() const {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::NormService::NewStub(
      grpc::CreateCustomChannel(grpc_address_, grpc::InsecureChannelCredentials(), arguments));
}

v1::NormalizeRequest RmsNormRequest(int rows) {
  constexpr int kColumns = 4096;
  const std::vector<float> ones(static_cast<std::size_t>(rows) * kColumns, 1.0f);
  v1::NormalizeRequest request;
  request.set_model("rms_norm_4096");
  v1::Tensor& input = *request.add_inputs();
  input.set_dtype(v1::FLOAT32);
  input.add_shape(rows);
  input.add_shape(kColumns);
  input.set_data(ones.data(), ones.size() * sizeof(float));
  return request;
}

ChildProcess::ChildProcess(const std::vector<std::string>& args) {
  // Made before the fork: after it, only calls that are safe in signal handlers.
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ == 0) {
    // Whatever started the tests may ignore signals, as nohup does.
    for (int signal_number = 1; signal_number <= SIGRTMAX; ++signal_number) {
      signal(signal_number, SIG_DFL);
    }
    dup2(ends[1], STDERR_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  stderr_ = ends[0];
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(stderr_);
}

std::optional<std::string> ChildProcess::ReadLine() {
  for (;;) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    char buffer[4096];
    const ssize_t count = read(stderr_, buffer, sizeof(buffer));
    if (count <= 0) return std::nullopt;
    unread_.append(buffer, static_cast<std::size_t>(count));
    output_.append(buffer, static_cast<std::size_t>(count));
  }
}

std::string ChildProcess::ReadUntil(const std::string& text) {
  while (std::optional<std::string> line = ReadLine()) {
    if (line->find(text) != std::string::npos) return *line;
  }
  return "";
}

void ChildProcess::Signal(int signal) const { kill(pid_, signal); }

int ChildProcess::Wait() {
  while (ReadLine()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int FreePort() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, size) != 0 || getsockname(listener, generic, &size) != 0) {
    std::abort();
  }
  close(listener);
  return ntohs(address.sin_port);
}

bool IsInstalled(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

}  // namespace normd::testing
