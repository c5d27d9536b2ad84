"""Records the expert's demonstrations as a robot would."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np

import robocache
from examples import results

from . import expert
from .episode import ACTION, CAMERA, CUBE, START_NS, STATE, WAIT_TICKS, Episode, to_ns
from .scene import FEATURES, FRAME_SIZE, TICK_S, Scene, model_path


def demonstrate(seed, camera, frame_size=(FRAME_SIZE, FRAME_SIZE)):
    """Runs one episode of the expert. Returns the stamps and rows of each stream, and the outcome."""
    episode = Episode(Scene(frame_size), seed)
    scene, rng = episode.scene, episode.rng
    commands = expert.plan(scene.start, scene.cube(), rng)
    joints, frames = [], []
    sensors = {"on_joints": lambda *row: joints.append(row)}
    if camera:
        sensors["on_frame"] = lambda index, frame: frames.append((index, frame))
    episode.stand_still(**sensors)
    episode.run(commands, **sensors)
    times, states, cubes = zip(*joints, strict=True)
    # A command is sent up to 1 ms after its tick begins.
    delays_s = rng.uniform(0, 0.001, len(commands))
    streams = {
        STATE: (to_ns(times), np.array(states)),
        CUBE: (to_ns(times), np.array(cubes)),
        ACTION: (to_ns((WAIT_TICKS + np.arange(len(commands))) * TICK_S + delays_s), commands.astype(np.float32)),
    }
    if camera:
        indices, pictures = zip(*frames, strict=True)
        indices = np.array(indices)
        streams[CAMERA] = to_ns(episode.exposed_s[indices]), np.stack(pictures)
        streams[f"{CAMERA}.arrival_ns"] = to_ns(episode.exposed_s[indices]), to_ns(episode.arrived_s[indices])
    return streams, {"seed": seed, "success": bool(scene.success), "touched": bool(scene.touched)}


def _demonstrate(arguments):
    return demonstrate(*arguments)


def record(path, episodes, *, camera=True, seed=0, workers=None, commit_every=100, frame_size=(FRAME_SIZE, FRAME_SIZE)):
    """Adds demonstrations to the cache at `path` until it has `episodes`, and so continues after an interruption. Returns the counts.

    Failed demonstrations are stored with success=False.
    """
    recorded = set()
    if os.path.exists(path):
        recorded = set(robocache.open(path).episodes["seed"].to_pylist())
    seeds = [number for number in range(seed, seed + episodes) if number not in recorded]
    if seeds:
        progress = results.Progress("recording", episodes, len(recorded))
        model_path()  # raises if the model is missing; in the pool, workers would die and be started again and again
        workers = min(workers or results.cores(), len(seeds))
        context = multiprocessing.get_context("spawn")
        with robocache.Writer(path, append=bool(recorded)) as writer, context.Pool(workers) as pool:
            writer.stream(STATE, names=FEATURES)
            writer.stream(ACTION, names=FEATURES)
            writer.provenance |= {"robot": "ALOHA, simulated", "task": "transfer cube", "clock_starts_ns": START_NS}
            demonstrations = pool.imap(_demonstrate, [(number, camera, frame_size) for number in seeds])
            for count, (streams, outcome) in enumerate(demonstrations, start=1):
                with writer.episode(task="hand over the cube", **outcome) as episode:
                    for name, (time_ns, rows) in streams.items():
                        episode.append(name, time_ns, rows, codec="jpeg" if name == CAMERA else None)
                if count % commit_every == 0 and count < len(seeds):
                    writer.commit()
                progress.show(len(recorded) + count)
        progress.end()
    succeeded = robocache.open(path).episodes["success"].to_pylist()
    counts = {"successes": sum(succeeded), "episodes": len(succeeded)}
    Path(path).with_suffix(".json").write_text(json.dumps(counts))
    return counts
