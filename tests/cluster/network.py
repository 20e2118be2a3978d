"""Machines on one machine: network namespaces, each with a cable (veth) to a switch (bridge) of its own.

Nothing of this reaches another network: the switch is in a namespace, too, and has no way out.
"""

import itertools
import os
import shutil
import subprocess

PREFIX = "10.77.0."
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


def can_disturb():
    """Whether the kernel can delay and lose packets."""
    with Network() as net:
        machine = net.attach(9)
        try:
            machine.disturb("delay", "1ms")
        except subprocess.CalledProcessError:
            return False
        return True


class Network:
    """The switch. Takes down everything that is attached to it with the block it is used in."""

    def __init__(self):
        self._tag = f"normd{os.getpid()}n{next(_numbers)}"
        self._machines = []

    def __enter__(self):
        ip("netns", "add", self._tag)
        self.inside("ip", "link", "add", "switch", "type", "bridge")
        self.inside("ip", "link", "set", "switch", "up")
        return self

    def __exit__(self, *_):
        for name in (*self._machines, self._tag):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def inside(self, *command):
        ip("netns", "exec", self._tag, *command)

    def attach(self, number):
        """A machine with the address PREFIX + number."""
        machine = Machine(self, f"{self._tag}m{number}", number)
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

    def disturb(self, *netem):
        """Delay and loss of what the machine gets, such as ("delay", "5ms", "loss", "1%")."""
        self._network.inside("tc", "qdisc", "replace", "dev", self._port, "root", "netem", *netem)
