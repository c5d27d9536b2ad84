"""The text of each sample's task: what a policy that follows instructions is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import errors
from .dataset import Dataset


class TaskTexts:
    """Tasks of the samples of batches, by dataset.

    A dataset says them in one of two ways: a number a row, stream ``task_index`` with the texts in
    ``provenance["lerobot"]["tasks"]``, as LeRobot does; or a text an episode, column ``task``, or ``tasks``, of which the
    first counts.

    Raises:
        ArgumentError: a dataset does neither.
    """

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self._of = [_by_row(dataset) or _by_episode(dataset) for dataset in datasets]

    def of(self, batch: Mapping[str, Any]) -> list[str | None]:
        """The text of each of a batch's samples; None where its episode has none. On CUDA it waits for the batch."""
        episodes, times = batch["episode_index"].tolist(), batch["time_ns"].tolist()
        datasets = batch["dataset_index"].tolist() if "dataset_index" in batch else [0] * len(episodes)
        return [self._of[at](episode, time) for at, episode, time in zip(datasets, episodes, times, strict=True)]


def _by_row(dataset: Dataset) -> Any:
    tasks = dataset.provenance.get("lerobot", {}).get("tasks")
    if not tasks or "task_index" not in dataset.streams:
        return None
    texts = {int(number): text for number, text in tasks.items()}
    stream = dataset.streams["task_index"]

    def text(episode: int, time_ns: int) -> str | None:
        begin, end = stream.row_offsets[episode : episode + 2]
        row = np.searchsorted(stream.time_ns[begin:end], time_ns, side="right") - 1
        return texts.get(int(stream.values[begin + max(row, 0)])) if begin < end else None

    return text


def _by_episode(dataset: Dataset) -> Any:
    columns = dataset.episodes.column_names
    if "task" in columns:
        texts = dataset.episodes["task"].to_pylist()
    elif "tasks" in columns:
        listed = dataset.episodes["tasks"].to_pylist()
        texts = [(tasks if isinstance(tasks, str) else tasks[0]) if tasks else None for tasks in listed]
    else:
        raise errors.ArgumentError(
            f"task_text: expected a column task or tasks in the episodes of {dataset.path}, got {', '.join(columns)}"
        )
    return lambda episode, time_ns: texts[episode]
