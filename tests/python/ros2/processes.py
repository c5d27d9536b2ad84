"""Starts and ends the processes of a test with ROS 2, which environment.sh has installed in a folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import robocache

HERE = Path(__file__).parent


def is_installed(folder):
    """Whether environment.sh has installed ROS 2 in the folder."""
    return (folder / "robocache_ros2" / "lib" / "librobocache_ros2.so").exists()


class Ros:
    """Starts the processes of one test, and ends them."""

    def __init__(self, folder, domain):
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

    def publish(self, out, topics, **more):
        request = json.dumps({"topics": topics, "out": str(out), **more})
        return self.start([self.python, str(HERE / "publisher.py"), request], self.ros_env)

    def replay(self, request):
        return self.start([self.python, str(HERE / "replayer.py"), json.dumps(request)], self.ros_env)

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

    def policy(self, spec, streams, *args, busy=False):
        """Starts policy.py. Returns the process and its first answer; if it has none, the text of the error."""
        request = json.dumps({"spec": spec and str(spec), "streams": streams, "busy": busy})
        child = self.begin([sys.executable, str(HERE / "policy.py"), request, *args], self.robocache_env)
        line = child.stdout.readline()
        if not line:
            child.wait()
            return child, child.stderr.read()
        return child, json.loads(line)


def ask(child, **command):
    """Sends a command to a process, and returns its answer."""
    child.stdin.write(json.dumps(command) + "\n")
    child.stdin.flush()
    line = child.stdout.readline()
    assert line, child.stderr.read()
    return json.loads(line)
