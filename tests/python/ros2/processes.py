"""Starts and ends the processes of a test with ROS 2, which environment.sh has installed in a folder."""

import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import robocache

HERE = Path(__file__).parent
PATIENCE_S = 120  # a loaded machine takes seconds to start a process


def is_installed(folder):
    """Whether environment.sh has installed ROS 2 in the folder."""
    return (folder / "robocache_ros2" / "lib" / "librobocache_ros2.so").exists()


def free_domain():
    """Returns a ROS domain that no other test of this machine has, and the file that holds it."""
    for domain in range(1, 101):
        held = os.open(Path(tempfile.gettempdir()) / f"robocache_ros_domain_{domain}", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            continue
        return domain, held
    raise RuntimeError("all ROS domains are in use")


class Ros:
    """Starts processes of one test, and ends them.

    Publishers begin when they and the node know each other, and end when the test has got their messages, so that no test depends
    on how long a process has to wait for a core.
    """

    def __init__(self, folder):
        domain, self._domain = free_domain()
        ros, node = folder / "ros", folder / "robocache_ros2"
        libraries = [ros / "lib", *sorted((ros / "lib/python3.12/site-packages").glob("*.libs"))]
        package = Path(robocache.__file__).parent.parent
        self.env = os.environ | {
            "AMENT_PREFIX_PATH": f"{node}:{ros}",
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "RMW_IMPLEMENTATION": "rmw_fastrtps_cpp",
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
            "ROS_DOMAIN_ID": str(domain),
            "ROS_DISTRO": "jazzy",
            "FASTRTPS_DEFAULT_PROFILES_FILE": str(node / "share" / "robocache_ros2" / "config" / "fastdds.xml"),
        }
        self.robocache_env = self.env | {"PYTHONPATH": f"{package}:{node / 'lib/python3.12/site-packages'}"}
        self.ros_env = {name: value for name, value in self.env.items() if name != "PYTHONPATH"}
        self.python = str(ros / "bin" / "python")
        self.children = []
        self.network = None  # a LossyNetwork

    def start(self, command, env, **options):
        if self.network is not None:  # only UDP, because shared memory loses nothing
            env = {name: value for name, value in env.items() if name != "FASTRTPS_DEFAULT_PROFILES_FILE"}
            env |= {"FASTDDS_BUILTIN_TRANSPORTS": "UDPv4", "ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"}

        def run():
            return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, **options)

        child = run() if self.network is None else self.network.run(run)
        self.children.append(child)
        return child

    def publish(self, out, topics, policy=None):
        """Starts publisher.py. Its messages begin once the node of `policy` has matched it."""
        request = json.dumps({"topics": topics, "out": str(out)})
        return self.let_go([self.python, str(HERE / "publisher.py"), request], self.ros_env, policy)

    def replay(self, request, policy):
        return self.let_go([self.python, str(HERE / "replayer.py"), json.dumps(request)], self.ros_env, policy)

    def let_go(self, command, env, policy=None):
        child = self.start(command, env, stdin=subprocess.PIPE)
        assert line_of(child) == "ready"
        if policy is None:
            time.sleep(0.5)  # the subscription learns of the publisher a little later than the publisher of it
        else:
            until(policy, lambda report: all(topic["matched"] for topic in report.values()))
        child.stdin.write("go\n")
        child.stdin.flush()
        return child

    def finish(self, publisher, policy, is_all):
        """Ends a publisher that has sent its messages, once is_all(report). Returns the policy's last answer."""
        assert line_of(publisher) == "sent"
        answer = until(policy, is_all)
        publisher.stdin.close()
        assert publisher.wait(PATIENCE_S) == 0
        return answer

    def listen(self):
        return self.start([self.python, str(HERE / "listener.py")], self.ros_env)

    def begin(self, command, env):
        """Starts a process that takes commands on its standard input."""
        return self.start(command, env, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
        os.close(self._domain)

    def policy(self, spec, streams, *args, **options):
        """Starts policy.py. Returns the process and its first answer; if it has none, the text of the error."""
        request = json.dumps({"spec": spec and str(spec), "streams": streams, **options})
        child = self.begin([sys.executable, str(HERE / "policy.py"), request, *args], self.robocache_env)
        line = child.stdout.readline()
        if not line:
            child.wait()
            return child, child.stderr.read()
        return child, json.loads(line)


def line_of(child):
    """Returns the next line of a process's output."""
    ready, _, _ = select.select([child.stdout], [], [], PATIENCE_S)
    assert ready, f"{child.args[1]}: no line within {PATIENCE_S} s"
    return child.stdout.readline().rstrip("\n")


def until(policy, is_true):
    """Asks a policy until is_true(report), or for PATIENCE_S, after which the test's own assertion fails. Returns the last answer."""
    end = time.monotonic() + PATIENCE_S
    while not is_true((answer := ask(policy, report=True))["report"]) and time.monotonic() < end:
        time.sleep(0.02)
    return answer


def ask(child, **command):
    """Sends a command to a process, and returns its answer."""
    child.stdin.write(json.dumps(command) + "\n")
    child.stdin.flush()
    line = child.stdout.readline()
    assert line, child.stderr.read()
    return json.loads(line)
