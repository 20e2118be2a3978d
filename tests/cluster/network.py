"""Machines on one machine: network namespaces, each with a cable (veth) to a switch (bridge) of its own.

Nothing of this reaches another network: the switch is in a namespace, too, and has no way out.
"""

import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

PREFIX = "10.77.0."
BAD_LINK = pathlib.Path(__file__).resolve().with_name("bad_link.py")
_numbers = itertools.count(1)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def missing():
    """Why no network can be made here; None where it can."""
    if os.geteuid() != 0:
        return "not root"
    for tool in ("ip", "tc", "unshare"):
        if not shutil.which(tool):
            return f"no {tool}"
    name = f"normd{os.getpid()}t"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"no network namespaces: {tried.stderr.strip()}"
    ip("netns", "del", name)
    return None


class Network:
    """The switch. Takes down everything that is attached to it with the block it is used in."""

    def __init__(self):
        self.name = f"normd{os.getpid()}n{next(_numbers)}"
        self._machines = []

    def __enter__(self):
        ip("netns", "add", self.name)
        self.inside("ip", "link", "add", "switch", "type", "bridge")
        self.inside("ip", "link", "set", "switch", "up")
        return self

    def __exit__(self, *_):
        for name in (*self._machines, self.name):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def inside(self, *command):
        """What the command prints."""
        return subprocess.run(["ip", "netns", "exec", self.name, *command], check=True,
                              capture_output=True, text=True).stdout

    def attach(self, number):
        """A machine with the address PREFIX + number."""
        machine = Machine(self, f"{self.name}m{number}", number)
        self._machines.append(machine.name)
        return machine


class Machine:
    def __init__(self, network, name, number):
        self.name = name
        self.address = f"{PREFIX}{number}"
        self._network = network
        self._port = f"port{number}"
        ip("netns", "add", name)
        network.inside("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0",
                       "netns", name)
        network.inside("ip", "link", "set", self._port, "master", "switch", "up")
        for command in (["addr", "add", f"{self.address}/24", "dev", "eth0"],
                        ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
            ip("-n", name, *command)

    def command(self, *command, hosts=None):
        """The command line that runs a command here; `hosts` is a file in the place of /etc/hosts."""
        line = ["ip", "netns", "exec", self.name]
        if hosts:
            line += ["unshare", "--mount", "--propagation=private", "sh", "-c",
                     'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
        return [*line, *map(str, command)]

    def cut(self):
        self._network.inside("ip", "link", "set", self._port, "down")

    def join(self):
        self._network.inside("ip", "link", "set", self._port, "up")

    @contextlib.contextmanager
    def disturbed(self, delay_ms, jitter_ms, loss):
        """What the machine gets is late, and a share of it is lost; yields what counts that, of which
        `frames`, `lost` and `how` are known when the block is over. Where the kernel has no netem, the
        cable goes through a process, and what the machine sends fares likewise."""
        if has_netem(self._network, self._port):
            link = NetemLink(self._network, self._port)
        else:
            link = ProcessLink(self._network, self._port, self.name)
        link.begin(delay_ms, jitter_ms, loss)
        try:
            yield link
        finally:
            link.end()


def has_netem(network, port):
    try:
        network.inside("tc", "qdisc", "replace", "dev", port, "root", "netem", "delay", "0ms")
    except subprocess.CalledProcessError:
        return False
    network.inside("tc", "qdisc", "del", "dev", port, "root")
    return True


class NetemLink:
    how = "netem"

    def __init__(self, network, port):
        self._network, self._port = network, port
        self.frames = self.lost = 0

    def begin(self, delay_ms, jitter_ms, loss):
        self._network.inside("tc", "qdisc", "replace", "dev", self._port, "root", "netem", "delay",
                             f"{delay_ms}ms", f"{jitter_ms}ms", "loss", f"{100 * loss}%")

    def end(self):
        counts = self._network.inside("tc", "-s", "qdisc", "show", "dev", self._port, "root")
        passed, self.lost = map(int, re.search(r"(\d+) pkt \(dropped (\d+)", counts).groups())
        self.frames = passed + self.lost
        self._network.inside("tc", "qdisc", "del", "dev", self._port, "root")


class ProcessLink:
    """The port's place at the switch is taken by one end of another cable, with whose other end
    bad_link.py joins the port."""

    how = "a process"

    def __init__(self, network, port, machine):
        self._network, self._port, self._machine = network, port, machine
        self._near, self._far = f"n{port}", f"f{port}"
        self.frames = self.lost = 0

    def begin(self, delay_ms, jitter_ms, loss):
        inside = self._network.inside
        inside("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far)
        inside("ip", "link", "set", self._port, "nomaster")
        inside("ip", "link", "set", self._far, "master", "switch", "up")
        inside("ip", "link", "set", self._near, "up")
        # A frame for each segment, as on a cable: else one loss takes up to 64 KiB.
        ip("-n", self._machine, "link", "set", "eth0", "gso_max_segs", "1")
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", self._network.name, sys.executable, "-B", str(BAD_LINK), self._port,
             self._near, f"--delay_ms={delay_ms}", f"--jitter_ms={jitter_ms}", f"--loss={loss}"],
            stdout=subprocess.PIPE, text=True)
        if self._process.stdout.readline() != "ready\n":
            raise AssertionError(f"{BAD_LINK.name} has ended with {self._process.wait()}")

    def end(self):
        self._process.terminate()
        counts = json.loads(self._process.communicate(timeout=30)[0])
        self.frames, self.lost = counts["frames"], counts["lost"]
        self._network.inside("ip", "link", "del", self._near)
        self._network.inside("ip", "link", "set", self._port, "master", "switch")
