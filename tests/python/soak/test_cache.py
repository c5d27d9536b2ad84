"""The cache under attack: forged manifests, mutated headers, killed writers, writers at once, full disks.

What an attack leaves is refused by name or is a whole cache, and nothing crashes or hangs. Rounds are seeded by their
number: a longer run goes on where a short one ends.
"""

import json
import os
import resource
import shutil
import signal
import time
import traceback
import zlib

import numpy as np
import pytest
from soak import rounds

import robocache

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
]


def write(path, value, rows=50, **options):
    """A cache whose every value is `value`."""
    with robocache.Writer(path, **options) as w:
        for task in ("reach", "grasp"):
            with w.episode(task=task, tags=["a", "b"]) as ep:
                ep.append("joint", np.arange(rows) * 10, np.full((rows, 3), value, np.float32))
                ep.append("camera", [0, 5], np.full((2, 4, 4), value, np.uint8))


def value_of(path):
    """The value that a whole cache holds everywhere."""
    ds = robocache.open(path, verify=True)
    found = {float(value) for stream in ds.streams.values() for value in np.unique(stream.values)}
    assert len(found) == 1 and len(ds) == 2
    return found.pop()


def use(ds):
    """Touches all that an opened cache holds."""
    assert len(ds.episodes.to_pylist()) == len(ds)
    for stream in ds.streams.values():
        assert len(stream.time_ns) == len(stream.values)
        np.add.reduce(np.asarray(stream.values), axis=None)


def refused(path):
    """Whether opening `path` is refused: then by a file's name; else what opens can be used, and its checksums looked at."""
    try:
        ds = robocache.open(path)
    except robocache.FileError as error:
        assert str(error).startswith(f"{path}/")
        return True
    use(ds)
    try:
        ds.verify()
    except robocache.FileError as error:
        assert str(error).startswith(f"{path}/")
    return False


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


NASTY = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -0.5,
    1e308,
    "",
    "x",
    "../x",
    "/etc/passwd",
    "\0",
]
NASTY += ["a" * 5000, "\U0010ffff", "float32", "float128", "int64", [], [[]], [0, -1], [2**62, 2**62], {}, {"a": {}}]


def places(node, path=()):
    """Every place in a JSON document."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def forged(rng, manifest):
    """A manifest with one to three lies and the checksum of what it now says."""
    document = json.loads(manifest)
    del document["crc32"]
    for _ in range(rng.integers(1, 4)):
        all_places = list(places(document))
        *above, key = all_places[rng.integers(len(all_places))]
        node = document
        for step in above:
            node = node[step]
        kind = rng.integers(4)
        if kind == 0:
            del node[key]
        elif kind == 1 and isinstance(node, list):
            node.append(node[key])
        elif kind == 1:
            node[f"{key}s"] = node.pop(key)
        elif kind == 2 and isinstance(node[key], int):
            node[key] += int(rng.choice([-1, 1, 2**32, 2**63]))
        else:
            node[key] = NASTY[rng.integers(len(NASTY))]
    text = json.dumps(document, indent=2).removesuffix("\n}") + ",\n"
    return f'{text}  "crc32": "{zlib.crc32(text.encode()):08x}"\n}}\n'.encode()


def test_forged_manifests(path):
    write(path, 1.0)
    manifest = path / "manifest.json"
    honest = manifest.read_text()
    refusals = 0
    for number in range(rounds(250)):
        manifest.write_bytes(forged(np.random.default_rng(number), honest))
        refusals += refused(path)
    assert refusals > rounds(250) // 2  # lies about what nothing reads are no reason to refuse
    manifest.write_text(honest)
    assert value_of(path) == 1.0


def test_mutated_headers(path):
    """Without the checksums, so that the readers meet them."""
    write(path, 1.0)
    files = sorted(path.rglob("*.npy"))
    honest = {file: file.read_bytes() for file in files}
    for number in range(rounds(50)):
        rng = np.random.default_rng(number)
        file = files[rng.integers(len(files))]
        mutated = bytearray(honest[file])
        for _ in range(rng.integers(1, 5)):
            mutated[rng.integers(min(128, len(mutated)))] = rng.integers(256)
        file.write_bytes(mutated)
        refused(path)
        file.write_bytes(honest[file])
    assert value_of(path) == 1.0


def in_a_fork(function):
    """Starts `function` in a forked child, which exits with 0 where it returned; the child's process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_any_moment_of_overwriting(path):
    """Whatever the moment, the name holds one whole cache: the old one or a new one."""
    write(path, 1.0)

    def overwrite():
        value = 2.0
        while True:
            write(path, value, overwrite=True)
            value = value % 200 + 1

    for number in range(rounds(7)):
        child = in_a_fork(overwrite)
        time.sleep(np.random.default_rng(number).uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
        assert value_of(path) >= 1.0
    write(path, 0.0, overwrite=True)
    assert sorted(p.name for p in path.parent.iterdir()) == ["cache"]


def test_four_writers_at_once(path):
    """One of them gets the name, or several one after the other; the others are refused, and none harms another's."""
    for number in range(rounds(2)):
        values = [4.0 * (number % 50) + k for k in range(4)]

        def attempt(value):
            try:
                write(path, value, overwrite=True)
            except robocache.FileError as error:
                if "another writer is at work" not in str(error):
                    raise
                os._exit(2)

        codes = [exit_code(child) for child in [in_a_fork(lambda value=value: attempt(value)) for value in values]]
        assert set(codes) <= {0, 2} and 0 in codes
        assert value_of(path) in values
        assert sorted(p.name for p in path.parent.iterdir()) == ["cache"]


def test_disks_that_fill_up(path):
    """A limit of the file size stands for the disk: writes fail in the middle. The old cache stays, and nothing else."""
    write(path, 1.0)
    size = max(file.stat().st_size for file in path.rglob("*") if file.is_file())

    def overwrite(limit):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(robocache.FileError):
            write(path, 2.0, overwrite=True)

    for number in range(rounds(10)):
        limit = int(np.random.default_rng(number).integers(size))
        assert exit_code(in_a_fork(lambda limit=limit: overwrite(limit))) == 0
        assert value_of(path) == 1.0
        shutil.rmtree(f"{path}.partial", ignore_errors=True)
    write(path, 3.0, overwrite=True)
    assert value_of(path) == 3.0
