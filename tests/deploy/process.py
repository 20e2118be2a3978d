"""Programs that tests start, and what these say."""

import re
import subprocess
import sys
import threading


class Process:
    """A program whose output is kept; ended with the block that it is used in."""

    def __init__(self, *command):
        self.output = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, text=True)
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            with self._changed:
                self.output.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self.output.append(None)  # The end.
            self._changed.notify_all()

    def wait_for(self, pattern, limit_s=20):
        """The match of the first line that holds `pattern`."""
        def found():
            for line in self.output:
                match = line is not None and re.search(pattern, line)
                if match or line is None:
                    return match, line
            return None
        with self._changed:
            result = self._changed.wait_for(found, limit_s)
            if not result or not result[0]:
                self._process.kill()  # Or the reader, and with it the test, would go on.
                sys.exit(f"no line {pattern!r} in:\n" + "\n".join(map(str, self.output)))
            return result[0]

    @property
    def pid(self):
        return self._process.pid

    def running(self):
        return self._process.poll() is None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self.exit_code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.exit_code = self._process.wait()
        self._reader.join()
        self._process.stdout.close()


class Normd(Process):
    """A normd on free ports of loopback that serves these models, started by `before` if that is
    given; later flags replace its own."""

    def __init__(self, program, models, *flags, before=()):
        super().__init__(*before, str(program), f"--model_repository={models}", "--device=cpu",
                         "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                         "--http_listen=127.0.0.1:0", "--lame_duck=0s", *flags)
        found = self.wait_for(r"serving: grpc=(\S+) metrics=(\S+)(?: http=(\S+))?", 60)
        self.address, self.metrics, self.http = found.groups()
