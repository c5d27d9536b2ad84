#!/usr/bin/env bash
# environment.sh FOLDER [PYTHON]: makes FOLDER/ros and FOLDER/cyclone, virtual environments with ROS 2 Jazzy and Cyclone DDS (with
# PYTHON, 3.12), and builds integrations/ros2 against ROS into FOLDER/robocache_ros2.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ros=$1/ros
for name in ros cyclone; do
  "${2:-python3.12}" -m venv "$1/$name"
  "$1/$name/bin/pip" install -q --no-deps --require-hashes -r "$here/requirements-$name.txt"
done
# The wheels' CMake exports have paths of the host that built them.
tinyxml=$(ls "$ros"/lib/python3.12/site-packages/ros_fastrtps.libs/libtinyxml2-*)
sed -i -E "s#/opt/python/cp312-cp312[^;\"]*#/usr/include#g; s#/usr/lib64/libtinyxml2.so#$tinyxml#g" "$ros"/share/*/cmake/*.cmake
export AMENT_PREFIX_PATH=$ros CMAKE_PREFIX_PATH=$ros PATH=$ros/bin:$PATH
cmake -S "$here/../../../integrations/ros2" -B "$1/build" -DCMAKE_INSTALL_PREFIX="$1/robocache_ros2" -DPython3_EXECUTABLE="$ros/bin/python"
cmake --build "$1/build" --target install
