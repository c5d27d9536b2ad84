"""ImageOptions: the steps from a camera's frames to a batch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

from . import _lib, errors

_check = _lib.function("check_image_options")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The steps from a decoded frame to the batch, in this order; all are optional. docs/images.md has examples.

    A range is ``(low, high)``, drawn evenly, or one number. A draw is a hash of (seed, epoch, the sample's number, the camera's
    key, the purpose). It is the same on every device, and for all frames of a window. The number is that in the order, in
    :meth:`Loader.gather` the anchor's, in an :class:`EpisodeLoader` that of a segment's first anchor.

    A resize has half-pixel centres; torchvision's uint8 may differ by 1. A pixel that is resized, rotated or blurred is one
    quotient of whole numbers, rounded half to even; each step rounds to bytes once. A blur reflects the image at its edges.
    Grey is the luma of ITU-R BT.601; contrast turns about its mean over the final image with its borders. Normalising is
    fma(x, 1 / (255 std), -mean / std) with float64 constants, then one rounding to the dtype.

    Depth is uint16 with a scale to metres, or float32 metres; a batch has metres. Colours, blur, erasing, `mean` and `std` are
    refused for it. 0 and non-finite values are no measurement and stay so.

    Attributes:
        crop_scale: the share of the frame's area to cut out before resizing, in the frame's proportions, as torchvision's
            RandomResizedCrop does. One number is the same share every time. Without `size` the crop is resized to the frame's
            size.
        size: ``(height, width)`` to resize to: antialiased, as torchvision does.
        fit: ``"stretch"``, ``"pad"`` (the whole frame, centred on black) or ``"crop"`` (the frame's middle, without padding).
        interpolation: the method of the resize: ``"bilinear"``, ``"bicubic"`` (a = -0.5, as PIL and torch with
            ``antialias=True``), ``"area"`` (the exact mean over the area of each new pixel) or ``"nearest"``, for masks. Depth
            always uses the nearest pixel.
        crop: ``(height, width)`` to cut out of the resized frame.
        crop_at: ``"random"`` or ``"center"``, for `crop` and `crop_scale`.
        shift: instead of `crop`: moves the frame by up to this many pixels in each direction and repeats its edges (DrQ).
        flip_horizontal, flip_vertical: the probability that the frame is mirrored, left for right or upside down. A flip
            mirrors the world, so all cameras and frames of a sample share the draw, and a loader needs ``Window(mirror=...)``,
            the features whose signs change.
        rotation: degrees, counter-clockwise, about the centre, with black corners: x draws from ``[-x, x]``.
        blur: the standard deviation of a Gaussian in pixels, as in torchvision's GaussianBlur.
        blur_kernel: with `blur`: the Gaussian's width in pixels, odd, from 3 to 63.
        brightness, contrast, saturation: factors as in torchvision's ColorJitter: x draws from ``[max(0, 1 - x), 1 + x]``.
        hue: parts of a turn: x draws from ``[-x, x]``, at most 0.5.
        erase: the probability that a rectangle is erased, as by torchvision's RandomErasing.
        erase_scale: the rectangle's share of the area; default ``(0.02, 0.33)``.
        erase_ratio: the rectangle's height over its width; its logarithm is drawn evenly; default ``(0.3, 3.3)``.
        erase_value: the rectangle's new value, from 0 to 1: one number, one per channel, or ``"imagenet"``, the mean; default
            0.
        mean, std: values from 0 to 1 become (value - mean) / std: one number, one per channel, or ``"imagenet"``; default 0 and
            1.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"uint8"``, which is not normalised; default: the loader's dtype
            for floats, else float32.
        layout: ``"chw"`` or ``"hwc"``.
        per_frame: whether each frame of a window has its own draws.
        together: the keys of cameras that share this camera's draws; the options of each camera must list all others.
        transform: your own function, the last step of a loader: ``transform(images, seeds)``. `images` are the camera's ``[B,
            T, C, H, W]`` after all other options, on its device, by default uint8. `seeds` is int64 ``[B]``: each sample's hash
            of (seed, epoch, the sample's number). The batch holds its result, ``[B, ...]``. A loader pickles only if this
            function does.

    Raises:
        ArgumentError, ArgumentTypeError: an option is invalid; the message names it.
    """

    size: Sequence[int] | None = None
    fit: Literal["stretch", "pad", "crop"] = "stretch"
    interpolation: Literal["bilinear", "nearest", "bicubic", "area"] = "bilinear"
    crop_scale: float | Sequence[float] | None = None
    crop: Sequence[int] | None = None
    crop_at: Literal["random", "center"] = "random"
    shift: int = 0
    flip_horizontal: float = 0.0
    flip_vertical: float = 0.0
    rotation: float | Sequence[float] | None = None
    blur: float | Sequence[float] | None = None
    blur_kernel: int = 0
    brightness: float | Sequence[float] | None = None
    contrast: float | Sequence[float] | None = None
    saturation: float | Sequence[float] | None = None
    hue: float | Sequence[float] | None = None
    erase: float = 0.0
    erase_scale: float | Sequence[float] | None = None
    erase_ratio: float | Sequence[float] | None = None
    erase_value: float | Sequence[float] | str | None = None
    mean: float | Sequence[float] | str | None = None
    std: float | Sequence[float] | str | None = None
    dtype: Any = None
    layout: Literal["chw", "hwc"] = "chw"
    per_frame: bool = False
    together: Sequence[str] = ()
    transform: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.transform is not None and not callable(self.transform):
            raise errors.ArgumentTypeError(f"transform: expected a function of (images, seeds), got {self.transform!r}")
        for field in self._fields():
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", _lib.dtype_name(self.dtype))
        _check(self.to_json())

    @classmethod
    def _fields(cls) -> list[dataclasses.Field[Any]]:
        """Returns the options of the library: all but the caller's own function."""
        return [field for field in dataclasses.fields(cls) if field.name != "transform"]

    def to_json(self) -> str:
        """Returns the JSON that the library reads, without options that are None and without `transform`."""
        return self._json

    @cached_property  # since every call in a loop reads it
    def _json(self) -> str:
        options = {field.name: getattr(self, field.name) for field in self._fields()}
        for name, value in options.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                raise errors.ArgumentTypeError(
                    f"{name}: expected finite numbers, text, True or False, or a list of them, got {value!r}"
                ) from None
        return json.dumps({name: value for name, value in options.items() if value is not None})


def _plain(value: Any) -> Any:
    """Converts numbers and sequences of numpy or torch to Python's, and lists to tuples, so that options can be hashed."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
