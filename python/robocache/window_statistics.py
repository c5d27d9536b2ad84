"""Statistics of the values in a loader's batches, for :meth:`Dataset.statistics`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from . import _lib, errors
from ._check import truth
from .actions.conversions import conversions_from_json
from .dataset import Dataset, Stats, quantile_fields
from .loader import Loader
from .norm_stats import check_names
from .options import Memory, Moment, Window
from .sources import as_sources
from .spec import Spec

_statistics = _lib.function("loader_statistics")
_values = _lib.function("loader_values")

_SHOWN_AFTER_S = 2.0


def window_statistics(
    dataset: Dataset, of: Any, *, episodes: np.ndarray | None, per_step: bool, quantiles: Sequence[float]
) -> dict[str, Stats]:
    """Returns the statistics of each numeric key of the dataset.

    Args:
        of: a :class:`Loader` or a :class:`Spec`.
        episodes: with a spec, the episodes to use; None: all.
        per_step, quantiles: as in :meth:`Dataset.statistics`.
    """
    if isinstance(of, Spec):
        loader = _make_loader(dataset, of, episodes)
    elif episodes is not None:
        raise errors.ArgumentError("episodes, where: a Loader has its own, got some for one")
    else:
        loader = of
    source = _source_of(dataset, loader)
    levels, names = quantile_fields(quantiles)
    statistics = {}
    for key, fields in loader.spec_of(source).keys.items():
        if fields["rows"] is None or fields["images"] is not None:
            continue
        with _progress(key) as callback:
            options = (truth("per_step", per_step), _lib.from_numpy(levels), callback)
            table = _lib.to_numpy(_statistics(loader._handle, source, key, *options))
        shape = fields["rows"]["shape"] if fields["convert"] is None else fields["shape"]
        steps = [len(fields["offsets_ns"] or fields["offsets_rows"])] if per_step else []
        arrays = table.reshape(len(names), *steps, *shape)
        described = str(_values(loader._handle, source, key))
        feature_names = fields["rows"]["names"] if fields["convert"] is None else None
        statistics[key] = Stats(**dict(zip(names, arrays, strict=True)), of=described, names=feature_names)
    return statistics


@contextmanager
def _progress(key: str) -> Iterator[Callable[[int, int], bool]]:
    """Yields a callback. If the statistics take longer than 2 seconds, it shows a bar, as :func:`ingest` does."""
    started = time.monotonic()
    with ExitStack() as stack:
        bar: Callable[[int, int, str], None] | None = None

        def show(done: int, total: int) -> bool:
            nonlocal bar
            if bar is None and time.monotonic() - started > _SHOWN_AFTER_S:
                from .view import progress_bar  # imported here, since it is slow to import

                bar = stack.enter_context(progress_bar())
            if bar is not None:
                bar(done, total, f"statistics of {key!r}")
            return True

        yield show


def _source_of(dataset: Dataset, loader: Loader) -> int:
    """Returns the index of the loader's source that draws from the dataset."""
    paths = [source.dataset.path for source in as_sources(loader.dataset)[0]]
    if paths.count(dataset.path) > 1:
        raise errors.ArgumentError(
            f"of: expected a Loader one of whose sources draws from {dataset.path}, got one with {paths.count(dataset.path)}; "
            "make a Loader for each source, and merge their statistics with merge_stats()"
        )
    if dataset.path not in paths:
        raise errors.ArgumentError(
            f"of: expected a Loader one of whose sources draws from {dataset.path}, got one that draws from "
            + ", ".join(paths)
        )
    return paths.index(dataset.path)


def _make_loader(dataset: Dataset, spec: Spec, episodes: np.ndarray | None) -> Loader:
    """Returns a loader of the batches that the spec describes, before normalisation. A camera is there only to choose
    the same anchors."""
    keys = {key: fields for key, fields in spec.keys.items() if fields["rows"] is not None}
    for key, fields in keys.items():
        if fields["stream"] not in dataset:
            raise errors.ArgumentError(
                f"of: no stream {fields['stream']!r} in {dataset.path}; there are {', '.join(dataset.streams)}"
            )
        names = dataset.streams[fields["stream"]].names
        check_names(f"of.keys[{key!r}]", fields["rows"]["names"], names, dataset.path)
    return Loader(
        dataset,
        batch_size=1,
        delta_timestamps={key: _make_window(fields) for key, fields in keys.items()},
        episodes=episodes,
        snap_s=spec.snap_ns / 1e9,
        findings=None,
        device="cpu",
        framework="numpy",
        memory=Memory(residency="mapped", prefetch=0),
    )


def _make_window(fields: dict[str, Any]) -> Window:
    def seconds(name: str) -> float | None:
        return None if fields[name] is None else fields[name] / 1e9

    moment = fields["moment"]
    rows = fields["offsets_rows"]
    offsets = None if fields["one_step"] else rows or [offset / 1e9 for offset in fields["offsets_ns"]]
    methods = fields["rows"]["methods"]
    options: dict[str, Any] = {"offset_s": seconds("offset_ns"), "causal": fields["causal"], "rows": bool(rows)}
    options["stream"] = fields["stream"]
    if moment is not None:
        high_s = math.inf if moment["high_ns"] == 2**63 - 1 else moment["high_ns"] / 1e9
        options["moment"] = Moment(moment["kind"], moment["low_ns"] / 1e9, high_s, moment["discount"])
    if not rows:
        options["method"] = methods[0][2] if len(methods) == 1 else [(slice(a, b), name) for a, b, name in methods]
    if fields["images"] is not None:
        return Window(offsets, **options)
    convert = fields["convert"]
    if convert is not None:
        options["convert"] = conversions_from_json(convert["steps"], math.prod(fields["rows"]["shape"]))
        base = convert["base"]
        options["base"] = (base, convert["base_features"]) if convert["base_features"] else base or None
    return Window(offsets, **options, max_gap_s=seconds("max_gap_ns"), tolerance_s=seconds("tolerance_ns"))
