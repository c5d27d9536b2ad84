"""image_batch: makes a batch of images from frames: crops, resizes, jitters, normalises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _lib, errors
from .._check import number, whole
from .._operation import argument, optional, writable
from ..image_options import ImageOptions

if TYPE_CHECKING:
    from .._operation import Array

_image_batch = _lib.function("image_batch")


def image_batch(
    frames: Array,
    rows: Any = None,
    *,
    options: ImageOptions | None = None,
    seed: int = 0,
    epoch: int = 0,
    sample: int = 0,
    unit_m: float | None = None,
    out: Any = None,
    **given: Any,
) -> Array:
    """Makes a training batch of images from decoded frames, in one launch, by the same steps as a loader.

    The result has the same bits on the CPU and on CUDA. A sample's image does not depend on the rest of the batch.

    Args:
        frames: ``[N, H, W, C]`` uint8, C 1 or 3, or depth ``[N, H, W, 1]``, uint16 with `unit_m` or float32 metres; dense.
        rows: int64 ``[B]`` or ``[B, T]`` on the frames' device: the frame of each output; below 0 gives a black frame. None:
            each frame once.
        options: an :class:`ImageOptions` with the steps; or pass its arguments as keywords of this call.
        seed, epoch, sample: the random draws are a hash of these: output b draws as sample ``sample + b`` of the epoch.
        unit_m: metres of one unit of uint16 depth, 0.001 for millimetres.
        out: the dense array to write to.

    Returns:
        ``[B, C, h, w]`` or ``[B, T, C, h, w]`` of the options' dtype, with ``layout="hwc"`` ``[..., h, w, C]``, in the
        framework and on the device of the frames. Depth is in metres. Rules 41, 42 and 46 of docs/rules.md apply.

    Raises:
        ArgumentError, ArgumentTypeError: an argument is invalid; the message names it. A row of N or more is invalid on the
            CPU. On CUDA, where rows are not checked before the launch, it gives a black frame.
        DeviceError: the device failed.

    Example:
        >>> frames = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
        >>> robocache.image_batch(frames, crop=(2, 2), crop_at="center", dtype="uint8")[:, 0]
        array([[[15, 18],
                [27, 30]],
        <BLANKLINE>
               [[63, 66],
                [75, 78]]], dtype=uint8)
    """
    if options is None:
        options = ImageOptions(**given)
    elif given:
        raise errors.ArgumentError(f"options: expected no other image options beside it, got {', '.join(given)}")
    elif not isinstance(options, ImageOptions):
        raise errors.ArgumentTypeError(f"options: expected an ImageOptions, got {type(options).__name__}")
    if options.transform is not None:
        raise errors.ArgumentError("transform: expected none, since only a Loader calls it; call it on the result")
    images = _image_batch(
        argument("frames", frames),
        optional("rows", rows),
        options.to_json(),
        whole("seed", seed),
        whole("epoch", epoch),
        whole("sample", sample),
        None if unit_m is None else number("unit_m", unit_m),
        None if out is None else writable("out", out),
    )
    return _lib.in_framework_of(frames, images) if out is None else out  # type: ignore[no-any-return]
