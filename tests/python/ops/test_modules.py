"""Each module of robocache.ops can be imported first, and does not import torch."""

import subprocess
import sys
from pathlib import Path

import pytest

import robocache

ROOT = Path(robocache.__file__).parent
FILES = [path.relative_to(ROOT.parent).with_suffix("") for path in sorted(ROOT.glob("ops/**/*.py"))]
MODULES = [".".join(path.parts).removesuffix(".__init__") for path in FILES]

# Imports the packages of others once, then each module in a forked child. Without torch, an attempt to import it fails and counts.
PROGRAM = """
import importlib.util, os, sys, types

class WithoutTorch:
    attempts = []

    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            self.attempts.append(name)
            raise ModuleNotFoundError(name)

package = types.ModuleType("robocache")  # without its __init__, which imports the others
package.__path__ = importlib.util.find_spec("robocache").submodule_search_locations
sys.modules["robocache"] = package
if sys.argv[1] == "without torch":
    sys.meta_path.insert(0, WithoutTorch())
else:
    import torch
import numpy, tvm_ffi
WithoutTorch.attempts.clear()
assert [name for name in sys.modules if name.startswith("robocache")] == ["robocache"]
failed = []
for module in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        __import__(module)
        os._exit(len(WithoutTorch.attempts))
    if os.waitpid(child, 0)[1] != 0:
        failed.append(module)
sys.exit(" ".join(failed) or 0)
"""


@pytest.mark.parametrize("torch", ["with torch", "without torch"])
def test_each_module_imports_alone(torch):
    """Each is the first import, so a circle of imports fails. Only robocache._torch may try to import torch."""
    modules = ["robocache._torch"] if torch == "with torch" else [*MODULES, "robocache._call", "robocache._check"]
    subprocess.run([sys.executable, "-c", PROGRAM, torch, *modules], check=True, timeout=300)
