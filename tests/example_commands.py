"""Runs the commands of an example one after another in one process, because its imports take seconds."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import contextlib, io, json, runpy, sys
module = sys.argv[1]
for line in sys.stdin:
    sys.argv[1:] = json.loads(line)
    code, output = 0, io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, output.getvalue()]), flush=True)
"""


@contextmanager
def example_commands(module, **environment):
    """Yields a function that runs `python -m module ARGUMENTS` and returns its standard output.

    With `exits=True` it returns what the command gave to `sys.exit`; an exit code other than 0 is a failure otherwise.
    """
    command = [sys.executable, "-c", _PROGRAM, module]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, env={**os.environ, **environment}, **pipes) as process:

        def run(*arguments, exits=False):
            print(json.dumps([*map(str, arguments)]), file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, f"{module} {arguments} ended its process; the captured output has the traceback"
            code, output = json.loads(answer)
            assert exits or code == 0, code
            return code if exits else output

        yield run
        process.stdin.close()
