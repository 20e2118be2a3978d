#!/usr/bin/env python3
"""A cable that delays frames and loses some, for kernels without netem.

    bad_link.py A B --delay_ms=5 --jitter_ms=2 --loss=0.01 --seed=1

Carries whole frames between two interfaces, which no bridge and no address uses. Each is late by the delay,
more or less by up to the jitter, so that some overtake others; a share of them, at random, goes nowhere. On
SIGTERM it prints how many frames it has had and how many of them it has lost, as JSON, and ends.
"""

import argparse
import heapq
import itertools
import json
import random
import select
import signal
import socket
import time

# Linux' headers of Ethernet and of packet sockets.
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
LARGEST = 10 + 18 + (1 << 16)  # PACKET_VNET_HDR's header, Ethernet's, a frame that is not segmented yet.
QUEUE_BYTES = 4 << 20


def open_interface(name):
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    # Says of each frame which sums and which segments its sender has left to the interface.
    one.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    one.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, QUEUE_BYTES)
    one.setblocking(False)
    one.bind((name, ETH_P_ALL))
    return one


class Link:
    def __init__(self, interfaces, delay_s, jitter_s, loss, seed):
        self._to = dict(zip(interfaces, reversed(interfaces)))
        self._delay_s, self._jitter_s, self._loss = delay_s, jitter_s, loss
        self._random = random.Random(seed)
        self._order = itertools.count()
        self._under_way = []  # By when they are due.
        self.frames = self.lost = 0

    def take(self, interface):
        """All frames that have come."""
        while True:
            try:
                frame = interface.recv(LARGEST)
            except BlockingIOError:
                return
            self.frames += 1
            if self._random.random() < self._loss:
                self.lost += 1
                continue
            late = self._delay_s + self._jitter_s * self._random.uniform(-1, 1)
            heapq.heappush(self._under_way, (time.monotonic() + late, next(self._order),
                                             self._to[interface], frame))

    def deliver(self):
        """All frames that are due; how long until the next, None when there is none."""
        while self._under_way:
            wait = self._under_way[0][0] - time.monotonic()
            if wait > 0:
                return wait
            _, _, interface, frame = heapq.heappop(self._under_way)
            try:
                interface.send(frame)
            except OSError:  # Its queue is full, or it is down.
                self.lost += 1
        return None

    def run(self, is_ended):
        while not is_ended():
            wait = self.deliver()
            ready, _, _ = select.select(list(self._to), [], [], 0.1 if wait is None else min(wait, 0.1))
            for interface in ready:
                self.take(interface)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("interfaces", nargs=2)
    parser.add_argument("--delay_ms", type=float, default=0)
    parser.add_argument("--jitter_ms", type=float, default=0)
    parser.add_argument("--loss", type=float, default=0, help="share of the frames")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    link = Link([open_interface(name) for name in options.interfaces], options.delay_ms / 1000,
                options.jitter_ms / 1000, options.loss, options.seed)
    print("ready", flush=True)
    link.run(lambda: ended)
    print(json.dumps({"frames": link.frames, "lost": link.lost}), flush=True)


if __name__ == "__main__":
    main()
