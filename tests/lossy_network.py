"""A network that loses datagrams, for tests: a network namespace with nftables."""

import ctypes
import errno
import fcntl
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import warnings

import pytest

CLONE_NEWNET = 0x40000000


def run_nft(command):
    completed = subprocess.run(["nft", command], capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        raise OSError(errno.ENOTSUP, f"nft: {completed.stderr.strip()}")
    return completed.stdout


class LossyNetwork:
    """A network namespace whose loopback loses a share of the datagrams. The namespace ends with its last process and socket."""

    def __init__(self, share):
        self.share, self.network, self.libc = share, None, ctypes.CDLL(None, use_errno=True)
        self.run(self.make)

    def run(self, call):
        """Calls `call` inside the network, in a new thread, so that the test's other threads stay outside."""
        answers = []

        def enter():
            try:
                if self.network is not None and self.libc.setns(self.network, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                answers.append((call(), None))
            except BaseException as error:
                answers.append((None, error))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        answer, error = answers[0]
        if error is not None:
            raise error
        return answer

    def make(self):
        if self.libc.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "a network namespace of its own")
        self.network = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        flags, set_flags = 0x1 | 0x40 | 0x1000, 0x8914  # IFF_UP, IFF_RUNNING and IFF_MULTICAST; SIOCSIFFLAGS
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", flags))
        run_nft("add table ip loss; add chain ip loss input { type filter hook input priority 0; }")

    def lose(self, ports):
        """Loses datagrams to a port, or to ports such as "7400-7999"."""
        share = round(1000 * self.share)
        self.run(
            lambda: run_nft(f"add rule ip loss input udp dport {ports} numgen random mod 1000 < {share} counter drop")
        )

    def dropped(self):
        return int(re.search(r"counter packets (\d+)", self.run(lambda: run_nft("list ruleset"))).group(1))


def lossy_network(share):
    """Makes a LossyNetwork, or skips the test with a warning if the machine allows none."""
    try:
        if shutil.which("nft") is None:
            raise OSError(errno.ENOENT, "nft is not installed (apt-get install nftables)")
        return LossyNetwork(share)
    except OSError as error:
        reason = f"no network namespace with nftables: {error}"
        warnings.warn(f"NOT RUN: {reason}", stacklevel=1)
        pytest.skip(reason)
