"""fuse_multimodal: frameworks and threads, rules 18 and 20."""

import itertools

import numpy as np
import pytest
from reference.compare import OnlyDLPack, assert_same_bits, to_numpy, to_torch
from reference.fuse import fuse as oracle
from reference.fuse import fused_work_type
from reference.fuse_calls import fuse, stream_of, targets_of
from reference.random_streams import CLOCKS, FLOATS

import robocache

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("output", ["concat", "dict"])
def test_rule_18_numpy_gives_numpy(rng, output):
    for dtype in FLOATS:
        streams = [stream_of(rng, dtype, clock) for clock in CLOCKS]
        targets = targets_of(rng, np.dtype(np.float64))
        for array in (*itertools.chain(*streams), targets):
            array.flags.writeable = False
        scale = np.full(5, 2, fused_work_type(dtype))
        fused, valid, age = robocache.fuse_multimodal(
            streams, targets, output=output, scale=scale, return_valid=True, return_age=True
        )
        expected = oracle(streams, targets, output=output, scale=scale)
        for result, expected_result in zip(
            fused if output == "dict" else [fused], expected[0] if output == "dict" else [expected[0]], strict=True
        ):
            assert isinstance(result, np.ndarray)
            assert_same_bits(result, expected_result)
            result[...] = 0  # the result owns its memory, which is writable
        assert_same_bits(valid, expected[1])
        assert_same_bits(age, expected[2])


def test_rule_18_dlpack_gives_dlpack(rng, device):
    streams = [stream_of(rng, np.dtype(np.float32), np.dtype(np.float64))] * 2
    targets = targets_of(rng, np.dtype(np.float64))
    wrapped = [tuple(OnlyDLPack(to_torch(x, device)) for x in stream) for stream in streams]
    out = robocache.fuse_multimodal(wrapped, OnlyDLPack(to_torch(targets, device)), return_valid=True, return_age=True)
    for array, expected in zip(out, oracle(streams, targets), strict=True):
        assert not isinstance(array, np.ndarray | torch.Tensor)
        tensor = torch.from_dlpack(array)
        assert tensor.device.type == device
        assert_same_bits(to_numpy(tensor).astype(expected.dtype), expected)


def test_rule_18_the_result_has_the_framework_of_the_first_streams_values(rng):
    first, second = (stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)) for _ in range(2))
    targets = targets_of(rng, np.dtype(np.float64))
    expected = oracle([first, second], targets)
    as_torch = tuple(to_torch(x) for x in second)
    for streams, kind in (([first, as_torch], np.ndarray), ([as_torch, first], torch.Tensor)):
        arrays = expected if kind is np.ndarray else oracle([second, first], targets)
        result = robocache.fuse_multimodal(streams, targets, return_valid=True, return_age=True)
        for array, expected_array in zip(result, arrays, strict=True):
            assert isinstance(array, kind)
            assert_same_bits(to_numpy(array), expected_array)


def test_rule_20_the_number_of_threads_changes_nothing(rng, threads):
    streams = [stream_of(rng, dtype, np.dtype(np.float64), batch=8, samples=50, features=40) for dtype in FLOATS]
    targets = targets_of(rng, np.dtype(np.float64), batch=8, count=100)
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append(fuse(streams, targets, dtype=np.float32))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_same_bits(a, b)
