"""Runs the Ray programs of the chart and of docs/ingest.md on three nodes; one is killed while it writes a shard.

`./dev release` runs it, with Ray in a separate folder. All nodes are processes of this machine.
"""

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from robocache.ingest import plan

import robocache

ROOT = Path(__file__).parents[2]
RAY_SITE = Path(sys.prefix) / "ray"  # ./dev release installs Ray here
pytestmark = pytest.mark.skipif(
    not RAY_SITE.exists() and importlib.util.find_spec("ray") is None,
    reason="NOT RUN: no ray; ./dev release installs it",
)
# A head without processors, like the chart's, and two nodes with one each. A process that has half of a shard written is
# stopped, and killed with its node.
DRIVER = """
import os, signal, subprocess, sys, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster

def writes(process):
    try:
        is_worker = (process / "cmdline").read_bytes().startswith(b"ray::convert")
        return is_worker and any(".partial" in os.readlink(file) for file in (process / "fd").iterdir())
    except OSError:
        return False  # it has ended

def node_of(process):
    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return next(node for node in nodes if parent == node.all_processes["raylet"][0].process.pid)

node = {"num_cpus": 1, "object_store_memory": 80 * 1024**2, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 0})
nodes = [cluster.add_node(**node) for _ in range(2)]
cluster.wait_for_nodes()
program = subprocess.Popen(
    [sys.executable, "ingest.py", "work", "cache"], env={**os.environ, "RAY_ADDRESS": cluster.address}
)
stopped = None
while stopped is None:
    assert program.poll() is None, "the program ended before a node died"
    for process in filter(writes, Path("/proc").glob("[0-9]*")):
        os.kill(int(process.name), signal.SIGSTOP)
        if writes(process):
            stopped = process
            break
        os.kill(int(process.name), signal.SIGCONT)
cluster.remove_node(node_of(stopped), allow_graceful=False)
os.kill(int(stopped.name), signal.SIGKILL)
code = program.wait()
ray.init(address=cluster.address)
end = time.monotonic() + 120  # on a busy machine the head learns of a death long after
while (alive := sum(node["Alive"] for node in ray.nodes())) > 2 and time.monotonic() < end:
    time.sleep(0.2)
print("nodes alive:", alive)
ray.shutdown()
cluster.shutdown()
sys.exit(code)
"""


def recipes():
    """Returns the program of the chart, which reads a plan in work/, and that of docs/ingest.md, which makes one."""
    chart = (ROOT / "packaging/chart/templates/ray.yaml").read_text()
    chart = textwrap.dedent(chart.partition("  ingest.py: |\n")[2].partition("---\n")[0])
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/ingest.md").read_text(), re.DOTALL | re.MULTILINE)
    (page,) = [block for block in blocks if "import ray" in block]
    assert "shards=64" in page
    page = page.replace("shards=64", "shards=4")
    return {"chart": chart, "page": page}


def run_on_three_nodes(program, folder):
    """Runs the program on the three nodes. Returns the completed process."""
    for number in range(6):
        (folder / f"recordings/{number}").mkdir(parents=True)
        rows = "".join(f"{i / 1000},{i + number}\n" for i in range(100_000))
        (folder / f"recordings/{number}/arm.csv").write_text("time_s,joint\n" + rows)
    if "plan(" not in program.replace("load_plan(", ""):
        plan(folder / "recordings", folder / "work", shards=4)
    (folder / "ingest.py").write_text(program)
    (folder / "driver.py").write_text(DRIVER)
    ray_site = [str(RAY_SITE)] if RAY_SITE.exists() else []
    paths = [str(Path(robocache.__file__).parents[1]), *ray_site]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp"}  # paths of sockets must be short
    environment["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "driver.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )


@pytest.mark.parametrize("recipe", ["chart", "page"])
def test_a_killed_node_loses_no_shard(recipe, tmp_path):
    completed = run_on_three_nodes(recipes()[recipe], tmp_path)
    assert completed.returncode == 0, (completed.stdout + completed.stderr)[-5000:]
    assert "nodes alive: 2" in completed.stdout

    robocache.ingest(tmp_path / "recordings", tmp_path / "whole")
    dataset, single = robocache.open(tmp_path / "cache"), robocache.open(tmp_path / "whole")
    assert len(dataset) == len(single) == 6
    assert (dataset["arm"].values == single["arm"].values).all() and (
        dataset["arm"].time_ns == single["arm"].time_ns
    ).all()


def test_a_program_without_retries_fails(tmp_path):
    program = recipes()["chart"]
    without_retries = program.replace("ray.remote(convert)", "ray.remote(max_retries=0)(convert)")
    assert without_retries != program
    completed = run_on_three_nodes(without_retries, tmp_path)
    assert completed.returncode != 0 and "NodeDiedError" in completed.stderr, (completed.stdout + completed.stderr)[
        -5000:
    ]
    assert not (tmp_path / "cache").exists()
