#include "tests/server/process/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace normd::testing {

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
