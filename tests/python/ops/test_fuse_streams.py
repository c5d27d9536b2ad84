"""fuse_multimodal: forms of a call, streams and their methods; rules 8 to 10, 21 and 22."""

import itertools

import numpy as np
import pytest
from reference.compare import assert_same_bits, name_of, to_numpy, to_torch
from reference.fuse import fuse as oracle
from reference.fuse_calls import BFLOAT16, check, stream_of, targets_of
from reference.random_streams import CLOCKS, FLOATS

import robocache

torch = pytest.importorskip("torch")


def test_rule_21_three_positional_streams(rng, device):
    streams = [
        stream_of(rng, np.dtype(np.float32), clock, features=d) for d, clock in zip((3, 2, 1), CLOCKS, strict=True)
    ]
    targets = targets_of(rng, np.dtype(np.float64))
    positional = [to_torch(x, device) for stream in streams for x in stream]
    fused, valid = robocache.fuse_multimodal(
        *positional, to_torch(targets, device), causal=[True, False, True], return_valid=True
    )
    expected = oracle(streams, targets, options=[{"causal": True}, {}, {"causal": True}])
    assert_same_bits(to_numpy(fused), expected[0])
    assert_same_bits(to_numpy(valid), expected[1])
    for arguments in (positional[:3], positional[:4], positional):
        with pytest.raises(robocache.ArgumentTypeError, match="positional arguments"):
            robocache.fuse_multimodal(*arguments)


def test_rule_21_a_dict_of_streams_with_options_for_each(rng, device):
    arm = stream_of(rng, np.dtype(np.float32), np.dtype(np.float64))
    camera = stream_of(rng, np.dtype(np.uint8), np.dtype(np.int64), features=4)
    imu = stream_of(rng, np.dtype(np.float16), np.dtype(np.float32), features=2)
    streams = {
        name: tuple(to_torch(x, device) for x in stream)
        for name, stream in zip(("arm", "camera", "imu"), (arm, camera, imu), strict=True)
    }
    targets = targets_of(rng, np.dtype(np.float64))
    stream_options = [
        {"max_gap": 0.01},
        {"method": "previous", "offset": 2_000_000, "scale": 1 / 255},
        {"extrapolate": "nan"},
    ]
    keywords = {
        "max_gap": {"arm": 0.01},
        "method": {"camera": "previous"},
        "offset": {"camera": 2_000_000},
        "scale": {"camera": 1 / 255, "arm": None},
        "extrapolate": {"imu": "nan"},
    }
    expected = oracle([arm, camera, imu], targets, options=stream_options, dtype=np.float32)
    fused = robocache.fuse_multimodal(streams, to_torch(targets, device), dtype=torch.float32, **keywords)
    assert_same_bits(to_numpy(fused), expected[0])
    separate = robocache.fuse_multimodal(
        streams, to_torch(targets, device), output="dict", dtype={"camera": "float32"}, **keywords
    )
    assert list(separate) == ["arm", "camera", "imu"]
    expected_dict = oracle(
        [arm, camera, imu],
        targets,
        options=[stream_options[0], stream_options[1] | {"dtype": np.float32}, stream_options[2]],
        output="dict",
    )[0]
    for array, expected_array in zip(separate.values(), expected_dict, strict=True):
        assert_same_bits(to_numpy(array), expected_array)


def resample_stream(stream, targets, device, **options):
    values, times = (to_torch(x, device) for x in stream)
    return [
        to_numpy(x)
        for x in robocache.resample_trajectories(values, times, to_torch(targets, device), return_valid=True, **options)
    ]


@pytest.mark.parametrize("clock", CLOCKS, ids=name_of)
def test_rules_8_to_10_every_method_equals_resamples(rng, device, clock):
    """The tests of resample compare curves and rotations with oracles; here they are among other streams."""
    targets = targets_of(rng, clock)
    pose = stream_of(rng, np.dtype(np.float64), clock, features=9, special=False)
    arm = stream_of(rng, np.dtype(np.float32), clock, features=4, special=False)
    wheels = stream_of(rng, np.dtype(np.float32), clock, features=6, special=False)
    streams = {
        name: tuple(to_torch(x, device) for x in stream)
        for name, stream in (("pose", pose), ("arm", arm), ("wheels", wheels))
    }
    for curve, boundary in (("pchip", None), ("akima", None), ("cubic", None), ("cubic", "natural")):
        fused, valid, age = robocache.fuse_multimodal(
            streams,
            to_torch(targets, device),
            method={"pose": "nearest", "arm": "slerp", "wheels": curve},
            methods={"pose": [(slice(1, 8), "pose")]},
            extrapolate={"arm": "linear"},
            bc_type={"wheels": boundary},
            output="dict",
            return_valid=True,
            return_age=True,
        )
        options = [
            {"method": "nearest", "methods": [(slice(1, 8), "pose")]},
            {"method": "slerp", "extrapolate": "linear"},
            {"method": curve} | ({"bc_type": boundary} if boundary else {}),
        ]
        for index, (name, stream) in enumerate((("pose", pose), ("arm", arm), ("wheels", wheels))):
            out, stream_valid = resample_stream(stream, targets, device, **options[index])
            assert_same_bits(to_numpy(fused[name]), out, name)
            assert_same_bits(to_numpy(valid)[..., index], stream_valid, name)
        # A stream of several methods has one age, by the method of its first features.
        nearest = oracle([pose], targets, method="nearest")[2]
        linear = oracle([wheels], targets)[2]
        assert_same_bits(to_numpy(age)[..., :1], nearest)
        assert_same_bits(to_numpy(age)[..., 2:], linear)


def test_rule_10_several_cubic_streams_share_their_memory(rng, device):
    """Odd numbers of samples show whether the memory after a spline's is aligned."""
    streams = [
        stream_of(rng, dtype, clock, samples=s, features=d, special=False)
        for dtype, clock, s, d in (
            (FLOATS[1], CLOCKS[0], 17, 5),
            (FLOATS[0], CLOCKS[1], 3, 1),
            (FLOATS[1], CLOCKS[2], 1, 3),
            (FLOATS[0], CLOCKS[2], 11, 2),
        )
    ]
    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]
    methods = [None, None, [(slice(1, 2), "linear")], None]
    for clock in CLOCKS:
        targets = targets_of(rng, clock)
        fused = robocache.fuse_multimodal(
            tensors, to_torch(targets, device), method="cubic", methods=methods, output="dict"
        )
        for index, (values, times) in enumerate(streams):
            if times.dtype == clock:
                expected, _ = resample_stream((values, times), targets, device, method="cubic", methods=methods[index])
                assert_same_bits(to_numpy(fused[index]), expected)


def test_rule_22_scale_and_shift_apply_to_the_right_features(rng, device):
    pose = stream_of(rng, np.dtype(np.float32), np.dtype(np.float64), features=9, special=False)
    targets = targets_of(rng, np.dtype(np.float64))
    values, times = (to_torch(x, device) for x in pose)
    scale, shift = (rng.normal(size=9).astype(np.float32) for _ in range(2))
    methods = [(slice(1, 3), "nearest"), (slice(4, None), "previous")]
    fused = robocache.fuse_multimodal(
        [(values, times)],
        to_torch(targets, device),
        methods=methods,
        scale=to_torch(scale, device),
        shift=to_torch(shift, device),
    )
    for features, method in ((slice(0, 1), "linear"), (slice(3, 4), "linear"), *methods):
        part = pose[0][..., features], pose[1]
        expected = oracle([part], targets, method=method, scale=scale[features], shift=shift[features])[0]
        assert_same_bits(to_numpy(fused)[..., features], expected, method)


def test_rule_10_one_bc_type_applies_to_cubic_streams(rng, device):
    values, times = rng.standard_normal((9, 2)), np.cumsum(rng.random(9) + 0.5)
    targets = np.linspace(times[0], times[-1], 33)
    stream = (to_torch(values, device), to_torch(times, device))
    streams, target_times = {"arm": stream, "imu": stream}, to_torch(targets, device)
    fused = robocache.fuse_multimodal(streams, target_times, method={"arm": "cubic"}, bc_type="natural")
    assert_same_bits(to_numpy(fused)[:, 2:], oracle([(values, times)], targets)[0])
    resampled = robocache.resample_trajectories(*stream, target_times, method="cubic", bc_type="natural")
    assert_same_bits(to_numpy(fused)[:, :2], to_numpy(resampled))
    for bc_type in ("natural", {"imu": "natural"}):
        with pytest.raises(robocache.ArgumentError, match="bc_type: "):
            robocache.fuse_multimodal(streams, target_times, bc_type=bc_type)


def test_rule_9_methods_for_all_streams_or_for_each(rng, device):
    streams = [stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)) for _ in range(2)]
    targets = targets_of(rng, np.dtype(np.float64))
    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]

    def call(methods, container=list):
        arguments = tensors if container is list else dict(zip("ab", tensors, strict=True))
        return to_numpy(robocache.fuse_multimodal(arguments, to_torch(targets, device), methods=methods))

    blocks = [(slice(0, 2), "previous"), (slice(-1, None), "nearest")]
    linear, previous = (oracle(streams, targets, method=m)[0] for m in ("linear", "previous"))
    nearest = oracle(streams, targets, method="nearest")[0]
    in_both = linear.copy()
    for begin in (0, 5):
        in_both[..., begin : begin + 2] = previous[..., begin : begin + 2]
        in_both[..., begin + 4] = nearest[..., begin + 4]
    in_second = np.concatenate([linear[..., :5], in_both[..., 5:]], -1)
    assert_same_bits(call(blocks), in_both)
    assert_same_bits(call(blocks, dict), in_both)
    assert_same_bits(call([None, blocks]), in_second)
    assert_same_bits(call({"b": blocks}, dict), in_second)
    assert_same_bits(call([]), linear)
    with pytest.raises(robocache.ArgumentError, match="methods: "):
        call([blocks])


def test_rule_21_a_list_gives_a_list_and_results_have_a_fixed_order(rng, device):
    streams = [stream_of(rng, dtype, np.dtype(np.float64)) for dtype in FLOATS]
    targets = targets_of(rng, np.dtype(np.float64))
    check(streams, targets, device, output="dict")
    check(streams, targets, device, output="dict", dtype=BFLOAT16)
    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]
    expected = dict(zip(("out", "valid", "age"), oracle(streams, targets, dtype=np.float32), strict=True))
    for valid, age in itertools.product((False, True), repeat=2):
        result = robocache.fuse_multimodal(
            tensors, to_torch(targets, device), dtype="float32", return_valid=valid, return_age=age
        )
        requested = ["out"] + ["valid"] * valid + ["age"] * age
        result = result if isinstance(result, tuple) else (result,)
        assert len(result) == len(requested)
        for name, array in zip(requested, result, strict=True):
            assert_same_bits(to_numpy(array), expected[name], name)
    separate, valid = robocache.fuse_multimodal(tensors, to_torch(targets, device), output="dict", return_valid=True)
    assert isinstance(separate, list)
    assert valid.shape == (3, 23, 4)


def test_rule_21_streams_of_different_dtypes_need_a_dtype(rng, device):
    streams = {
        "a": stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)),
        "b": stream_of(rng, BFLOAT16, np.dtype(np.float64)),
    }
    tensors = {name: tuple(to_torch(x, device) for x in stream) for name, stream in streams.items()}
    targets = tensors["a"][1]
    with pytest.raises(robocache.ArgumentTypeError, match="dtype: "):
        robocache.fuse_multimodal(tensors, targets)
    for dtype in (torch.bfloat16, "bfloat16", BFLOAT16):
        assert robocache.fuse_multimodal(tensors, targets, dtype=dtype).dtype == torch.bfloat16
    integers = {"a": (tensors["a"][0].int(), targets), "b": (tensors["b"][0].to(torch.int8), targets)}
    with pytest.raises(robocache.ArgumentTypeError, match="dtype: "):
        robocache.fuse_multimodal(integers, targets, method="previous")
    for dtype in ("int32", "int64"):
        with pytest.raises(robocache.ArgumentTypeError, match=rf"streams\['.'\].values.*got {dtype}"):
            robocache.fuse_multimodal(integers, targets, method="previous", dtype=dtype)
    with pytest.raises(robocache.ArgumentTypeError, match=r"streams\['a'\].values.*a float dtype, got int32"):
        robocache.fuse_multimodal(tensors, targets, dtype="int32")
    with pytest.raises(robocache.ArgumentError, match="dtype: "):
        robocache.fuse_multimodal(tensors, targets, dtype={"a": "float32", "b": "float32"})
