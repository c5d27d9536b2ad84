"""Starts a policy's script as a node. The file of parameters has the spec and the topic of each key.

ros2 launch robocache_ros2 policy.launch.py policy:=/path/to/policy.py params:=/path/to/arm.yaml
"""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess
from launch.substitutions import FindExecutable, LaunchConfiguration

CONFIG = Path(__file__).resolve().parent.parent / "config"


def generate_launch_description():
    return LaunchDescription(
        [
            DeclareLaunchArgument("policy", description="a Python script that makes a robocache_ros2.Node"),
            DeclareLaunchArgument(
                "params", description="its parameters: share/robocache_ros2/config/arm.yaml is an example"
            ),
            DeclareLaunchArgument(
                "python", default_value=FindExecutable(name="python3"), description="the interpreter"
            ),
            ExecuteProcess(
                cmd=[
                    LaunchConfiguration("python"),
                    LaunchConfiguration("policy"),
                    "--ros-args",
                    "--params-file",
                    LaunchConfiguration("params"),
                ],
                additional_env={"FASTRTPS_DEFAULT_PROFILES_FILE": str(CONFIG / "fastdds.xml")},
                output="screen",
            ),
        ]
    )
