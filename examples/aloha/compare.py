"""Trains one policy with three loaders: LeRobot's dataset in a DataLoader, ours on that dataset, and ours on the recording with
its clocks.

For a seed, all arms begin with the same weights. The first two draw the same rows of the same LeRobot dataset in the same order, and
their samples are compared bit for bit. Each arm is trained in a process of its own.
"""

import itertools
import json
import math
import multiprocessing
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import torch

import robocache
from examples import results

from .episode import ACTION, CAMERA, STATE
from .policy import CHUNK, build, calibrate
from .record import record
from .scene import TICK_S
from .train import Step, make_loader, train

SHIFT = 4  # the most pixels by which a training step moves its frames
THEIRS, ON_THEIRS, OURS = "LeRobot's loader", "ours, the same dataset", "ours, the recording"
FROM_JPEGS = "ours, from JPEGs"
ARMS = {
    THEIRS: "LeRobotDataset of 50 rows a second in a DataLoader, with the workers and the decoder that were fastest",
    ON_THEIRS: "Loader.from_lerobot on that dataset: the same rows in the same order",
    OURS: "robocache.Loader on what was recorded; its anchors are the camera's frames",
}
SHARED = (
    f"the rate of learning falls to 1 %, each step moves its frames by up to {SHIFT} pixels, drawn alike for all, and rollouts have weights "
    "averaged over the last tenth of the steps"
)
FPS = 50
EPISODES_OF_A_SIZE = 8
# Makes LeRobot's workers keep every video open, which is fastest.
os.environ.setdefault("LEROBOT_VIDEO_DECODER_CACHE_SIZE", "none")
WINDOWS = {ACTION: [k * TICK_S for k in range(CHUNK)]}
KEYS = (STATE, CAMERA, ACTION, "action_is_pad")
PREDICTED = (
    "1,000 demonstrations and 8,000 steps, since 500 and 4,500 left two of three seeds below 80 %: the first two have the same weights at "
    "each checkpoint, so the same successes; each of the three arms ends with 160 to 185 of 200 for every seed, so 80 % is reached by all "
    "nine policies, by most after 4,000 or 6,000 steps; the recording's arm within the paired intervals of the first. LeRobot's loader 31 "
    "to 34 steps/s, ours 98 to 101, so 80 % comes 2.9 to 3.2 times sooner; ours wait at most 2 % and keep the GPU 97 % busy. Before "
    "loaders alone were measured: frames of 96x96, 192x192, 256x256, 480x640 on 16 cores: LeRobot's batch 25, 45, 70, 300 ms, ours from "
    "JPEGs at most 1, 2, 3, 10 ms, a step 9, 13, 18, 80 ms; on 2, 4, 8, 16 cores LeRobot's batch 240, 120, 60, 30 ms, ours as with 16"
)


def _limit_cores(cores):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def call_in_process(function, *arguments, cores=None):
    """Calls a function in a process of its own, which uses at most `cores` cores (by default all), and returns the result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _limit_cores, (cores,)) as pool:
        return pool.submit(function, *arguments).result()


class Demonstrations:
    """Has the paths of the recorded demonstrations, of the LeRobot dataset that is exported from them, and of the cache of raw frames
    that is ingested from that dataset; makes loaders of them."""

    def __init__(self, folder):
        self.recorded, self.set, self.cache = (folder / name for name in ("demonstrations", "lerobot", "lerobot.cache"))

    def export(self):
        if not self.set.exists():
            methods = {STATE: "linear", ACTION: "linear", CAMERA: "nearest"}
            robocache.export(
                self.recorded, self.set, to="lerobot", fps=FPS, methods=methods, streams=list(methods), video=True
            )

    def prepare(self):
        self.export()
        if not self.cache.exists():
            robocache.ingest(
                self.set, self.cache, format="lerobot", index_columns=True, image_codec="raw", workers=results.cores()
            )

    def ours(self, batch_size, device, seed=0, image_size=128, memory=None):
        return make_loader(
            self.recorded,
            camera=True,
            batch_size=batch_size,
            device=device,
            seed=seed,
            image_size=image_size,
            memory=memory,
        )

    def succeeded(self):
        outcomes = robocache.open(self.recorded).episodes["success"].to_pylist()
        return [number for number, success in enumerate(outcomes) if success]

    def on_theirs(self, batch_size, device, seed=0, video=True):
        camera = {CAMERA: robocache.Window(dtype="uint8")} if video else {}
        return robocache.Loader.from_lerobot(
            self.set,
            cache=self.cache,
            batch_size=batch_size,
            delta_timestamps=WINDOWS | camera,
            episodes=self.succeeded(),
            drop_last=True,
            device=device,
            seed=seed,
            video=video,
        )

    def order(self, count, batch_size, seed=0):
        """Returns the rows of the first `count` batches of :meth:`on_theirs`."""
        batches = endless(self.on_theirs(batch_size, "cpu", seed, video=False))
        return [next(batches)["index"].tolist() for _ in range(count)]

    def theirs(self, order, workers, decoder, pinned):
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        dataset = LeRobotDataset(
            "robocache/aloha", root=self.set, delta_timestamps=WINDOWS, video_backend=decoder, return_uint8=True
        )
        return torch.utils.data.DataLoader(
            dataset,
            batch_sampler=order,
            num_workers=workers,
            pin_memory=pinned,
            prefetch_factor=4,
            multiprocessing_context="fork",
            # The policy's noise is drawn from torch's default generator, which must be in the same state in each arm.
            generator=torch.Generator(),
        )


def endless(loader):
    while True:
        yield from loader


class Normalized:
    """Prepares batches of the LeRobot dataset for the policy: moves them to the device, and normalises them by the recording's
    statistics."""

    def __init__(self, batches, native):
        self.batches, self.native, self.device = batches, native, native.device
        self.dataset, self.save_spec = native.dataset, native.save_spec
        imagenet = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        self.mean, self.std = (torch.tensor(numbers, device=self.device).view(3, 1, 1) for numbers in imagenet)

    def __iter__(self):
        for batch in self.batches:
            batch = {key: batch[key].to(self.device, non_blocking=True) for key in KEYS}
            for key in (STATE, ACTION):
                batch[key] = self.native.normalize(key, batch[key])
            batch[CAMERA] = batch[CAMERA].float().div_(255).sub_(self.mean).div_(self.std)
            yield batch

    def state_dict(self):
        return None


def check_equal(data, batch_size, batches=4):
    """Checks that LeRobot's samples, with frames as bytes, equal those of Loader.from_lerobot bit for bit. Returns the number of
    samples."""
    order = data.order(batches, batch_size)
    for decoder in decoders():
        ours = iter(data.on_theirs(batch_size, None))
        for theirs in data.theirs(order, 1, decoder, False):
            batch = next(ours)
            for key in (*KEYS, "index", "timestamp", "episode_index", "task_index"):
                if not torch.equal(theirs[key], batch[key].cpu()):
                    raise AssertionError(f"{decoder}: {key} differs")
    return batches * batch_size


def decoders():
    """Returns the names of the video decoders that LeRobot can use here."""
    try:
        import torchcodec  # noqa: F401  fails without FFmpeg's libraries
    except (ImportError, OSError, RuntimeError):
        return ["pyav"]
    return ["torchcodec", "pyav"]


def batch_ms(batches, seconds, ahead=8):
    """Returns the milliseconds per batch; the first `ahead` batches are not timed."""
    for number, batch in enumerate(batches):
        if number == ahead:
            batch[STATE].sum().item()  # waits for the device
            began_s = time.perf_counter()
        if number > ahead and time.perf_counter() - began_s > seconds:
            batch[STATE].sum().item()
            return 1000 * (time.perf_counter() - began_s) / (number - ahead)


def step_ms(native, seconds):
    """Returns the milliseconds per training step of ACT; every step takes the same batch."""
    batch = next(native)
    keys = {key: native.dataset.streams[key].shape[-1] for key in (STATE, ACTION)}
    policy = build("act", keys, 128).to(native.device)
    calibrate(policy, batch)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    take_step = Step(policy.train(), native.device)

    def steps():
        while True:
            take_step(batch, 0.0)
            yield batch

    return batch_ms(steps(), seconds, ahead=12)


def theirs_ms(data, order, native, workers, decoder, batch_size, seconds):
    """Returns the milliseconds per batch of LeRobot's loader."""
    pinned = str(native.device).startswith("cuda")
    # After this many batches, each worker has opened most of the videos.
    ahead = workers * max(6, math.ceil(1.5 * len(data.succeeded()) / batch_size))
    repeated = itertools.islice(itertools.cycle(order), 1_000_000)
    return batch_ms(Normalized(data.theirs(repeated, workers, decoder, pinned), native), seconds, ahead)


def measure_settings(data, device, batch_size, workers, seconds):
    """Returns the time of LeRobot's batches for each decoder and number of workers."""
    native, order = data.ours(batch_size, device), data.order(64, batch_size)
    settings = [
        {
            "decoder": decoder,
            "workers": count,
            "ms": theirs_ms(data, order, native, count, decoder, batch_size, seconds),
        }
        for decoder, count in itertools.product(decoders(), workers)
    ]
    return {
        "best": min(settings, key=lambda setting: setting["ms"]),
        "tried": settings,
        "equal_samples": check_equal(data, batch_size),
    }


def measure_all(data, device, batch_size, workers, decoder, seconds):
    """Returns the time of a batch of each loader, and of a step of the policy."""
    native = data.ours(batch_size, device)
    on_theirs = Normalized(endless(data.on_theirs(batch_size, device)), native)
    times = {
        THEIRS: theirs_ms(data, data.order(64, batch_size), native, workers, decoder, batch_size, seconds),
        ON_THEIRS: batch_ms(on_theirs, seconds),
        OURS: batch_ms(endless(native), seconds),
    }
    return {"batch_ms": times, "step_ms": step_ms(native, seconds)}


def measure_frames(data, device, batch_size, workers, decoder, seconds):
    """Returns the same as measure_all if frames are decoded for each batch, as they are when the pixels do not fit into memory."""
    native = data.ours(batch_size, device, image_size=0, memory=robocache.Memory(residency={CAMERA: "device"}))
    rows = json.loads((data.set / "meta/info.json").read_text())["total_frames"]
    generator = torch.Generator().manual_seed(0)
    order = [torch.randint(rows, (batch_size,), generator=generator).tolist() for _ in range(64)]
    times = {
        THEIRS: theirs_ms(data, order, native, workers, decoder, batch_size, seconds),
        FROM_JPEGS: batch_ms(endless(native), seconds),
    }
    return {"batch_ms": times, "step_ms": step_ms(native, seconds)}


def measure(data, options):
    """Measures what loading.json in the folder lacks, and returns its complete content."""
    file, device, seconds = options.folder / "loading.json", options.device, options.seconds
    loading = json.loads(file.read_text()) if file.exists() else {}

    def save(entry):
        print(entry, file=sys.stderr, flush=True)
        file.write_text(json.dumps(loading))

    def add(part, entry):
        loading[part].append(entry)
        save(entry)

    def missing(part, field, values):
        entries = loading.setdefault(part, [])
        return [value for value in values if all(entry[field] != value for entry in entries)]

    if "best" not in loading:
        loading |= call_in_process(measure_settings, data, device, options.batch_size, options.workers, seconds)
        save(loading["best"])
    best = loading["best"]["workers"], loading["best"]["decoder"]
    for size in missing("sizes", "batch_size", options.sweep):
        add("sizes", {"batch_size": size} | call_in_process(measure_all, data, device, size, *best, seconds))
    for size in missing("frames", "frame_size", options.frame_sizes):
        few = Demonstrations(options.folder / size)
        height, width = map(int, size.split("x"))
        record(few.recorded, EPISODES_OF_A_SIZE, frame_size=(height, width))
        few.export()
        measured = call_in_process(measure_frames, few, device, options.batch_size, *best, seconds)
        add("frames", {"frame_size": size, "batch_size": options.batch_size} | measured)
    for count in missing("cores", "cores", options.cores):
        measured = call_in_process(measure_all, data, device, options.batch_size, count, best[1], seconds, cores=count)
        add("cores", {"cores": count, "batch_size": options.batch_size} | measured)
    return loading


def train_arm(data, folder, arm, seed, steps, every, batch_size, device, best):
    """Trains the policy of an arm. best: the fastest settings of LeRobot's loader."""
    native = data.ours(batch_size, device, seed)
    calibration = next(native)
    if arm == OURS:
        loader = native
    elif arm == ON_THEIRS:
        loader = Normalized(endless(data.on_theirs(batch_size, device, seed)), native)
    else:
        order, pinned = data.order(steps, batch_size, seed), str(native.device).startswith("cuda")
        loader = Normalized(data.theirs(order, best["workers"], best["decoder"], pinned), native)
    return train(loader, folder, kind="act", steps=steps, seed=seed, every=every, calibration=calibration, shift=SHIFT)


def explain(arms):
    """Returns texts about the settings of all arms, and about each arm. If the first two arms have equal weights, the second's says so."""
    policies = {(arm["name"], arm["seed"]): [point["policy"] for point in arm["curve"]] for arm in arms}
    are_equal = all(policies[name, seed] == policies[THEIRS, seed] for name, seed in policies if name == ON_THEIRS)
    proof = {
        ON_THEIRS: ARMS[ON_THEIRS] + ": its weights at each checkpoint are, bit for bit, those of LeRobot's loader"
    }
    return {"all": SHARED} | ARMS | (proof if are_equal else {})


def compare(options, execute):
    """Trains and rolls out the policies that are missing, and writes the result file."""
    from .evaluate import evaluate_run

    data = Demonstrations(options.folder)
    data.prepare()
    loading = measure(data, options)
    settings = options.steps, options.every, options.batch_size, options.device
    arms = []
    for seed, (number, name) in itertools.product(options.seeds, enumerate(ARMS)):
        run = options.folder / f"compare-{number}-{seed}"
        if not (run / f"step_{options.steps}.pt").exists():
            shutil.rmtree(run, ignore_errors=True)
            call_in_process(train_arm, data, run, name, seed, *settings, loading["best"])
        arm = evaluate_run(run, rollouts=options.rollouts, execute=execute, device=options.device or "cpu")
        arms.append(arm | {"name": name})
    if not options.seeds:
        return {"loading": loading}
    expert = json.loads((options.folder / "demonstrations.json").read_text())
    results.write(
        options.result,
        command=f"python -m examples.aloha record --episodes {expert['episodes']}; compare --seeds "
        f"{' '.join(map(str, options.seeds))} --steps {options.steps} --every {options.every} "
        f"--batch-size {options.batch_size} --rollouts {options.rollouts}",
        seeds=options.seeds,
        expert=expert,
        arms=arms,
        predictions=PREDICTED,
        packages=["mujoco", "lerobot", "torchcodec", "av"],
        commit=options.commit,
        title="Against LeRobot's loader on the same machine",
        explained=explain(arms),
        loading=loading,
    )
    return {"loading": loading, "arms": [(arm["name"], arm["seed"], arm["successes"]) for arm in arms]}
