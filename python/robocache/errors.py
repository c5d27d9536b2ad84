"""The typed errors. :class:`Error` is the base of all. Each is also a built-in error such as ValueError."""

from __future__ import annotations

from ._printable import printable, shortened
from ._tvm_ffi import register_error


@register_error("robocache.Error")
class Error(Exception):
    """Base of every error that RoboCache raises. Control characters in names are escaped, so that a terminal can show the text."""

    def __str__(self) -> str:
        return printable(shortened(super().__str__()), keep="\n")


@register_error("robocache.ArgumentError")
class ArgumentError(Error, ValueError):
    """An argument of the right type has a value that cannot be used."""


class MissingStreamError(ArgumentError, KeyError):
    """A dataset has no stream of this name; the message lists its streams."""

    def __str__(self) -> str:
        return printable(shortened(Exception.__str__(self)), keep="\n")  # KeyError.__str__ would put it in quotes


@register_error("robocache.ArgumentTypeError")
class ArgumentTypeError(Error, TypeError):
    """An argument has the wrong type or dtype."""


@register_error("robocache.FileError")
class FileError(Error, OSError):
    """A file is missing, damaged or cannot be written; the message begins with its path."""


@register_error("robocache.FrameError")
class FrameError(Error, ValueError):
    """An encoded frame is damaged, is not a frame, or has another codec or shape than expected."""


@register_error("robocache.DeviceError")
class DeviceError(Error, RuntimeError):
    """The device or its driver failed: no such device, out of memory, or a failed launch."""


@register_error("robocache.StaleError")
class StaleError(Error, RuntimeError):
    """A live stream is too far behind for the batch, repeats its last row, or has forgotten rows that the batch needs."""
