// Programs that a test starts, reads and stops; one of them is normd.

#ifndef NORMD_TESTS_SERVER_PROCESS_NORMD_PROCESS_H_
#define NORMD_TESTS_SERVER_PROCESS_NORMD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "normd/v1/norm_service.grpc.pb.h"

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

// The normd binary on free ports, with the demo models unless `flags` say otherwise. Returns when
// it serves or has ended.
class NormdProcess {
 public:
  explicit NormdProcess(const std::vector<std::string>& flags = {});

  ChildProcess& child() { return child_; }
  // "127.0.0.1:port"; empty if it never served.
  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  const std::string& http_address() const { return http_address_; }  // Empty without HTTP.
  std::unique_ptr<v1::NormService::Stub> NewStub() const;

 private:
  ChildProcess child_;
  std::string grpc_address_;
  std::string metrics_address_;
  std::string http_address_;
};

// RMSNorm of `rows` rows of 4096 ones, float32.
v1::NormalizeRequest RmsNormRequest(int rows);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_PROCESS_NORMD_PROCESS_H_
