"""The checks of sources find their faults, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

# {script: (files that pass, {(an added or replaced file, its content): the message})}
CHECKS = {
    "check_includes.py": (
        {
            "core/b.hpp": "#pragma once\n",
            "align/a.cpp": '#include <vector>\n#include "robocache/core/b.hpp"\n',
            "cache/c.hpp": "#pragma once\n",
            "ops/one/one.hpp": "#pragma once\n",
        },
        {
            ("core/b.hpp", '#include "robocache/align/a.hpp"\n'): "robocache/align/a.hpp: no such file",
            (
                "core/c.hpp",
                '#include "robocache/ops/one/one.hpp"\n',
            ): "robocache/ops/one/one.hpp: core may not include ops",
            ("align/a.cpp", '#include "robocache/cache/c.hpp"\n'): "robocache/cache/c.hpp: align knows rows by source/",
            ("core/b.hpp", "#include <cuda_runtime.h>\n"): "cuda_runtime.h: CUDA headers belong in *_cuda.cu",
            ("ops/b.cpp", "#include <torch/extension.h>\n"): "torch/extension.h: torch and pybind11 stay out",
            ("core/b.hpp", "#include <nlohmann/json.hpp>\n"): "nlohmann/json.hpp: nlohmann_json belongs in .cpp files",
            ("ops/two/two.cpp", '#include "robocache/ops/one/one.hpp"\n'): "operation two includes operation one",
            ("core/b.cpp", '#include "b.hpp"\n'): 'b.hpp: write "robocache/core/b.hpp"',
            ("cellar/b.cpp", "\n"): "cellar/b.cpp: not in a room of",
        },
    ),
    "check_definitions.py": (
        {
            "core/b.hpp": "namespace robocache {\nstruct A {\n  int a;\n};\nstruct B;\n}\n",
            "core/a.cpp": "namespace robocache {\nnamespace {\nstruct A {};\n}\nnamespace other {\nstruct A {};\n}\n}\n",
        },
        {
            ("core/c.cpp", "namespace robocache {\nclass A final {\n};\n}\n"): "robocache::A: defined in",
            ("ops/c_cuda.cu", "namespace robocache {\nenum class A { kOne };\n}\n"): "robocache::A: defined in",
        },
    ),
}
CHECKS["check_imports.py"] = (
    {
        "errors.py": "import json\n",
        "loader.py": "from . import errors\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .doctor import d\n"
        "def f():\n    from .lerobot import L\n",
        "lerobot.py": "def f():\n    from .loader import Loader\n",
        "doctor/__init__.py": "from ..errors import Error\nfrom . import a\n",
        "doctor/a.py": "from robocache.loader import Loader\n",
        "doctor/b.py": "from .a import A\n",
    },
    {
        ("errors.py", "from .loader import Loader\n"): "errors.py:1: errors imports loader, which is above it",
        (
            "errors.py",
            "def f():\n    import robocache.doctor.a\n",
        ): "errors.py:2: errors imports doctor.a, which is above",
        ("writer.py", "from . import Loader\n"): "writer.py:1: writer imports __init__, which is above it",
        ("doctor/a.py", "def f():\n    from . import b\n"): "a circle of imports: doctor.a -> doctor.b -> doctor.a",
        ("doctor/c.py", "from ..nothing import a\n"): "doctor/c.py:1: no module nothing",
        ("cellar.py", "\n"): "cellar.py: cellar is in no room of check_imports.py",
        ("ingest/driver.py", "\n"): "ingest/driver.py: does not import ingest.workers; take that out of UPWARD",
    },
)
CASES = [(script, *case) for script, (_, faults) in CHECKS.items() for case in faults.items()]


def run(folder, script, files):
    for name, text in files.items():
        path = folder / ("python/robocache" if script == "check_imports.py" else "src/robocache") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    process = subprocess.run([sys.executable, SCRIPTS / script], cwd=folder, capture_output=True, text=True)
    assert not process.stderr
    return process.returncode, process.stdout


@pytest.mark.parametrize("script", CHECKS)
def test_correct_files_pass(tmp_path, script):
    code, output = run(tmp_path, script, CHECKS[script][0])
    assert code == 0 and len(output.splitlines()) == 1, output


@pytest.mark.parametrize("script", CHECKS)
def test_an_empty_folder_fails(tmp_path, script):
    assert run(tmp_path, script, {})[0] == 1


@pytest.mark.parametrize(("script", "file", "message"), CASES)
def test_faults_are_named(tmp_path, script, file, message):
    code, output = run(tmp_path, script, CHECKS[script][0] | dict([file]))
    assert code == 1 and message in output, output
