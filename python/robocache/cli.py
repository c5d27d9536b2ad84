"""The command ``robocache``: reads arguments and prints tables or JSON. Everything else is in the modules it calls."""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console

from . import _command, dataset, demo, findings, live, overview, picture, view
from ._arguments import make_parser
from ._printable import count, printable
from ._temporary import write_whole
from .doctor import doctor, terminal
from .errors import ArgumentError, ArgumentTypeError, Error, FileError
from .export import export
from .ingest import IngestReport, SourceError, convert, ingest, load_plan, merge, plan, preview
from .ingest.registry import find_format, given_options
from .installation import check_installation, memory_available, report_facts, without_user_paths
from .loader import Loader
from .options import Window
from .self_test import self_test

_BATCH, _BATCHES_HELD = 1024, 4  # a loader holds batches made ahead, the current one, and the memory to make them
_DONE, _REFUSED, _USAGE, _SKIPPED, _INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: list[str] | None = None) -> int:
    """Runs a command. Returns its exit code: 0 done, 1 an error or findings, 2 wrong usage, 3 an ingest that skipped something.

    With ``--json`` standard output is always JSON. An error is ``{"error": {"type", "message", "exit_code"}}``.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may be unable to show a name
    if sys.stdout is None:  # it is closed
        return _run(argv)
    try:
        with redirect_stdout(cast(TextIO, _Output(sys.stdout))) as output:
            try:
                return _run(argv)
            finally:
                output.flush()
    except _OutputError as error:
        # Flushing the rest at exit would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error.__cause__, BrokenPipeError):  # `robocache inspect cache | head`
            print(f"robocache: standard output: {error}", file=sys.stderr)
        return _REFUSED


class _OutputError(Exception):
    """Standard output cannot be written. This is no OSError, since _run reports an OSError as an error of the command's files."""


class _Output:
    """Standard output that raises _OutputError."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with _as_output_error():
            return self._file.write(text)

    def flush(self) -> None:
        with _as_output_error():
            self._file.flush()


@contextmanager
def _as_output_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _OutputError(error.strerror) from error


def _run(argv: list[str] | None) -> int:
    try:
        arguments = make_parser().parse_args(argv)
    except SystemExit as ended:
        if ended.__cause__ is not None and "--json" in (sys.argv[1:] if argv is None else argv):
            _print_error(ended.__cause__, str(ended.__cause__), _USAGE)
        raise
    arguments.words = sys.argv[1:] if argv is None else argv
    as_json: bool = getattr(arguments, "json", False)
    try:
        _command.exit_on_signals()
        return int(_COMMANDS[arguments.command](arguments))
    except (Error, OSError) as error:
        message = printable(" ".join(str(error).split()))
        can_skip = isinstance(error, SourceError) and getattr(arguments, "on_error", "") == "stop"
        can_skip = can_skip and "--" not in message  # if the error names an option, skipping would leave nothing
        message += " (--on-error skip leaves it out and names it)" * can_skip
        code = _USAGE if isinstance(error, ArgumentError | ArgumentTypeError) else _REFUSED
        if as_json:
            _print_error(error, message, code)
        if arguments.debug:
            raise
        print(f"robocache {arguments.command}: {message}", file=sys.stderr)
        if can_skip and not as_json:
            words = arguments.words
            words = [  # without an earlier --on-error and its value
                word for i, word in enumerate(words) if "--on-error" not in (word.split("=")[0], *words[i - 1 : i])
            ]
            command = ["robocache", *words, "--on-error", "skip"]
            print("\n".join(overview.command_lines("", command, Console(stderr=True).width)), file=sys.stderr)
        return code
    except KeyboardInterrupt as error:
        if as_json:
            _print_error(error, "interrupted", _INTERRUPTED)
        return _INTERRUPTED


# ---- commands ----


def _offsets(pairs: list[tuple[str, str]]) -> dict[str, str]:
    offsets = dict(pairs)
    if len(offsets) < len(pairs):
        raise ArgumentError(f"--offset: expected one per stream, got {' '.join(map('='.join, pairs))}")
    return offsets


def _read_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options for reading a source, for ingest, plan and preview."""
    names = ("format", "on_error", "mapping", "memory_limit", "follow_links")
    return {name: getattr(arguments, name) for name in names} | given_options(arguments)


def _ingest(arguments: argparse.Namespace) -> int:
    if arguments.dry_run:
        return _dry_run(arguments)
    if arguments.cache is None:
        raise ArgumentError("expected SOURCE and CACHE, the directory to write; only --dry-run needs no CACHE")
    report = ingest(
        arguments.source,
        arguments.cache,
        repair=arguments.repair,
        offsets=_offsets(arguments.offset),
        overwrite=arguments.overwrite,
        append=arguments.append,
        workers=arguments.workers,
        **_read_options(arguments),
    )
    return _show_report(report, arguments)


def _show_report(report: IngestReport, arguments: argparse.Namespace) -> int:
    if arguments.json:
        _print_json(report.to_dict())
    else:
        words = arguments.words if arguments.command == "ingest" else None
        console = Console()
        overview.show(overview.ingest_lines(report, dataset.open(report.cache), console.width, words), console)
    return _SKIPPED if report.skipped else _DONE


def _dry_run(arguments: argparse.Namespace) -> int:
    mapping = preview(arguments.source, **_read_options(arguments))
    if arguments.json:
        _print_json(mapping.to_dict())
    else:
        print(mapping.mapping, end="")
    return _DONE


def _plan(arguments: argparse.Namespace) -> int:
    planned = plan(
        arguments.source,
        arguments.plan,
        shards=arguments.shards,
        repair=arguments.repair,
        offsets=_offsets(arguments.offset),
        **_read_options(arguments),
    )
    folder = str(planned.folder)
    cut = f"{count(planned.recordings, 'recording')} in {count(planned.shards, 'shard')}"
    return _show(
        arguments,
        {**planned.described, "folder": folder},
        f"{arguments.source} ({planned.work.format.name}): {cut}",
        f"each of 0 to {planned.shards - 1}: {shlex.join(['robocache', 'convert', folder, '--shard'])} N",
        f"then: {shlex.join(['robocache', 'merge', folder, 'CACHE'])}",
    )


def _convert(arguments: argparse.Namespace) -> int:
    planned = load_plan(arguments.plan)
    shard, shards = arguments.shard
    if shards not in (None, planned.shards):
        raise ArgumentError(f"--shard {shard}/{shards}: {arguments.plan} is cut into {planned.shards} shards")
    with view.progress_bar() as progress:
        path = convert(planned, shard, progress=progress)
    return _show(arguments, {"shard": shard, "path": str(path)}, str(path))


def _merge(arguments: argparse.Namespace) -> int:
    shards = arguments.shards[0] if len(arguments.shards) == 1 else arguments.shards
    if len(arguments.shards) == 1 and (Path(shards) / "manifest.json").exists():
        shards = arguments.shards  # the directory is a shard, not a plan
    with view.progress_bar() as progress:
        report = merge(shards, arguments.cache, overwrite=arguments.overwrite, progress=progress)
    return _show_report(report, arguments)


def _export(arguments: argparse.Namespace) -> int:
    methods = [text.rpartition("=") for text in arguments.method or ()]
    default_methods = [method for stream, _, method in methods if not stream]
    by_stream = {stream: method for stream, _, method in methods if stream}
    if default_methods and (by_stream or len(default_methods) > 1):
        raise ArgumentError("method: expected one for all streams, or STREAM=METHOD of each")
    rename = [text.rpartition("=") for text in arguments.rename or ()]
    if bad := [feature for stream, _, feature in rename if not stream]:
        raise ArgumentError(f"rename: expected STREAM=FEATURE, got {bad[0]!r}")
    if len({stream for stream, _, _ in rename}) < len(rename):
        raise ArgumentError("rename: expected each stream once")
    with view.progress_bar() as progress:
        report = export(
            _open(arguments.cache),
            arguments.destination,
            to=arguments.to,
            streams=arguments.streams,
            fps=arguments.fps,
            methods=default_methods[0] if default_methods else by_stream or None,
            rename={stream: feature for stream, _, feature in rename} or None,
            video=arguments.video,
            progress=progress,
        )
    done = f"{report.cache} -> {report.destination} ({report.format}): {count(report.episodes, 'episode')}"
    _show(arguments, report.to_dict(), f"{done}, {count(sum(report.rows.values()), 'row')}")
    if not arguments.json:
        view.show_left_out(((omission.what, omission.reason) for omission in report.left_out), Console())
    return _DONE


def _open(cache: str, *, verify: bool = False) -> dataset.Dataset:
    """Opens a cache. For recordings that are not ingested yet, raises FileError with the command that ingests them."""
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
            picture.plot(opened, arguments.plot, episode=arguments.episode)
        except OSError as error:
            if isinstance(error, Error):
                raise
            raise FileError(f"{arguments.plot}: {error.strerror or error}") from error
    if arguments.json:
        _print_json(view.describe(opened))
    else:
        console = Console()
        report = findings.load(arguments.cache)
        if arguments.all:
            view.show(opened, console)
            if report is not None:
                _print_line(f"doctor: {report.summary} (robocache doctor {shlex.quote(arguments.cache)})")
        else:
            summary = None if report is None else report.summary
            overview.show(overview.cache_lines(opened, console.width, summary), console)
            if arguments.stats:
                view.show_stats(opened, console, every_feature=False)
        if arguments.plot:
            _print_line(f"picture: {arguments.plot}")
    return _DONE


def _doctor(arguments: argparse.Namespace) -> int:
    if arguments.html:  # checked before minutes of work
        if not (folder := Path(arguments.html).parent).is_dir():
            raise FileError(f"{arguments.html}: expected a folder that exists, got {folder}")
        if Path(arguments.html).is_dir():
            raise FileError(f"{arguments.html}: expected a file to write, got a folder")
    with view.progress_bar() as progress:
        report = doctor(
            arguments.path,
            save=not arguments.no_save,
            work=arguments.work,
            progress=progress,
            **{
                name: value
                for name in ("format", "repair", "memory_limit", "follow_links")
                if (value := getattr(arguments, name)) not in (None, False)
            },
            **given_options(arguments),
        )
    if arguments.html:
        try:
            _write_page(Path(arguments.html), report.html())
        except OSError as error:
            raise FileError(f"{arguments.html}: {error.strerror or error}") from error
    if arguments.json:
        _print_json(report.to_dict())
    else:
        terminal.show(report, Console(), lines=arguments.lines)
        if arguments.html:
            _print_line(f"report: {arguments.html}")
    worst = report.counts["error"] + (report.counts["warning"] if arguments.strict else 0)
    return _REFUSED if worst else _DONE


def _write_page(path: Path, page: str) -> None:
    if path.exists() and not path.is_file():  # /dev/stdout, say
        path.write_text(page, encoding="utf-8")
    else:
        write_whole(Path(os.path.realpath(path)), page)


def _skew(arguments: argparse.Namespace) -> int:
    report = live.skew(_open(arguments.recorded), arguments.spec, moments=arguments.moments)
    return _show(arguments, report.to_dict(), *str(report).splitlines())


def _bench(arguments: argparse.Namespace) -> int:
    opened = _open(arguments.cache)
    streams = {name: stream for name, stream in opened.streams.items() if stream.ragged is None}
    if not streams:
        raise FileError(f"{arguments.cache}: expected a cache with streams of numbers or frames, got one without")
    slowest = min(streams.values(), key=lambda stream: stream.rate_hz or float("inf"))
    rate_hz = arguments.rate_hz or slowest.rate_hz or 1.0
    # Floats on nominal clocks get a method, since a step between two of their rows is refused without one.
    floats = {name for name, stream in streams.items() if stream.kind == "numbers" and "float" in stream._dtype}
    nominal = {name for name in floats if streams[name].clock == "nominal"}

    def make_loader(batch_size: int) -> Loader:
        return Loader(
            opened,
            batch_size=batch_size,
            delta_timestamps={
                name: Window.steps(rate_hz, horizon=arguments.steps, method="linear" if name in nominal else None)
                for name in streams
            },
            default=Window(normalize="mean_std", dtype=arguments.dtype),
            device=arguments.device,
        )

    batch_size = arguments.batch_size or _batch_that_fits(make_loader(1))
    loader = make_loader(batch_size)
    measured = {
        "samples_per_second": demo.samples_per_second(loader, arguments.seconds),
        "device": loader.device,
        "batch_size": batch_size,
        "steps": arguments.steps,
        "rate_hz": rate_hz,
        "dtype": arguments.dtype,
        "streams": list(streams),
        "anchors": loader.num_samples,
    }
    return _show(
        arguments,
        measured,
        f"{measured['samples_per_second']:,.0f} samples/s on {loader.device}: batches of {batch_size}, "
        f"{arguments.steps} moments at {rate_hz:g} Hz of {count(len(streams), 'stream')}, {arguments.dtype}",
    )


def _batch_that_fits(loader: Loader) -> int:
    """Returns 1024 samples, or fewer if several batches of them would take more than a quarter of the free memory."""
    arrays = next(iter(loader)).values()
    sample_bytes = max(sum(array.nbytes for array in arrays), 1)
    free_bytes = memory_available(loader.device)
    return int(max(1, min(_BATCH, free_bytes // 4 // (_BATCHES_HELD * sample_bytes))))


def _demo(arguments: argparse.Namespace) -> int:
    console = Console(stderr=arguments.json)
    measured = demo.run(arguments.out, episodes=arguments.episodes, seed=arguments.seed, console=console)
    if arguments.json:
        _print_json(measured)
    return _DONE


def _info(arguments: argparse.Namespace) -> int:
    if arguments.report:
        facts = without_user_paths({**report_facts(), "self_test": self_test().to_json()})
    else:
        facts = check_installation()
    if arguments.json:
        _print_json(facts)
    elif arguments.report:
        for name, value in _flatten(facts):
            _print_line(f"{name}: {value}")
    else:
        view.show_installation(facts, Console())
    return _DONE if facts["ok"] else _REFUSED


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each value of nested dicts and lists, with a name such as "cpu.threads"."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(inner, dict) for inner in value)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, " ".join(map(str, value)) if isinstance(value, list) else value


def _self_test(arguments: argparse.Namespace) -> int:
    result = self_test()
    total = len(result.results)
    _show(
        arguments,
        result.to_json(),
        *(f"{x.device}: {x.case}: expected {x.expected}, got {x.got}" for x in result.failures),
        f"{total - len(result.failures)} of {total} results are as expected, on {', '.join(result.devices)}, in {result.seconds:.1f} s",
    )
    return _REFUSED if result.failures else _DONE


def _show(arguments: argparse.Namespace, value: Any, *lines: str) -> int:
    """Prints a value as JSON, or the lines without ``--json``. Returns the exit code of success."""
    if arguments.json:
        _print_json(value)
    else:
        for line in lines:
            _print_line(line)
    return _DONE


def _print_line(line: str) -> None:
    print(printable(line))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _print_error(error: BaseException, message: str, code: int) -> None:
    _print_json({"error": {"type": type(error).__name__, "message": message, "exit_code": code}})


_COMMANDS = {
    "ingest": _ingest,
    "append": _ingest,
    "plan": _plan,
    "convert": _convert,
    "merge": _merge,
    "export": _export,
    "inspect": _inspect,
    "doctor": _doctor,
    "skew": _skew,
    "bench": _bench,
    "demo": _demo,
    "info": _info,
    "self-test": _self_test,
}
