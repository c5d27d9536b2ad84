"""Runs the scripts of docs/cluster.md, which make a cache and train from it, on a Slurm with two nodes on this machine.

`./dev release` runs it. All daemons have their files in the test's folder; a Slurm installed on this machine is not used.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import robocache

ROOT = Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=1
MinJobAge=3600
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=one,two Default=YES
"""
# At first shard 1 ends in the middle of its work, as if its node were lost.
ROBOCACHE = """#!/bin/bash
if [[ "$1 ${{4:-}} ${{SLURM_RESTART_COUNT:-0}}" == 'convert 1 0' ]]; then
  {python} -m robocache "$@" &
  until [[ -e work/shard-001.partial ]]; do sleep 0.01; done
  kill -STOP $!
  scontrol requeue "$SLURM_JOB_ID" || {{ kill -KILL $!; exit 1; }}
  sleep 600
fi
exec {python} -m robocache "$@"
"""
TRAIN = """
import json, sys
import torch
import torch.distributed as dist
import robocache

dist.init_process_group("gloo")
loader = robocache.Loader(robocache.open(sys.argv[1]), batch_size=8, delta_timestamps={"arm": [0.0]}, device="cpu")
assert (loader.rank, loader.world_size) == (dist.get_rank(), 2)
values = torch.cat([batch["arm"].flatten() for batch in loader])
every = [torch.empty_like(values) for _ in range(2)]
dist.all_gather(every, values)
if dist.get_rank() == 0:
    json.dump([rank.tolist() for rank in every], open("trained.json", "w"))
dist.destroy_process_group()
"""


def free_ports(count):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


@pytest.fixture
def slurm(tmp_path):
    """Returns the environment for commands of a Slurm with two nodes of one processor each."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid():
        pytest.skip(f"NOT RUN: needs root and Slurm (slurmctld, slurmd, slurm-client, munge); missing: {missing}")
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, host=host, ports=free_ports(3)))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o600)
    munge = [f"--{name}-file={folder}/{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
        ["slurmctld", "-D", "-f", folder / "slurm.conf"],
        *(["slurmd", "-D", "-N", node, "-f", folder / "slurm.conf"] for node in ("one", "two")),
    ]
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons = []
    try:
        for command in commands:
            log = (folder / f"{command[0]}-{len(daemons)}.log").open("w")
            daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            if command[0] == "munged":
                wait_for(lambda: (folder / "munge.socket").exists())
        idle = ["sinfo", "-h", "-t", "idle", "-o", "%D"]
        wait_for(
            lambda: subprocess.run(idle, env=environment, capture_output=True, text=True).stdout == "2\n",
            lambda: "".join(path.read_text()[-2000:] for path in folder.glob("*.log")),
        )
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def wait_for(is_done, describe=lambda: "", seconds=120):
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end, describe()
        time.sleep(0.1)


def scripts():
    """Returns the two scripts of the page, for 3 shards and nodes of one processor."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL | re.MULTILINE)
    ingest, train = [block for block in blocks if "sbatch" in block or "srun" in block]
    assert "train.sh" in ingest
    smaller = {
        " --gpus-per-node=8": "",
        "--cpus-per-task=64": "--cpus-per-task=1",
        "--nproc-per-node=8": "--nproc-per-node=1",
    }
    for page_text, replacement in {"shards=64": "shards=3", **smaller}.items():
        assert page_text in ingest + train
        ingest, train = ingest.replace(page_text, replacement), train.replace(page_text, replacement)
    return ingest, train


def run_scripts(slurm, folder, ingest, train):
    """Runs the scripts until no job is left. Returns each job's state, the last job's number, the logs, and a function that
    calls a command."""
    for number in range(6):
        (folder / f"recordings/{number}").mkdir(parents=True)
        rows = "".join(f"{i / 10},{i + 100 * number}\n" for i in range(20))
        (folder / f"recordings/{number}/arm.csv").write_text("time_s,joint\n" + rows)
    (folder / "train.sh").write_text(train)
    (folder / "train.py").write_text(TRAIN)
    (folder / "bin").mkdir()
    (folder / "bin/robocache").write_text(ROBOCACHE.format(python=sys.executable))
    (folder / "bin/torchrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    for program in (folder / "bin").iterdir():
        program.chmod(0o755)
    slurm = {
        **slurm,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "PYTHONPATH": f"{Path(robocache.__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}",
    }

    def call(*command):
        completed = subprocess.run(command, cwd=folder, env=slurm, capture_output=True, text=True)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    last_job = call("bash", "-c", ingest).strip()

    def jobs_left():
        return call("squeue", "-h", "-r", "-o", "%i %T %r").splitlines()

    def logs():
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(folder.glob("*.out")))

    wait_for(lambda: not jobs_left(), lambda: f"{jobs_left()}\n{logs()}", 300)
    states = dict(line.split() for line in call("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines())
    return states, last_job, logs(), call


def test_the_scripts_make_one_cache_and_train_from_it(slurm, tmp_path):
    states, last_job, logs, call = run_scripts(slurm, tmp_path, *scripts())
    assert set(states.values()) == {"COMPLETED"} and len(states) == 6 and last_job in states, f"{states}\n{logs}"

    robocache.ingest(tmp_path / "recordings", tmp_path / "whole")
    dataset, single = robocache.open(tmp_path / "cache"), robocache.open(tmp_path / "whole")
    assert len(dataset) == len(single) == 6
    assert (dataset["arm"].values == single["arm"].values).all() and (
        dataset["arm"].time_ns == single["arm"].time_ns
    ).all()
    assert "Restarts=1" in call("scontrol", "show", "job", "2_1")
    first, second = json.loads((tmp_path / "trained.json").read_text())
    assert sorted(first + second) == sorted(single["arm"].values.ravel().tolist())


def test_jobs_that_are_not_requeued_fail(slurm, tmp_path):
    ingest, train = scripts()
    assert "--requeue" in ingest
    states, *_ = run_scripts(slurm, tmp_path, ingest.replace("--requeue", "--no-requeue"), train)
    assert states["2_1"] == "FAILED", states
    assert not (tmp_path / "cache").exists() and not (tmp_path / "trained.json").exists()
