"""The command ``robocache``: arguments in, tables or JSON out; everything else is in the modules it calls."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from rich.console import Console

from . import __version__, _command, dataset, demo, view
from .doctor import doctor, report, terminal
from .doctor.report import printable
from .errors import ArgumentError, ArgumentTypeError, Error, FileError
from .export import FORMATS as EXPORTS
from .export import export
from .ingest import IngestReport, SourceError, convert, ingest, load_plan, merge, plan, preview
from .ingest.clocks import POLICIES
from .ingest.registry import FORMATS, add_arguments, describe_formats, find_format, given_options, option_names
from .installation import check_installation
from .loader import Loader

_COLUMNS = 80
_DONE, _REFUSED, _USAGE, _SKIPPED, _INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns its exit code: 0 done, 1 refused or found wrong, 2 usage, 3 an ingest that finished with named
    skips.

    With ``--json`` standard output is JSON whatever happens: of what fails ``{"error": {"type", "message", "exit_code"}}``.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack a letter of a name
    if sys.stdout is None:  # it is closed
        return _run(argv)
    try:
        with redirect_stdout(cast(TextIO, _Output(sys.stdout))) as output:
            try:
                return _run(argv)
            finally:
                output.flush()
    except _OutputError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered must not fail at exit
        if not isinstance(error.__cause__, BrokenPipeError):  # `robocache inspect cache | head`
            print(f"robocache: standard output: {error}", file=sys.stderr)
        return _REFUSED


class _OutputError(Exception):
    """Standard output does not take what is printed; no OSError, which would be a file's."""


class _Output:
    """Standard output, whose failures are told apart from all others."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with _naming_output():
            return self._file.write(text)

    def flush(self) -> None:
        with _naming_output():
            self._file.flush()


@contextmanager
def _naming_output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _OutputError(error.strerror) from error


def _run(argv: list[str] | None) -> int:
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as ended:
        if ended.__cause__ is not None and "--json" in (sys.argv[1:] if argv is None else argv):
            _print_error(ended.__cause__, str(ended.__cause__), _USAGE)
        raise
    as_json: bool = getattr(arguments, "json", False)
    try:
        _command.begin()
        return int(arguments.run(arguments))
    except (Error, OSError) as error:
        message = printable(_in_words_of_the_command_line(" ".join(str(error).split()), arguments))
        stopped = isinstance(error, SourceError) and getattr(arguments, "on_error", "") == "stop"
        hint = " (--on-error skip passes over it by name)" if stopped else ""
        code = _USAGE if isinstance(error, ArgumentError | ArgumentTypeError) else _REFUSED
        if as_json:
            _print_error(error, f"{message}{hint}", code)
        if arguments.debug:
            raise
        print(f"robocache {arguments.command}: {message}{hint}", file=sys.stderr)
        return code
    except KeyboardInterrupt as error:
        if as_json:
            _print_error(error, "interrupted", _INTERRUPTED)
        return _INTERRUPTED


def _in_words_of_the_command_line(message: str, arguments: argparse.Namespace) -> str:
    """What Python writes as overwrite=True, video=False, frames='by-index' is --overwrite, --no-video, --frames by-index."""
    known = vars(arguments).keys() | option_names()

    def option(keyword: re.Match[str]) -> str:
        name, value, text = keyword.groups()
        if name not in known:
            return keyword[0]
        flag = f"--{'no-' * (value == 'False')}{name.replace('_', '-')}"
        return flag if text is None else f"{flag} {text}"

    def asked(said: re.Match[str]) -> str:
        name = "method" if said[2] == "methods" else said[2]  # there one at a time
        return f"{said[1]}--{name.replace('_', '-')}" if name in known else said[0]

    message = re.sub(r"\b(\w+)=(True|False|'([\w-]+)')", option, message)
    return re.sub(r"(\b(?:say|name) [^;:]*\bwith )(\w+)\b(?! \(--)", asked, message)


# ---- commands ----


def _offsets(given: list[tuple[str, str]]) -> dict[str, str]:
    offsets = dict(given)
    if len(offsets) < len(given):
        raise ArgumentError(f"--offset: expected one a stream, got {' '.join(map('='.join, given))}")
    return offsets


def _ingest(arguments: argparse.Namespace) -> int:
    if arguments.dry_run:
        return _dry_run(arguments)
    if arguments.cache is None:
        raise ArgumentError("expected SOURCE and CACHE, the directory to write; --dry-run alone needs none")
    with view.ingest_progress() as progress:
        report = ingest(
            arguments.source,
            arguments.cache,
            format=arguments.format,
            on_error=arguments.on_error,
            repair=arguments.repair,
            offsets=_offsets(arguments.offset),
            mapping=arguments.mapping,
            overwrite=arguments.overwrite,
            append=arguments.append,
            workers=arguments.workers,
            progress=progress,
            **given_options(arguments),
        )
    return _show_report(report, arguments)


def _show_report(report: IngestReport, arguments: argparse.Namespace) -> int:
    if arguments.json:
        _print_json(report.to_dict())
    else:
        console = Console()
        opened = dataset.open(report.cache)
        done = f"{report.source} ({report.format}) -> {report.cache}: {view.count(report.episodes, 'episode')}"
        if held := len(opened) - report.episodes:
            done += f" behind {held}"
        if frames := sum(camera["frames"] for camera in report.cameras.values()):
            done += f", {frames} frames, {frames / report.seconds:.0f} a second"
        console.print(printable(done), soft_wrap=True, markup=False)
        view.show_streams(opened, console)
        view.show_repairs(report.repaired, console)
        said = report.to_dict()
        for omission in said["skipped"]:
            omission["reason"] = _in_words_of_the_command_line(omission["reason"], arguments)
        view.show_omissions(said, console)
    return _SKIPPED if report.skipped else _DONE


def _dry_run(arguments: argparse.Namespace) -> int:
    found = preview(
        arguments.source,
        format=arguments.format,
        on_error=arguments.on_error,
        mapping=arguments.mapping,
        **given_options(arguments),
    )
    if arguments.json:
        _print_json(found.to_dict())
    else:
        print(found.mapping, end="")
    return _DONE


def _plan(arguments: argparse.Namespace) -> int:
    made = plan(
        arguments.source,
        arguments.plan,
        shards=arguments.shards,
        format=arguments.format,
        on_error=arguments.on_error,
        repair=arguments.repair,
        offsets=_offsets(arguments.offset),
        mapping=arguments.mapping,
        **given_options(arguments),
    )
    if arguments.json:
        _print_json({**made.described, "folder": str(made.folder)})
    else:
        cut = f"{view.count(made.recordings, 'recording')} in {view.count(made.shards, 'shard')}"
        print(f"{arguments.source} ({made.work.format.name}): {cut}")
        print(f"each of 0 to {made.shards - 1}: {shlex.join(['robocache', 'convert', str(made.folder), '--shard'])} N")
        print(f"then: {shlex.join(['robocache', 'merge', str(made.folder), 'CACHE'])}")
    return _DONE


def _convert(arguments: argparse.Namespace) -> int:
    made = load_plan(arguments.plan)
    shard, shards = arguments.shard
    if shards not in (None, made.shards):
        raise ArgumentError(f"--shard {shard}/{shards}: {arguments.plan} is cut into {made.shards} shards")
    with view.ingest_progress() as progress:
        path = convert(made, shard, progress=progress)
    if arguments.json:
        _print_json({"shard": shard, "path": str(path)})
    else:
        print(path)
    return _DONE


def _merge(arguments: argparse.Namespace) -> int:
    shards = arguments.shards[0] if len(arguments.shards) == 1 else arguments.shards
    if len(arguments.shards) == 1 and (Path(shards) / "manifest.json").exists():
        shards = arguments.shards  # one shard is all of them
    with view.ingest_progress() as progress:
        report = merge(shards, arguments.cache, overwrite=arguments.overwrite, progress=progress)
    return _show_report(report, arguments)


def _export(arguments: argparse.Namespace) -> int:
    given = [text.rpartition("=") for text in arguments.method or ()]
    for_all = [method for stream, _, method in given if not stream]
    by_stream = {stream: method for stream, _, method in given if stream}
    if for_all and (by_stream or len(for_all) > 1):
        raise ArgumentError("method: expected one for all streams, or STREAM=METHOD of each")
    with view.ingest_progress() as progress:
        report = export(
            _open(arguments.cache),
            arguments.destination,
            to=arguments.to,
            streams=arguments.streams,
            fps=arguments.fps,
            methods=for_all[0] if for_all else by_stream or None,
            video=arguments.video,
            progress=progress,
        )
    if arguments.json:
        _print_json(report.to_dict())
    else:
        console = Console()
        done = f"{report.cache} -> {report.destination} ({report.format}): {view.count(report.episodes, 'episode')}"
        console.print(f"{done}, {view.count(sum(report.rows.values()), 'row')}", soft_wrap=True, markup=False)
        view.show_omissions(report.to_dict() | {"skipped": []}, console)
    return _DONE


def _open(cache: str, *, verify: bool = False) -> dataset.Dataset:
    """The cache; for recordings that are none yet, FileError with the command that makes one of them."""
    try:
        return dataset.open(cache, verify=verify)
    except FileError as error:
        source = Path(cache)
        if not source.is_dir() or os.path.exists(source / "manifest.json"):
            raise
        try:
            kind = find_format(source).title
        except FileError:
            raise error from None
        command = shlex.join(["robocache", "ingest", cache, f"{source.resolve().name}.cache"])
        raise FileError(f"{cache}: recordings ({kind}), not a cache; ingest them first: {command}") from error


def _inspect(arguments: argparse.Namespace) -> int:
    opened = _open(arguments.cache, verify=arguments.verify)
    if arguments.plot:
        try:
            view.plot(opened, arguments.plot, episode=arguments.episode)
        except OSError as error:
            if isinstance(error, Error):
                raise
            raise FileError(f"{arguments.plot}: {error.strerror or error}") from error
    if arguments.json:
        _print_json(view.describe(opened))
    else:
        view.show(opened, Console(), every_feature=arguments.all)
        known = report.load(arguments.cache)
        if known is not None:
            print(f"doctor: {known.summary} (robocache doctor {shlex.quote(arguments.cache)})")
        if arguments.plot:
            print(f"picture: {arguments.plot}")
    return _DONE


def _doctor(arguments: argparse.Namespace) -> int:
    if arguments.html:  # before the work of minutes
        if not (folder := Path(arguments.html).parent).is_dir():
            raise FileError(f"{arguments.html}: expected a folder that exists, got {folder}")
        if Path(arguments.html).is_dir():
            raise FileError(f"{arguments.html}: expected a file to write, got a folder")
    with view.ingest_progress() as progress:
        found = doctor(
            arguments.path,
            save=not arguments.no_save,
            work=arguments.work,
            progress=progress,
            **{name: value for name in ("format", "repair") if (value := getattr(arguments, name)) is not None},
            **given_options(arguments),
        )
    given = [replace(it, message=_in_words_of_the_command_line(it.message, arguments)) for it in found.findings]
    shown = replace(found, findings=given)
    if arguments.html:
        try:
            _write_page(Path(arguments.html), shown.html())
        except OSError as error:
            raise FileError(f"{arguments.html}: {error.strerror or error}") from error
    if arguments.json:
        _print_json(found.to_dict())
    else:
        terminal.show(shown, Console(), lines=arguments.lines)
        if arguments.html:
            print(f"report: {arguments.html}")
    worst = found.counts["error"] + (found.counts["warning"] if arguments.strict else 0)
    return _REFUSED if worst else _DONE


def _write_page(path: Path, page: str) -> None:
    if path.exists() and not path.is_file():  # /dev/stdout, say
        path.write_text(page, encoding="utf-8")
    else:
        report.write_whole(Path(os.path.realpath(path)), page)


def _bench(arguments: argparse.Namespace) -> int:
    opened = _open(arguments.cache)
    streams = {name: stream for name, stream in opened.streams.items() if stream.ragged is None}
    if not streams:
        raise FileError(f"{arguments.cache}: expected a cache with streams of numbers or frames, got one without")
    slowest = min(streams.values(), key=lambda stream: stream.rate_hz or float("inf"))
    rate_hz = arguments.rate_hz or slowest.rate_hz or 1.0
    loader = Loader(
        opened,
        batch_size=arguments.batch_size,
        delta_timestamps={name: [step / rate_hz for step in range(arguments.steps)] for name in streams},
        normalize="mean_std",
        dtype=arguments.dtype,
        device=arguments.device,
    )
    measured = {
        "samples_per_second": demo.samples_per_second(loader, arguments.seconds),
        "device": loader.device,
        "batch_size": arguments.batch_size,
        "steps": arguments.steps,
        "rate_hz": rate_hz,
        "dtype": arguments.dtype,
        "streams": list(streams),
        "anchors": loader.num_samples,
    }
    if arguments.json:
        _print_json(measured)
    else:
        print(
            f"{measured['samples_per_second']:,.0f} samples/s on {loader.device}: batches of {arguments.batch_size}, "
            f"{arguments.steps} moments at {rate_hz:g} Hz of {view.count(len(streams), 'stream')}, {arguments.dtype}"
        )
    return _DONE


def _demo(arguments: argparse.Namespace) -> int:
    console = Console(stderr=arguments.json)
    measured = demo.run(arguments.out, episodes=arguments.episodes, seed=arguments.seed, console=console)
    if arguments.json:
        _print_json(measured)
    return _DONE


def _info(arguments: argparse.Namespace) -> int:
    found = check_installation()
    if arguments.json:
        _print_json(found)
    else:
        view.show_installation(found, Console())
    return _DONE if found["ok"] else _REFUSED


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _print_error(error: BaseException, message: str, code: int) -> None:
    _print_json({"error": {"type": type(error).__name__, "message": message, "exit_code": code}})


# ---- arguments ----


class _Parser(argparse.ArgumentParser):
    """One whose exit says why."""

    def error(self, message: str) -> NoReturn:
        try:
            super().error(message)
        except SystemExit as ended:
            raise ended from ArgumentError(message)


def _parser() -> argparse.ArgumentParser:
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

    def command(name: str, run: Any, summary: str, *examples: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=summary,
            description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", _COLUMNS),
            epilog=_examples(*examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(run=run)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return made

    def json_option(made: argparse.ArgumentParser) -> None:
        made.add_argument("--json", action="store_true", help="print JSON instead of text, of a failure too")

    def format_option(made: argparse.ArgumentParser, summary: str) -> None:
        made.add_argument("--format", help=f"{', '.join(FORMATS)} ({summary})")

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
        add_arguments(made)

    made = command(
        "ingest",
        _ingest,
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
    json_option(made)
    made.set_defaults(append=False)

    made = command(
        "append",
        _ingest,
        "read recordings and add them to a cache that is there, whole or not at all",
        "robocache append more_logs cache",
        "robocache append today cache --on-error skip    # exit code 3: some skipped",
    )
    made.add_argument("source", help="as of robocache ingest")
    made.add_argument("cache", help="what to add to; whoever has it open keeps what was opened")
    ingest_options(made)
    json_option(made)
    made.set_defaults(append=True, dry_run=False, overwrite=False, workers=None)

    made = command(
        "plan",
        _plan,
        "cut an ingest into shards that any process converts",
        "robocache plan dataset work --shards 64",
        "robocache convert work --shard 0    # and so on, on machines that see both",
        "robocache merge work cache",
    )
    made.add_argument("source", help="as of robocache ingest")
    made.add_argument("plan", help="the directory to make, in which the shards will be")
    made.add_argument("--shards", type=_positive(int), required=True, help="how many")
    ingest_options(made)
    json_option(made)

    made = command("convert", _convert, "convert one shard of a plan", "robocache convert work --shard 3")
    made.add_argument("plan", help="what robocache plan made")
    made.add_argument(
        "--shard",
        type=_shard,
        metavar="I[/N]",
        required=True,
        help="its number, from 0, of N that there must be; one that is finished is left alone",
    )
    json_option(made)

    made = command(
        "merge",
        _merge,
        "make a cache of all shards of a plan",
        "robocache merge work cache",
        "robocache merge work/shard-* cache",
    )
    made.add_argument("shards", nargs="+", metavar="plan", help="what robocache plan made, or all its shards")
    made.add_argument("cache", help="the directory to write")
    made.add_argument("--overwrite", action="store_true", help="replace a cache that is there")
    json_option(made)

    made = command(
        "export",
        _export,
        "write a cache as a LeRobot v3.0 dataset or as MCAP files",
        "robocache export cache dataset --to lerobot",
        "robocache export cache dataset --to lerobot --fps 30 --method nearest",
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
        help="LeRobot: how a stream, or all, are brought there: linear, previous, nearest, slerp and so on",
    )
    made.add_argument("--video", action="store_true", help="LeRobot: cameras as H.264 in mp4 (default: as image files)")
    json_option(made)

    made = command(
        "inspect",
        _inspect,
        "show a cache's streams, rates, jitter, gaps, episodes and statistics",
        "robocache inspect cache",
        "robocache inspect cache --json | jq '.streams[].rate_hz'",
        "robocache inspect cache --verify --all",
        "robocache inspect cache --plot cache.png --episode 3",
    )
    made.add_argument("cache", help="what robocache ingest or a Writer wrote")
    made.add_argument("--all", action="store_true", help="statistics of every feature")
    made.add_argument("--plot", metavar="FILE", help="save a picture of values, episode lengths and recorded clocks")
    made.add_argument("--episode", type=int, default=0, help="the episode that the picture looks at (default 0)")
    made.add_argument("--verify", action="store_true", help="check every byte against its checksum first")
    json_option(made)

    made = command(
        "doctor",
        _doctor,
        "find what is wrong with a cache or a source: clocks, gaps, NaN, stuck sensors, repeated episodes",
        "robocache doctor cache    # exit code 1 where there are errors",
        "robocache doctor cache --html report.html",
        "robocache doctor path/to/pusht --strict --json",
        "robocache inspect cache --verify    # compares checksums, unlike this",
    )
    made.add_argument("path", help="what robocache ingest wrote, or what it reads")
    made.add_argument("--html", metavar="FILE", help="write a page with plots, one self-contained file")
    made.add_argument("--strict", action="store_true", help="exit code 1 where there are warnings too")
    made.add_argument("--lines", type=_positive(int), default=5, help="findings shown of each code (default 5)")
    made.add_argument("--no-save", action="store_true", help="do not write doctor.json into the cache")
    made.add_argument("--work", metavar="DIR", help="where a source's temporary cache goes (default: beside it)")
    format_option(made, "of a source; default: found from the files")
    made.add_argument(
        "--repair", choices=("sort", "drop", "split"), help="of a source, stamps out of order, as ingest does"
    )
    add_arguments(made)
    json_option(made)

    made = command(
        "bench",
        _bench,
        "measure how fast a cache loads: windows of all its streams, normalised",
        "robocache bench cache",
        "robocache bench cache --batch-size 4096 --device cuda --dtype bfloat16 --json",
    )
    made.add_argument("cache", help="what robocache ingest or a Writer wrote")
    made.add_argument("--batch-size", type=_positive(int), default=1024, help="samples a batch (default 1024)")
    made.add_argument("--steps", type=_positive(int), default=16, help="moments a window (default 16)")
    made.add_argument("--rate-hz", type=_positive(float), help="of the window (default: the slowest stream's)")
    made.add_argument("--dtype", default="float32", help="of the batch's floats (default float32)")
    made.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where it works)")
    made.add_argument("--seconds", type=_positive(float), default=3.0, help="how long to measure (default 3)")
    json_option(made)

    made = command(
        "demo",
        _demo,
        "simulate a robot arm, record it, cache it, load aligned batches and save a picture",
        "robocache demo",
        "robocache demo --out /tmp/arm --episodes 12",
    )
    made.add_argument("--out", default="demo", help="the folder for the cache and the picture (default demo)")
    made.add_argument("--episodes", type=_positive(int), default=24, help="of 10 s each (default 24)")
    made.add_argument("--seed", type=int, default=0, help="another seed, other recordings (default 0)")
    json_option(made)

    made = command("info", _info, "show versions, libraries, devices and whether they work", "robocache info --json")
    json_option(made)
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
