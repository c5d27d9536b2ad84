"""The modules of robocache.ops: each imports alone, and torch is theirs only where the caller has it."""

import subprocess
import sys
from pathlib import Path

import pytest

import robocache

ROOT = Path(robocache.__file__).parent
FILES = [path.relative_to(ROOT.parent).with_suffix("") for path in sorted(ROOT.glob("ops/**/*.py"))]
MODULES = [".".join(path.parts).removesuffix(".__init__") for path in FILES]


@pytest.mark.parametrize("module", MODULES)
def test_each_imports_alone(module):
    """Before any other of the package: so no circle of imports needs an order. Without torch, but for its own side."""
    program = f"""
import importlib.util, sys, types
package = types.ModuleType("robocache")  # without its __init__, which imports the others
package.__path__ = importlib.util.find_spec("robocache").submodule_search_locations
sys.modules["robocache"] = package
if "._torch." not in {module!r}:
    sys.modules["torch"] = None  # no import of it succeeds
__import__({module!r})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
