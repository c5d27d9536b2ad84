"""The arguments of the command ``robocache``: its commands, their options, and the help of each."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any, NoReturn

from . import __version__
from ._printable import printable
from .errors import ArgumentError
from .export import FORMATS as EXPORTS
from .ingest.clocks import POLICIES
from .ingest.registry import FORMATS, add_arguments, describe_formats

_COLUMNS = 80


class _Parser(argparse.ArgumentParser):
    """A parser that raises its SystemExit from an ArgumentError with the message."""

    def error(self, message: str) -> NoReturn:
        try:
            super().error(printable(message))
        except SystemExit as ended:
            raise ended from ArgumentError(message)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="robocache",
        description="Turns robot recordings into aligned GPU batches.",
        epilog=_examples(
            "robocache demo",
            "robocache ingest path/to/pusht pusht.cache    # a folder that you have",
            "robocache inspect pusht.cache",
            "robocache bench pusht.cache",
            "robocache COMMAND --help    # all options of a command",
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"robocache {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, *examples: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(
            name,
            help=summary,
            description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", _COLUMNS),
            epilog=_examples(*examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        subparser.add_argument("--json", action="store_true", help="print JSON instead of text, also for errors")
        return subparser

    def format_option(subparser: argparse.ArgumentParser, summary: str) -> None:
        subparser.add_argument("--format", help=f"{', '.join(FORMATS)} ({summary})")

    def memory_option(subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument(
            "--memory-limit",
            metavar="BYTES",
            type=_positive(int),
            help="the most memory for an item of a file, and for a whole file (default 256 MiB, and 100 times the file's size)",
        )

    def links_option(subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument(
            "--follow-links",
            action="store_true",
            help="follow symlinks in the source that lead out of it (default: they are left out and named, or refused)",
        )

    def ingest_options(subparser: argparse.ArgumentParser) -> None:
        format_option(subparser, "default: found from the files")
        subparser.add_argument(
            "--on-error",
            choices=("stop", "skip"),
            default="stop",
            help="what to do with an episode that cannot be read (default stop)",
        )
        subparser.add_argument(
            "--mapping",
            metavar="FILE",
            help="TOML, YAML or JSON with the streams, their names and their parts; or GR00T's modality.json",
        )
        subparser.add_argument(
            "--repair",
            choices=POLICIES,
            help="for stamps that step back: sort rows, drop the late ones, or split the recording (default: refused)",
        )
        subparser.add_argument(
            "--offset",
            metavar="STREAM=SECONDS",
            type=_offset,
            action="append",
            default=[],
            help="seconds to add to a stream's stamps; may be repeated",
        )
        memory_option(subparser)
        links_option(subparser)
        add_arguments(subparser)

    subparser = command(
        "ingest",
        "read robot recordings of any format and write a cache",
        "robocache ingest path/to/pusht pusht.cache",
        "robocache ingest dataset cache --on-error skip    # exit code 3: some skipped",
        "robocache ingest dataset cache --image-size 224x224 --image-fit pad",
        "robocache ingest logs cache --time-column stamp --time-unit us",
        "robocache ingest dataset --dry-run > streams.toml    # to be edited, then:",
        "robocache ingest dataset cache --mapping streams.toml",
    )
    subparser.epilog = "\n  ".join([f"{subparser.epilog}\n\nformats, and how each is recognised:", *describe_formats()])
    subparser.add_argument("source", help="a file or folder of recordings; the formats are listed below")
    cache = subparser.add_argument("cache", metavar="[cache]", help="the directory to write")
    cache.required = False  # nargs="?" would not accept it after options
    subparser.add_argument(
        "--dry-run",
        action="store_true",
        help="print a mapping of the streams that are found, for editing; write nothing",
    )
    subparser.add_argument("--workers", type=_positive(int), help="processes that share the recordings (default 1)")
    subparser.add_argument("--overwrite", action="store_true", help="replace an existing cache")
    ingest_options(subparser)
    subparser.set_defaults(append=False)

    subparser = command(
        "append",
        "read recordings and add them to an existing cache, all of them or none",
        "robocache append more_logs cache",
        "robocache append today cache --on-error skip    # exit code 3: some skipped",
    )
    subparser.add_argument("source", help="as for robocache ingest")
    subparser.add_argument("cache", help="the cache to add to; open readers do not change")
    ingest_options(subparser)
    subparser.set_defaults(append=True, dry_run=False, overwrite=False, workers=None)

    subparser = command(
        "plan",
        "cut an ingest into shards that any process converts",
        "robocache plan dataset work --shards 64",
        "robocache convert work --shard 0    # then --shard 1, ... on any machine",
        "robocache merge work cache",
    )
    subparser.add_argument("source", help="as for robocache ingest")
    subparser.add_argument("plan", help="the directory to create for the shards")
    subparser.add_argument("--shards", type=_positive(int), required=True, help="the number of shards")
    ingest_options(subparser)

    subparser = command("convert", "convert one shard of a plan", "robocache convert work --shard 3")
    subparser.add_argument("plan", help="the directory of robocache plan")
    subparser.add_argument(
        "--shard",
        type=_shard,
        metavar="I[/N]",
        required=True,
        help="the shard's number, from 0; with N the plan must have N shards; a finished shard is not converted again",
    )

    subparser = command(
        "merge",
        "make a cache of all shards of a plan",
        "robocache merge work cache",
        "robocache merge work/shard-* cache",
    )
    subparser.add_argument(
        "shards", nargs="+", metavar="plan", help="the directory of robocache plan, or all its shards"
    )
    subparser.add_argument("cache", help="the directory to write")
    subparser.add_argument("--overwrite", action="store_true", help="replace an existing cache")

    subparser = command(
        "export",
        "write a cache as a LeRobot v3.0 dataset or as MCAP files",
        "robocache export cache dataset --to lerobot",
        "robocache export cache dataset --to lerobot --fps 30 --method nearest",
        "robocache export cache dataset --to lerobot --rename arm=action hand=action",
        "robocache export cache folder --to mcap",
    )
    subparser.add_argument("cache", help="what robocache ingest or a Writer wrote")
    subparser.add_argument("destination", help="the folder to write; it must not exist yet")
    subparser.add_argument("--to", choices=EXPORTS, required=True, help="the format")
    subparser.add_argument("--streams", nargs="+", metavar="STREAM", help="the streams to write (default all)")
    subparser.add_argument("--fps", type=_positive(int), help="LeRobot: rows per second, if the streams' clocks differ")
    subparser.add_argument(
        "--method",
        action="append",
        metavar="[STREAM=]METHOD",
        help="LeRobot: how a stream, or every stream, is resampled: linear, previous, nearest, slerp and so on",
    )
    subparser.add_argument(
        "--rename",
        action="extend",
        nargs="+",
        metavar="STREAM=FEATURE",
        help="LeRobot: the name of a feature; streams of one feature are concatenated in the order given",
    )
    subparser.add_argument(
        "--video", action="store_true", help="LeRobot: cameras as H.264 in mp4 (default: as image files)"
    )

    subparser = command(
        "inspect",
        "show a cache's streams, rates, jitter, gaps and episodes in 20 lines",
        "robocache inspect cache",
        "robocache inspect cache --stats",
        "robocache inspect cache --json | jq '.streams[].rate_hz'",
        "robocache inspect cache --verify --all",
        "robocache inspect cache --plot cache.png --episode 3",
    )
    subparser.add_argument("cache", help="what robocache ingest or a Writer wrote")
    subparser.add_argument("--stats", action="store_true", help="also statistics, of the first features of each stream")
    subparser.add_argument(
        "--all",
        action="store_true",
        help="every stream, statistics of every feature, and everything that was left out",
    )
    subparser.add_argument(
        "--plot", metavar="FILE", help="save a picture of values, episode lengths and recorded clocks"
    )
    subparser.add_argument("--episode", type=int, default=0, help="the episode in the picture (default 0)")
    subparser.add_argument("--verify", action="store_true", help="check every byte against its checksum first")

    subparser = command(
        "doctor",
        "find what is wrong with a cache or a source: clocks, gaps, NaN, stuck sensors, repeated episodes",
        "robocache doctor cache    # exit code 1 if there are errors",
        "robocache doctor cache --html report.html",
        "robocache doctor path/to/pusht --strict --json",
        "robocache inspect cache --verify    # compares checksums; the doctor does not",
    )
    subparser.add_argument("path", help="a cache, or a source that robocache ingest reads")
    subparser.add_argument("--html", metavar="FILE", help="write a page with plots, one self-contained file")
    subparser.add_argument("--strict", action="store_true", help="exit code 1 also if there are warnings")
    subparser.add_argument(
        "--lines", type=_positive(int), help="findings to show of each code (default: 3; one short line for notes)"
    )
    subparser.add_argument("--no-save", action="store_true", help="do not write doctor.json into the cache")
    subparser.add_argument(
        "--work", metavar="DIR", help="the folder of a source's temporary cache (default: beside the source)"
    )
    format_option(subparser, "for a source; default: found from the files")
    subparser.add_argument(
        "--repair", choices=("sort", "drop", "split"), help="for a source: repair stamps out of order, as ingest does"
    )
    memory_option(subparser)
    links_option(subparser)
    add_arguments(subparser)

    subparser = command(
        "skew",
        "compare a policy's inputs on the robot with training: which windows differ, where and why",
        "robocache skew recorded spec.json",
        "robocache skew recorded spec.json --json",
    )
    subparser.add_argument("recorded", help="a cache that robocache.live.Recorder wrote")
    subparser.add_argument("spec", help="a file that Loader.save_spec wrote")
    subparser.add_argument(
        "--moments",
        type=_positive(int),
        default=1000,
        help="how many moments to draw if no policy's moments are recorded (default 1000)",
    )

    subparser = command(
        "bench",
        "measure how fast a cache loads: windows of all its streams, normalised",
        "robocache bench cache",
        "robocache bench cache --batch-size 4096 --device cuda --dtype bfloat16 --json",
    )
    subparser.add_argument("cache", help="what robocache ingest or a Writer wrote")
    subparser.add_argument(
        "--batch-size", type=_positive(int), help="samples in a batch (default 1024, or as many as fit in memory)"
    )
    subparser.add_argument("--steps", type=_positive(int), default=16, help="moments in a window (default 16)")
    subparser.add_argument("--rate-hz", type=_positive(float), help="the window's rate (default: the slowest stream's)")
    subparser.add_argument("--dtype", default="float32", help="dtype of the batch's floats (default float32)")
    subparser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where it works)")
    subparser.add_argument("--seconds", type=_positive(float), default=3.0, help="how long to measure (default 3)")

    subparser = command(
        "demo",
        "simulate a robot arm, record it, cache it, load aligned batches and save a picture",
        "robocache demo",
        "robocache demo --out /tmp/arm --episodes 12",
    )
    subparser.add_argument("--out", default="demo", help="the folder for the cache and the picture (default demo)")
    subparser.add_argument(
        "--episodes", type=_positive(int), default=24, help="the number of episodes, 10 s each (default 24)"
    )
    subparser.add_argument("--seed", type=int, default=0, help="the seed of the recordings (default 0)")

    subparser = command(
        "info",
        "show versions, libraries and devices, and whether they work",
        "robocache info --json",
        "robocache info --report",
    )
    subparser.add_argument(
        "--report",
        action="store_true",
        help="print the facts for a bug report, with the self-test and without user paths",
    )

    command(
        "self-test",
        "run every operation and a loader on every device, and compare with stored results",
        "robocache self-test",
        "robocache self-test --json",
    )
    return parser


def _examples(*lines: str) -> str:
    return "\n  ".join(["examples:", *lines])


def _offset(text: str) -> tuple[str, str]:
    stream, equals, seconds = text.rpartition("=")
    if not (stream and equals):
        raise argparse.ArgumentTypeError(f"expected STREAM=SECONDS, got {text}")
    return stream, seconds


def _shard(text: str) -> tuple[int, int | None]:
    number, slash, count = text.partition("/")
    try:
        return int(number), int(count) if slash else None
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected I or I/N, got {text}") from None


def _positive(kind: Any) -> Any:
    def convert(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
        return value

    convert.__name__ = kind.__name__  # argparse shows it in "invalid int value"
    return convert
