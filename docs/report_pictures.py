"""Draws docs/doctor-*.png and docs/inspect.png, for docs/pictures.py: the doctor's pages and inspect's plot of recordings in
ROBOCACHE_TEST_DATA.

Chromium renders the pages. Without Pillow or a recording a picture stays unchanged; a page also without chromium, the plot also
without av.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import robocache

WIDTH, TALLEST, SCALE = 1100, 8000, 0.8
MARGIN = 24  # pixels below the last line


@dataclass(frozen=True)
class Page:
    """A picture of the doctor's report of a copy of `source` in a folder `name`, which the page shows.

    file: the copy's file name, if the source is one file.
    top, bottom: the picture has these rows of pixels of the page, as in a slice: negative ones count from the end.
    """

    source: str
    name: str
    file: str | None = None
    dark: bool = False
    top: int | None = None
    bottom: int | None = None


PAGES = {
    "doctor-quadruped.png": Page("logs_csv/gtsam/quadraped_imu_data.csv", "quadruped", file="imu.csv"),
    "doctor-unitree-go2.png": Page("rosbag2/unitree_go2", "unitree_go2", dark=True, top=-1136),
    "doctor-top.png": Page("logs_csv/gtsam/quadraped_imu_data.csv", "quadruped", file="imu.csv", bottom=620),
}
INSPECTED = "lerobot_v2/gr00t_gr1_pnp_sim"
INSPECTED_STREAMS = ("observation.images.ego_view", "observation.state", "action")
NAMES = (*PAGES, "inspect.png")


def make_inspected_cache(folder: Path) -> robocache.Dataset | None:
    """Makes the cache that docs/inspect.png plots in `folder` and returns it, or None if the recording or av is missing."""
    root = os.environ.get("ROBOCACHE_TEST_DATA")
    if not root or not (Path(root) / INSPECTED).exists() or importlib.util.find_spec("av") is None:
        return None
    mapping = {"include": list(INSPECTED_STREAMS)}
    robocache.ingest(Path(root) / INSPECTED, folder / "cache", mapping=mapping, progress=None)
    return robocache.open(folder / "cache")


def make_report(page: Page, folder: Path) -> robocache.doctor.Report | None:
    """Returns the doctor's report of a page, with its files in `folder`, or None if the recording is missing."""
    root = os.environ.get("ROBOCACHE_TEST_DATA")
    if not root or not (Path(root) / page.source).exists():
        return None
    source, copy = (Path(root) / page.source).resolve(), folder / page.name
    if page.file is None:  # CSV files in folders, beside the same recording's bag
        shutil.copytree(source, copy, ignore=lambda _, names: [n for n in names if Path(n).suffix not in ("", ".csv")])
    else:
        copy.mkdir()
        shutil.copy(source, copy / page.file)
    previous_folder = os.getcwd()
    os.chdir(folder)  # a report has the path of its source
    try:
        return robocache.doctor(page.name, format="csv", save=False)
    finally:
        os.chdir(previous_folder)


def shorten_paths(folder: str, text: str) -> str:
    """Shortens the paths of files in the folder to their names."""
    return text.replace(f"{Path(folder).resolve()}/", "").replace(f"{folder}/", "")


def compute_numbers(name: str) -> list[np.ndarray] | None:
    """Returns arrays that change whenever the picture must: the bytes of the report's findings as JSON, or the values that inspect
    plots. None if a recording or a package is missing."""
    with tempfile.TemporaryDirectory() as folder:
        if name not in PAGES:
            dataset = make_inspected_cache(Path(folder))
            if dataset is None:
                return None
            numbers = [dataset.episode(0)[stream][1] for stream in INSPECTED_STREAMS[1:]]
            return [*numbers, dataset.episodes["end_ns"].to_numpy()]
        report = make_report(PAGES[name], Path(folder))
        if report is None:
            return None
        text = shorten_paths(folder, json.dumps(report.to_dict()["findings"], sort_keys=True))
    return [np.frombuffer(text.encode(), np.uint8)]


def draw(name: str, path: Path, description: str) -> bool:
    """Draws a picture to `path`, with `description` in its metadata. Returns False without Pillow, or for a page without a browser."""
    try:
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo
    except ImportError:
        return False
    metadata = PngInfo()
    metadata.add_text("Description", description)
    if name not in PAGES:
        from robocache.picture import plot

        with tempfile.TemporaryDirectory() as folder:
            dataset = make_inspected_cache(Path(folder))
            assert dataset is not None
            dataset.path = "cache"  # for the title
            plot(dataset, Path(folder) / path.name)
            image = Image.open(Path(folder) / path.name).convert("RGB")
        image = image.resize((WIDTH, image.height * WIDTH // image.width), Image.Resampling.LANCZOS)
        image.quantize(256, method=Image.Quantize.MAXCOVERAGE).save(path, pnginfo=metadata, optimize=True)
        return True
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        return False
    page = PAGES[name]
    with tempfile.TemporaryDirectory() as folder:
        report = make_report(page, Path(folder))
        assert report is not None
        html, screenshot = Path(folder) / "report.html", Path(folder) / "report.png"
        html.write_text(shorten_paths(folder, report.html()), encoding="utf-8")
        switches = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        scheme = f"--blink-settings=preferredColorScheme={0 if page.dark else 1}"
        size = [f"--window-size={WIDTH},{TALLEST}", f"--force-device-scale-factor={SCALE}"]
        command = [browser, *switches, scheme, *size, f"--screenshot={screenshot}", html.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        image = Image.open(screenshot).convert("RGB")
    pixels = np.asarray(image)
    drawn_rows = np.flatnonzero((pixels != pixels[-1, 0]).any(axis=(1, 2)))
    bottom = min(int(drawn_rows[-1]) + 1 + MARGIN, image.height)
    image = image.crop((0, 0, image.width, bottom))
    top, bottom, _ = slice(page.top, page.bottom).indices(image.height)
    image.crop((0, top, image.width, bottom)).quantize(256, method=Image.Quantize.MAXCOVERAGE).save(
        path, pnginfo=metadata, optimize=True
    )
    return True
