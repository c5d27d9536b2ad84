"""fuse_multimodal: errors, rule 17."""

import numpy as np
import pytest
from reference.compare import poisoned, to_torch
from reference.fuse_calls import ramp, stream_of

import robocache

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"method": "cubicle"}, ["method", "cubicle", "nearest"]),
        ({"method": {"b": "cubicle"}}, ["streams['b'].method", "cubicle", "nearest"]),
        ({"extrapolate": {"a": "hold"}}, ["streams['a'].extrapolate", "hold", "clamp"]),
        ({"method": {"c": "linear"}}, ["method", "'a', 'b'", "'c'"]),
        ({"method": ["linear", "linear"]}, ["method", "dict", "list"]),
        ({"output": "tuple"}, ["output", "'concat' or 'dict'", "tuple"]),
        ({"tolerance": 1.0}, ["streams['a'].tolerance", "linear"]),
        ({"method": {"b": "next"}, "causal": True}, ["streams['b'].causal", "next"]),
        ({"method": {"b": "next"}, "extrapolate": "linear"}, ["streams['b'].extrapolate", "linear", "step"]),
    ],
)
def test_rule_17_errors_name_stream_and_argument(device, options, parts):
    stream = tuple(to_torch(x, device) for x in ramp())
    with pytest.raises(robocache.ArgumentError) as caught:
        robocache.fuse_multimodal({"a": stream, "b": stream}, stream[1], **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"method": ["linear"]}, ["method", "2 streams", "got 1"]),
        ({"max_gap": (1, 2, 3)}, ["max_gap", "2 streams", "got 3"]),
        ({"scale": {"a": 2.0}}, ["scale", "list", "dict"]),
        ({"causal": [True, 3]}, ["streams[1].causal", "True or False"]),
        ({"method": None}, ["method", "str"]),
        ({"return_age": 1}, ["return_age", "True or False"]),
    ],
)
def test_rule_17_errors_name_the_place_in_a_list(device, options, parts):
    stream = tuple(to_torch(x, device) for x in ramp())
    with pytest.raises(robocache.Error) as caught:
        robocache.fuse_multimodal([stream, stream], stream[1], **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("value", [None, "abc", 3, object(), [[1.0], [2.0]]], ids=lambda v: type(v).__name__)
def test_rule_17_what_is_no_array_is_refused_by_name(value):
    values, times = ramp()
    for streams, named in (
        ({"imu": (value, times)}, r"streams\['imu'\].values"),
        ([(values, times), (values, value)], r"streams\[1\].times"),
    ):
        with pytest.raises(robocache.ArgumentTypeError, match=named):
            robocache.fuse_multimodal(streams, times)
    with pytest.raises(robocache.ArgumentTypeError, match=r"^target_times"):
        robocache.fuse_multimodal([(values, times)], value)
    for streams, named in (
        (values, "streams: expected"),
        ([values, times], r"streams\[0\]"),
        ({"a": times}, r"streams\['a'\]"),
    ):
        with pytest.raises(robocache.ArgumentTypeError, match=named):
            robocache.fuse_multimodal(streams, times)


def test_rule_17_nothing_is_written_by_a_refused_call(rng, device):
    streams = [tuple(to_torch(x, device) for x in stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)))] * 2
    out = poisoned((3, 17, 10), torch.float32, device)
    before = out.clone()
    with pytest.raises(robocache.ArgumentError, match=r"streams\[1\].max_gap"):
        robocache.fuse_multimodal(streams, streams[0][1], out=out, max_gap=[1.0, -1.0])
    assert torch.equal(out.view(torch.int32), before.view(torch.int32))
