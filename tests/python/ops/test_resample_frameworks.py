"""resample_trajectories: frameworks, rule 18."""

import gc
import os
import weakref

import ml_dtypes
import numpy as np
import pytest
from reference.compare import OnlyDLPack, assert_same_bits, name_of, poisoned, to_numpy, to_torch
from reference.random_streams import FLOATS, WHOLE
from reference.resample import resample as oracle
from reference.resample_calls import random_case

import robocache

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=name_of)
def test_rule_18_read_only_numpy_gives_numpy(rng, dtype):
    case = random_case(rng, dtype, np.dtype(np.float64))
    expected, expected_valid = oracle(*case, method="nearest")
    for array in case:
        array.flags.writeable = False
    out, valid = robocache.resample_trajectories(*case, method="nearest", return_valid=True)
    assert type(out) is type(valid) is np.ndarray
    assert_same_bits(out, expected)
    assert_same_bits(valid, expected_valid)
    out[...] = 0  # the result owns its memory, which is writable
    lengths = np.array([17, 17, 17])
    lengths.flags.writeable = False
    assert_same_bits(robocache.resample_trajectories(*case, method="nearest", lengths=lengths), expected)
    robocache.check_times(case[1])


def test_rule_18_memory_mapped_numpy(rng, tmp_path):
    case = random_case(rng, np.dtype(np.float32), np.dtype(np.int64))
    mapped = []
    for i, array in enumerate(case):
        np.save(tmp_path / f"{i}.npy", array)
        mapped.append(np.load(tmp_path / f"{i}.npy", mmap_mode="r"))
    out = robocache.resample_trajectories(*mapped)
    assert type(out) is np.ndarray
    assert_same_bits(out, oracle(*case)[0])


def test_rule_18_numpy_of_unusual_layout_is_accepted_or_refused(rng):
    """The byte order is swapped, the array is a field of records, or the buffer is unaligned."""
    values, times, targets = random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=1)
    values, times, targets = values[0], times[0], targets[0]
    expected = oracle(values, times, targets)[0]
    record = np.zeros(17, [("flag", "u1"), ("values", "f4", 5)])
    record["values"] = values
    unaligned = np.frombuffer(b"x" + times.tobytes(), np.float64, offset=1)
    for arrays in ((record["values"], times), (values.astype(">f4"), times), (values, unaligned)):
        try:
            out = robocache.resample_trajectories(*arrays, targets)
        except robocache.Error as error:
            assert str(error)
        else:
            assert_same_bits(out, expected)


def test_rule_18_dlpack_gives_dlpack(rng, device):
    numpy_case = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    torch_case = random_case(rng, np.dtype(ml_dtypes.bfloat16), np.dtype(np.float64))
    calls = [(torch_case, [to_torch(x, device) for x in torch_case])]
    if device == "cpu":
        calls.append((numpy_case, numpy_case))
    for case, arrays in calls:
        result = robocache.resample_trajectories(*map(OnlyDLPack, arrays), return_valid=True)
        for array, expected in zip(result, oracle(*case), strict=True):
            assert not isinstance(array, np.ndarray | torch.Tensor)
            tensor = torch.from_dlpack(array)
            assert tensor.device.type == device
            assert_same_bits(to_numpy(tensor).astype(expected.dtype), expected)


def test_rule_18_the_output_outlives_its_inputs(rng, device):
    case = random_case(rng, np.dtype(np.float32), np.dtype(np.float64))
    expected = oracle(*case)[0]
    arrays = [to_torch(x, device) for x in case]
    alive = weakref.ref(arrays[0])
    out = robocache.resample_trajectories(*arrays)
    del arrays
    gc.collect()
    assert alive() is None, "the inputs are kept alive after the call"
    poisoned((1 << 20,), torch.uint8, device)  # reuse the freed memory
    assert_same_bits(to_numpy(out), expected)


def test_rule_18_no_memory_leaks(rng):
    case = random_case(rng, np.dtype(np.float32), np.dtype(np.float64), batch=16, targets=2000, features=64)

    def resident_bytes():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    cases = [case, [to_torch(x) for x in case], [OnlyDLPack(x) for x in case]]
    for arrays in cases:
        for _ in range(5):
            robocache.resample_trajectories(*arrays)
        bytes_before = resident_bytes()
        for _ in range(40):  # 8 MB each
            robocache.resample_trajectories(*arrays, return_valid=True)
        assert resident_bytes() - bytes_before < 64e6


def test_numpy_values_beside_torch_tensors_give_numpy():
    times = torch.arange(4.0)
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    out, valid = robocache.resample_trajectories(values, times, times + 0.5, return_valid=True)
    assert isinstance(out, np.ndarray) and isinstance(valid, np.ndarray)
    assert out.tolist() == [[1, 2], [3, 4], [5, 6], [6, 7]]
    assert valid.tolist() == [True, True, True, False]
