"""Records the same demonstrations in two ways: as streams with clocks of their own, and for each delay as rows of a fixed 30 fps in a
LeRobot dataset."""

import shutil
from contextlib import ExitStack

import numpy as np

import robocache
from examples.conveyor.belt import COMMAND_STEPS, ROW_STEPS, SECONDS, STEPS_HZ, Camera, Episode, time_ns
from examples.results import Progress

CAMERA, STATE, ACTION, AGE = "observation.images.belt", "observation.state", "action", "observation.frame_age"
ROWS = range(int(SECONDS * STEPS_HZ / ROW_STEPS))


def row_of(row, arrivals, stamps):
    """Returns what a recorder with a fixed 30 fps has for a row: the newest frame that has arrived, and its age in seconds, which
    recorders store only if their user adds it. Returns None if no frame has arrived."""
    moment = time_ns(row * ROW_STEPS)
    frame = int(np.searchsorted(arrivals, moment, "right")) - 1
    return None if frame < 0 else (frame, (moment - stamps[frame]) / 1e9)


def record(folder, episodes, delays_ms, seed):
    """Writes the cache of streams, the datasets of rows and their caches. Returns the number of demonstrations that reached the
    part."""
    shutil.rmtree(folder, ignore_errors=True)
    camera, progress, reached = Camera(), Progress("recording", episodes), 0
    with ExitStack() as stack:
        streams = stack.enter_context(robocache.Writer(folder / "streams"))
        tables = {delay: stack.enter_context(robocache.Writer(folder / f"table_{delay}ms")) for delay in delays_ms}
        for number in range(episodes):
            episode, states, commands = demonstrate(Episode(camera, [seed, number]))
            moments = np.array([time_ns(k * COMMAND_STEPS) for k in range(len(states))])
            with streams.episode(task="reach the part", success=episode.success) as stored:
                stored.append(CAMERA, episode.stamps, episode.files, codec="png")
                stored.append(STATE, moments, states)
                stored.append(ACTION, moments, commands)
            for delay, table in tables.items():
                arrivals = episode.arrivals(delay / 1e3)
                rows = {row: values for row in ROWS if (values := row_of(row, arrivals, episode.stamps))}
                row_moments = np.array([time_ns(row * ROW_STEPS) for row in rows])
                samples = [row * ROW_STEPS // COMMAND_STEPS for row in rows]
                files = [episode.files[frame] for frame, _ in rows.values()]
                with table.episode(task="reach the part", success=episode.success) as stored:
                    stored.append(CAMERA, row_moments, files, codec="png")
                    stored.append(STATE, row_moments, states[samples])
                    stored.append(ACTION, row_moments, commands[samples])
                    stored.append(AGE, row_moments, np.array([[age] for _, age in rows.values()], np.float32))
            reached += episode.success
            progress.show(number + 1)
    for delay in delays_ms:
        robocache.export(folder / f"table_{delay}ms", folder / f"lerobot_{delay}ms", to="lerobot", fps=30)
        robocache.ingest(folder / f"lerobot_{delay}ms", folder / f"rows_{delay}ms")
        shutil.rmtree(folder / f"table_{delay}ms")
    progress.end(f"{reached} reached the part")
    return reached


def demonstrate(episode):
    """Lets the expert act. Returns the episode, and for every 1/120 s the tool's position and the expert's command."""
    states, commands = [], []
    while not episode.done:
        states.append(episode.data.qpos[2:5].astype(np.float32))
        commands.append(episode.expert().astype(np.float32))
        episode.advance(episode.expert() + episode.push())
    return episode, np.array(states), np.array(commands)
