#include "server/uncaught.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

[[noreturn]] void End(const std::string& what, bool is_fault) {
  const std::string line = absl::StrCat("normd: cannot go on: ", what, "\n");
  // The log's thread may be what could not be started.
  (void)!write(STDERR_FILENO, line.data(), line.size());
  if (is_fault) std::abort();
  std::_Exit(1);
}

void Terminate() {
  try {
    if (const std::exception_ptr exception = std::current_exception()) {
      std::rethrow_exception(exception);
    }
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::too_many_files_open ||
        error.code() == std::errc::too_many_files_open_in_system) {
      End(absl::StrCat("the system gives no descriptor: ", error.what(),
                       " (limits: ulimit -n, fs.file-max)"),
          /*is_fault=*/false);
    }
    if (error.code() != std::errc::resource_unavailable_try_again) {
      End(absl::StrCat("an exception that nobody has caught: ", error.what()), /*is_fault=*/true);
    }
    End(absl::StrCat("the system gives no thread: ", error.what(),
                     " (limits: ulimit -u, pids.max of the control group, memory)"),
        /*is_fault=*/false);
  } catch (const std::bad_alloc&) {
    End("the system gives no memory", /*is_fault=*/false);
  } catch (const std::exception& error) {
    End(absl::StrCat("an exception that nobody has caught: ", error.what()), /*is_fault=*/true);
  } catch (...) {
  }
  End("something was thrown that nobody has caught", /*is_fault=*/true);
}

}  // namespace

void EndWithAMessage() { std::set_terminate(Terminate); }

}  // namespace normd
