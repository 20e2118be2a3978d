// Programs that a test starts, reads and stops.

#ifndef NORMD_TESTS_SERVER_PROCESS_CHILD_PROCESS_H_
#define NORMD_TESTS_SERVER_PROCESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace normd::testing {

// One child. Its stderr is read by the test. Killed on destruction if it still runs.
class ChildProcess {
 public:
  // args[0] is the program, found by PATH when it has no slash.
  explicit ChildProcess(const std::vector<std::string>& args);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Waits for the next line of stderr; nullopt when the child has closed it.
  std::optional<std::string> ReadLine();
  // Waits for a line that contains `text`, and returns it; "" if stderr ends before.
  std::string ReadUntil(const std::string& text);
  void Signal(int signal) const;
  // Reads stderr to its end and waits for the child. The exit code, or minus the signal that ended
  // it.
  int Wait();
  pid_t pid() const { return pid_; }
  // All of stderr that was read so far.
  const std::string& output() const { return output_; }

 private:
  pid_t pid_ = -1;
  int stderr_ = -1;
  std::string unread_;
  std::string output_;
};

// A port of 127.0.0.1 that was free a moment ago.
int FreePort();

// Whether `program` is found by PATH.
bool IsInstalled(const std::string& program);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_PROCESS_CHILD_PROCESS_H_
