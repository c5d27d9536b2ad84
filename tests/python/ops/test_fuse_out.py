"""fuse_multimodal: out=, rule 16."""

import numpy as np
import pytest
from reference.compare import assert_same_bits, poisoned, to_numpy, to_torch
from reference.fuse import fuse as oracle
from reference.fuse_calls import BFLOAT16, stream_of, targets_of
from reference.random_streams import CLOCKS

import robocache

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("output", ["concat", "dict"])
def test_rule_16_out_is_written_whole_and_returned(rng, device, output):
    streams = [
        stream_of(rng, np.dtype(np.float32), clock, features=d) for d, clock in zip((3, 16, 1), CLOCKS, strict=True)
    ]
    targets = targets_of(rng, np.dtype(np.float64))
    expected = oracle(streams, targets, output=output, extrapolate="nan")
    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]
    widths = [20] if output == "concat" else [3, 16, 1]

    def forms(width):
        gaps = poisoned((3, 23, width + 5), torch.float32, device)
        yield poisoned((3, 23, width), torch.float32, device), None
        yield gaps[..., 2 : width + 2], gaps
        yield poisoned((23, 3, width), torch.float32, device).transpose(0, 1), None
        yield poisoned((3, width, 23), torch.float32, device).transpose(1, 2), None

    for form in zip(*(forms(width) for width in widths), strict=True):
        outs = [out for out, _ in form]
        out = outs[0] if output == "concat" else outs
        options = {"output": output, "extrapolate": "nan", "out": out}
        assert robocache.fuse_multimodal(tensors, to_torch(targets, device), **options) is out
        returned, valid, age = robocache.fuse_multimodal(
            tensors, to_torch(targets, device), return_valid=True, return_age=True, **options
        )
        assert returned is out
        for one, other in zip(outs, [expected[0]] if output == "concat" else expected[0], strict=True):
            assert_same_bits(to_numpy(one), other)
        assert_same_bits(to_numpy(valid), expected[1])
        assert_same_bits(to_numpy(age), expected[2])
        for (_, gaps), width in zip(form, widths, strict=True):
            if gaps is not None:
                raw = gaps.cpu().contiguous().view(torch.uint8).view(3, 23, width + 5, -1)
                assert (torch.cat([raw[:, :, :2], raw[:, :, width + 2 :]], 2) == 0xA5).all()


def test_rule_16_out_as_a_dict_and_as_numpy(rng):
    streams = {
        "a": stream_of(rng, np.dtype(np.float32), np.dtype(np.float64)),
        "b": stream_of(rng, BFLOAT16, np.dtype(np.int64)),
    }
    targets = targets_of(rng, np.dtype(np.float64))
    expected = oracle(list(streams.values()), targets, output="dict")[0]
    out = {"b": np.full((3, 23, 5), 7, BFLOAT16), "a": np.full((3, 23, 5), 7, np.float32)}
    assert robocache.fuse_multimodal(streams, targets, output="dict", out=out) is out
    assert_same_bits(out["a"], expected[0])
    assert_same_bits(out["b"], expected[1])
    out["b"].flags.writeable = False
    with pytest.raises(robocache.ArgumentError, match=r"(?s)\bout\b.*read-only"):
        robocache.fuse_multimodal(streams, targets, output="dict", out=out)


def test_rule_16_overlap_with_an_input_is_refused_by_name(device):
    storage = torch.zeros(4096, device=device)

    def piece(start, *shape):
        return storage[start : start + int(np.prod(shape))].view(shape)

    out = piece(1000, 4, 3)
    arrays = {
        "values": piece(0, 5, 2),
        "times": piece(20, 5),
        "target_times": piece(40, 4),
        "scale": piece(60, 2),
        "shift": piece(80, 2),
    }
    for name in (None, *arrays):
        given = dict(arrays)
        if name is not None:
            given[name] = piece(1000 - arrays[name].numel() + 1, *arrays[name].shape)
        streams = {"x": (piece(200, 5, 1), piece(220, 5)), "y": (given["values"], given["times"])}
        options = {name: {"y": given[name]} for name in ("scale", "shift")}
        if name is None:
            robocache.fuse_multimodal(streams, given["target_times"], out=out, **options)
            continue
        named = name if name == "target_times" else rf"streams\['y'\].{name}"
        with pytest.raises(robocache.ArgumentError, match=rf"^out: overlaps {named}"):
            robocache.fuse_multimodal(streams, given["target_times"], out=out, **options)


@pytest.mark.parametrize("elsewhere", ["values", "times", "target_times", "lengths", "target_lengths", "scale", "out"])
def test_rule_16_everything_is_on_one_device(cuda, elsewhere):
    tensors = {
        "values": torch.zeros(1, 4, 2, device=cuda),
        "times": torch.arange(4.0, device=cuda),
        "target_times": torch.arange(4.0, device=cuda),
        "lengths": torch.tensor([4], device=cuda),
        "target_lengths": torch.tensor([4], device=cuda),
        "scale": torch.ones(2, device=cuda),
        "out": torch.zeros(1, 4, 4, device=cuda),
    }
    first = tensors["values"], tensors["times"]
    tensors[elsewhere] = tensors[elsewhere].cpu()
    second = tensors.pop("values"), tensors.pop("times")
    tensors["lengths"], tensors["scale"] = [None, tensors["lengths"]], [None, tensors["scale"]]
    with pytest.raises(robocache.ArgumentError, match=rf"(?s)(?=.*\b{elsewhere}\b)(?=.*cpu)(?=.*cuda)"):
        robocache.fuse_multimodal([first, second], **tensors)


def test_rule_16_outs_overlap_neither_themselves_nor_one_another(device):
    stream = tuple(to_torch(x, device) for x in (np.ones((4, 5), np.float32), np.arange(4.0)))
    half = torch.zeros(4, 5, device=device)
    for named, out, output in (
        ("out", torch.zeros(4, 1, device=device).expand(4, 10), "concat"),
        (r"streams\['b'\].out", {"a": half, "b": half}, "dict"),
    ):
        with pytest.raises(robocache.ArgumentError, match=f"^{named}: "):
            robocache.fuse_multimodal({"a": stream, "b": stream}, stream[1], out=out, output=output)
