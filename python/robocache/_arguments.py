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
    """One whose exit says why."""

    def error(self, message: str) -> NoReturn:
        try:
            super().error(printable(message))
        except SystemExit as ended:
            raise ended from ArgumentError(message)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="robocache",
        description="Robot recordings into aligned GPU batches.",
        epilog=_examples(
            "robocache demo",
            "robocache ingest path/to/pusht pusht.cache    # a folder that you have",
            "robocache inspect pusht.cache",
            "robocache bench pusht.cache",
            "robocache COMMAND --help    # more of each",
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"robocache {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, summary: str, *examples: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=summary,
            description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", _COLUMNS),
            epilog=_examples(*examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.add_argument("--json", action="store_true", help="print JSON instead of text, of a failure too")
        return made

    def format_option(made: argparse.ArgumentParser, summary: str) -> None:
        made.add_argument("--format", help=f"{', '.join(FORMATS)} ({summary})")

    def memory_option(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--memory-limit",
            metavar="BYTES",
            type=_positive(int),
            help="that an item of a file may take at once, and a file in all (default 256 MiB, and 100 times the file's size)",
        )

    def links_option(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--follow-links",
            action="store_true",
            help="follow symlinks in the source that lead out of it (default: left out by name, or refused)",
        )

    def ingest_options(made: argparse.ArgumentParser) -> None:
        format_option(made, "default: found from the files")
        made.add_argument(
            "--on-error", choices=("stop", "skip"), default="stop", help="at what cannot be read (default stop)"
        )
        made.add_argument(
            "--mapping",
            metavar="FILE",
            help="TOML, YAML or JSON: which streams, by what names, cut into which parts; or GR00T's modality.json",
        )
        made.add_argument(
            "--repair",
            choices=POLICIES,
            help="of stamps that step back: sort rows, drop those behind, or split the recording (default: refused)",
        )
        made.add_argument(
            "--offset",
            metavar="STREAM=SECONDS",
            type=_offset,
            action="append",
            default=[],
            help="added to a stream's stamps; may be given again",
        )
        memory_option(made)
        links_option(made)
        add_arguments(made)

    made = command(
        "ingest",
        "read robot recordings of any format and write a cache",
        "robocache ingest path/to/pusht pusht.cache",
        "robocache ingest dataset cache --on-error skip    # exit code 3: some skipped",
        "robocache ingest dataset cache --image-size 224x224 --image-fit pad",
        "robocache ingest logs cache --time-column stamp --time-unit us",
        "robocache ingest dataset --dry-run > streams.toml    # to be edited, then:",
        "robocache ingest dataset cache --mapping streams.toml",
    )
    made.epilog = "\n  ".join([f"{made.epilog}\n\nformats, and how each is known:", *describe_formats()])
    made.add_argument("source", help="a file or folder of recordings; the formats are listed below")
    cache = made.add_argument("cache", metavar="[cache]", help="the directory to write")
    cache.required = False  # nargs="?" would not take it from behind options
    made.add_argument(
        "--dry-run", action="store_true", help="print the mapping of what is found, ready to be edited; write nothing"
    )
    made.add_argument("--workers", type=_positive(int), help="processes that share the recordings out (default 1)")
    made.add_argument("--overwrite", action="store_true", help="replace a cache that is there")
    ingest_options(made)
    made.set_defaults(append=False)

    made = command(
        "append",
        "read recordings and add them to a cache that is there, whole or not at all",
        "robocache append more_logs cache",
        "robocache append today cache --on-error skip    # exit code 3: some skipped",
    )
    made.add_argument("source", help="as of robocache ingest")
    made.add_argument("cache", help="the cache to add to; open readers do not change")
    ingest_options(made)
    made.set_defaults(append=True, dry_run=False, overwrite=False, workers=None)

    made = command(
        "plan",
        "cut an ingest into shards that any process converts",
        "robocache plan dataset work --shards 64",
        "robocache convert work --shard 0    # and so on, on machines that see both",
        "robocache merge work cache",
    )
    made.add_argument("source", help="as of robocache ingest")
    made.add_argument("plan", help="the directory to make, in which the shards will be")
    made.add_argument("--shards", type=_positive(int), required=True, help="how many")
    ingest_options(made)

    made = command("convert", "convert one shard of a plan", "robocache convert work --shard 3")
    made.add_argument("plan", help="what robocache plan made")
    made.add_argument(
        "--shard",
        type=_shard,
        metavar="I[/N]",
        required=True,
        help="its number, from 0, of N that there must be; one that is finished is left alone",
    )

    made = command(
        "merge",
        "make a cache of all shards of a plan",
        "robocache merge work cache",
        "robocache merge work/shard-* cache",
    )
    made.add_argument("shards", nargs="+", metavar="plan", help="what robocache plan made, or all its shards")
    made.add_argument("cache", help="the directory to write")
    made.add_argument("--overwrite", action="store_true", help="replace a cache that is there")

    made = command(
        "export",
        "write a cache as a LeRobot v3.0 dataset or as MCAP files",
        "robocache export cache dataset --to lerobot",
        "robocache export cache dataset --to lerobot --fps 30 --method nearest",
        "robocache export cache dataset --to lerobot --rename arm=action hand=action",
        "robocache export cache folder --to mcap",
    )
    made.add_argument("cache", help="what robocache ingest or a Writer wrote")
    made.add_argument("destination", help="the folder to write, which must not exist")
    made.add_argument("--to", choices=EXPORTS, required=True, help="the format")
    made.add_argument("--streams", nargs="+", metavar="STREAM", help="these alone (default all)")
    made.add_argument("--fps", type=_positive(int), help="LeRobot: rows a second, where the streams' clocks differ")
    made.add_argument(
        "--method",
        action="append",
        metavar="[STREAM=]METHOD",
        help="LeRobot: how a stream, or every one, is resampled: linear, previous, nearest, slerp and so on",
    )
    made.add_argument(
        "--rename",
        action="extend",
        nargs="+",
        metavar="STREAM=FEATURE",
        help="LeRobot: what a feature is called; streams of one feature are put together in this order",
    )
    made.add_argument("--video", action="store_true", help="LeRobot: cameras as H.264 in mp4 (default: as image files)")

    made = command(
        "inspect",
        "show a cache's streams, rates, jitter, gaps and episodes in 20 lines",
        "robocache inspect cache",
        "robocache inspect cache --stats",
        "robocache inspect cache --json | jq '.streams[].rate_hz'",
        "robocache inspect cache --verify --all",
        "robocache inspect cache --plot cache.png --episode 3",
    )
    made.add_argument("cache", help="what robocache ingest or a Writer wrote")
    made.add_argument("--stats", action="store_true", help="statistics too, of the first features of each stream")
    made.add_argument(
        "--all",
        action="store_true",
        help="everything: every stream, statistics of every feature, all that was left out",
    )
    made.add_argument("--plot", metavar="FILE", help="save a picture of values, episode lengths and recorded clocks")
    made.add_argument("--episode", type=int, default=0, help="the episode that the picture looks at (default 0)")
    made.add_argument("--verify", action="store_true", help="check every byte against its checksum first")

    made = command(
        "doctor",
        "find what is wrong with a cache or a source: clocks, gaps, NaN, stuck sensors, repeated episodes",
        "robocache doctor cache    # exit code 1 where there are errors",
        "robocache doctor cache --html report.html",
        "robocache doctor path/to/pusht --strict --json",
        "robocache inspect cache --verify    # compares checksums, unlike this",
    )
    made.add_argument("path", help="what robocache ingest wrote, or what it reads")
    made.add_argument("--html", metavar="FILE", help="write a page with plots, one self-contained file")
    made.add_argument("--strict", action="store_true", help="exit code 1 where there are warnings too")
    made.add_argument(
        "--lines", type=_positive(int), help="findings shown of each code (default: 3; of notes one, in short)"
    )
    made.add_argument("--no-save", action="store_true", help="do not write doctor.json into the cache")
    made.add_argument("--work", metavar="DIR", help="where a source's temporary cache goes (default: beside it)")
    format_option(made, "of a source; default: found from the files")
    made.add_argument(
        "--repair", choices=("sort", "drop", "split"), help="of a source, stamps out of order, as ingest does"
    )
    memory_option(made)
    links_option(made)
    add_arguments(made)

    made = command(
        "skew",
        "compare what a policy saw on the robot with training: which windows differ, where and why",
        "robocache skew recorded spec.json",
        "robocache skew recorded spec.json --json",
    )
    made.add_argument("recorded", help="a cache that robocache.live.Recorder wrote")
    made.add_argument("spec", help="a file that Loader.save_spec wrote")
    made.add_argument(
        "--moments",
        type=_positive(int),
        default=1000,
        help="how many moments to draw if the recording has none of a policy (default 1000)",
    )

    made = command(
        "bench",
        "measure how fast a cache loads: windows of all its streams, normalised",
        "robocache bench cache",
        "robocache bench cache --batch-size 4096 --device cuda --dtype bfloat16 --json",
    )
    made.add_argument("cache", help="what robocache ingest or a Writer wrote")
    made.add_argument(
        "--batch-size", type=_positive(int), help="samples a batch (default 1024, or as many as memory has room for)"
    )
    made.add_argument("--steps", type=_positive(int), default=16, help="moments a window (default 16)")
    made.add_argument("--rate-hz", type=_positive(float), help="of the window (default: the slowest stream's)")
    made.add_argument("--dtype", default="float32", help="of the batch's floats (default float32)")
    made.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where it works)")
    made.add_argument("--seconds", type=_positive(float), default=3.0, help="how long to measure (default 3)")

    made = command(
        "demo",
        "simulate a robot arm, record it, cache it, load aligned batches and save a picture",
        "robocache demo",
        "robocache demo --out /tmp/arm --episodes 12",
    )
    made.add_argument("--out", default="demo", help="the folder for the cache and the picture (default demo)")
    made.add_argument("--episodes", type=_positive(int), default=24, help="of 10 s each (default 24)")
    made.add_argument("--seed", type=int, default=0, help="another seed, other recordings (default 0)")

    made = command(
        "info",
        "show versions, libraries, devices and whether they work",
        "robocache info --json",
        "robocache info --report",
    )
    made.add_argument(
        "--report", action="store_true", help="print what a bug report needs, the self-test too, without user paths"
    )

    command(
        "self-test",
        "run every operation and a loader on every device, against stored answers",
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

    convert.__name__ = kind.__name__  # what argparse calls it in "invalid int value"
    return convert
