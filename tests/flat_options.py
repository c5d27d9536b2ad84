"""Loaders by keyword options, for parametrised tests: each option goes into the Window, Anchors, Normalization, Memory,
Ranks or Mixture that takes it. A window's option is one value for all keys, or {key: value}."""

from robocache.former_options import current

import robocache


def flat_loader(dataset, **flat):
    return robocache.Loader(**current({"dataset": dataset, **flat}))


def from_lerobot(path, **flat):
    return robocache.Loader.from_lerobot(path, **current(flat))


def lerobot_dataset(path, *arguments, **flat):
    return robocache.LeRobotDataset(path, *arguments, **current(flat))
