"""Loaders by keyword options, for parametrised tests: each option goes into the Window, Anchors, Normalization, Memory,
Ranks or Mixture that takes it. A window's option is one value for all keys, or {key: value}."""

from robocache.former_options import current

import robocache


def loader_by_keywords(dataset, **keywords):
    return robocache.Loader(**current({"dataset": dataset, **keywords}))


def from_lerobot(path, **keywords):
    return robocache.Loader.from_lerobot(path, **current(keywords))


def lerobot_dataset(path, *arguments, **keywords):
    return robocache.LeRobotDataset(path, *arguments, **current(keywords))
