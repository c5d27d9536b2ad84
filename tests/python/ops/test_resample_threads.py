"""resample_trajectories on threads and in processes, rule 20."""

import hashlib
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from reference.compare import assert_same_bits, to_numpy, to_torch
from reference.resample_calls import random_case, resample

import robocache

torch = pytest.importorskip("torch")


def large_case(rng):
    return random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=64, samples=400, targets=500, features=33)


def test_rule_20_no_result_depends_on_the_number_of_threads(rng, threads):
    for case in (large_case(rng), random_case(rng, np.dtype(np.float16), np.dtype(np.int64), batch=1, targets=20_000)):
        results = []
        for count in (1, 2, 3, 8, 64):
            threads(count)
            results.append(resample(*case, extrapolate="nan"))
        for out, valid in results[1:]:
            assert_same_bits(out, results[0][0])
            assert_same_bits(valid, results[0][1])


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_rule_20_the_environment_sets_the_number_of_threads(threads):
    program = (
        "import hashlib, sys, numpy as np\n"
        "sys.modules['torch'] = None  # importing torch would take most of the time\n"
        "import robocache\n"
        "values = np.sin(np.arange(32 * 400 * 33, dtype=np.float32)).reshape(32, 400, 33)\n"
        "out = robocache.resample_trajectories(values, np.arange(400.0), np.linspace(-1, 401, 700))\n"
        "count = sum('Threads' in line and int(line.split()[1]) for line in open('/proc/self/status'))\n"
        "print(hashlib.sha256(out.tobytes()).hexdigest(), count)\n"
    )
    # OpenBLAS, in numpy, would start threads too.
    environment = os.environ | {"ROBOCACHE_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    digest, count = run.stdout.split()
    values = np.sin(np.arange(32 * 400 * 33, dtype=np.float32)).reshape(32, 400, 33)
    out = robocache.resample_trajectories(values, np.arange(400.0), np.linspace(-1, 401, 700))
    assert digest == hashlib.sha256(out.tobytes()).hexdigest()
    assert int(count) <= int(threads) + 1


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", None])
def test_rule_20_the_number_of_threads_must_be_a_positive_integer(threads):
    with pytest.raises(robocache.Error, match=r"^n: expected"):
        robocache.set_num_threads(threads)


def run_in_fork(function, seconds=60):
    """Calls `function` in a forked child. Returns "ok", or a text if the function raised or the child died."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            function()
            os.write(write_end, b"ok")
        except BaseException as error:
            os.write(write_end, repr(error).encode()[:4000])
        os._exit(0)
    os.close(write_end)
    deadline = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail(f"the forked child still ran after {seconds} s")
        time.sleep(0.005)
    with os.fdopen(read_end, "rb") as pipe:
        return pipe.read().decode() or "the forked child died"


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_use_after_fork(rng, threads):
    threads(4)
    case = large_case(rng)
    expected = robocache.resample_trajectories(*case)

    def use():
        assert_same_bits(robocache.resample_trajectories(*case), expected)

    def fork_again():
        use()
        assert run_in_fork(use) == "ok"

    for _ in range(5):
        assert run_in_fork(use) == "ok"
    assert run_in_fork(fork_again) == "ok"
    use()  # and the parent's threads still work


class Resampled(torch.utils.data.Dataset):
    def __init__(self, case):
        self.case = case

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return robocache.resample_trajectories(*(x[index : index + 4] for x in self.case))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_use_in_forked_dataloader_workers(rng):
    case = [to_torch(x) for x in large_case(rng)]
    dataset = Resampled(case)
    expected = [dataset[i] for i in range(len(dataset))]  # the parent's pool runs before the workers start
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=300
    )
    for out, expected_array in zip(loader, expected, strict=True):
        assert_same_bits(to_numpy(out), to_numpy(expected_array))


def test_use_from_many_threads_at_once(rng):
    from concurrent.futures import ThreadPoolExecutor

    case = large_case(rng)
    expected = robocache.resample_trajectories(*case)
    with ThreadPoolExecutor(8) as executor:
        for out in executor.map(lambda _: robocache.resample_trajectories(*case), range(40)):
            assert_same_bits(out, expected)
