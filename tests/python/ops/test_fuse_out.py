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
def test_rule_16_out_is_completely_written_and_returned(rng, device, output):
    streams = [
        stream_of(rng, np.dtype(np.float32), clock, features=d) for d, clock in zip((3, 16, 1), CLOCKS, strict=True)
    ]
    targets = targets_of(rng, np.dtype(np.float64))
    expected = oracle(streams, targets, output=output, extrapolate="nan")
    tensors = [tuple(to_torch(x, device) for x in stream) for stream in streams]
    widths = [20] if output == "concat" else [3, 16, 1]

    def outs_and_memory(width):
        memory = poisoned((3, 23, width + 5), torch.float32, device)
        yield poisoned((3, 23, width), torch.float32, device), None
        yield memory[..., 2 : width + 2], memory
        yield poisoned((23, 3, width), torch.float32, device).transpose(0, 1), None
        yield poisoned((3, width, 23), torch.float32, device).transpose(1, 2), None

    for pairs in zip(*(outs_and_memory(width) for width in widths), strict=True):
        outs = [out for out, _ in pairs]
        out = outs[0] if output == "concat" else outs
        options = {"output": output, "extrapolate": "nan", "out": out}
        assert robocache.fuse_multimodal(tensors, to_torch(targets, device), **options) is out
        returned, valid, age = robocache.fuse_multimodal(
            tensors, to_torch(targets, device), return_valid=True, return_age=True, **options
        )
        assert returned is out
        for array, expected_array in zip(outs, [expected[0]] if output == "concat" else expected[0], strict=True):
            assert_same_bits(to_numpy(array), expected_array)
        assert_same_bits(to_numpy(valid), expected[1])
        assert_same_bits(to_numpy(age), expected[2])
        for (_, memory), width in zip(pairs, widths, strict=True):
            if memory is not None:
                raw = memory.cpu().contiguous().view(torch.uint8).view(3, 23, width + 5, -1)
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
