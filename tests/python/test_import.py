"""`import robocache` imports few modules; a name is imported at its first use."""

import ast
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import robocache
from robocache import _lib

OWN_MODULES = {"robocache", *(f"robocache.{name}" for name in ("_command", "_lib", "_printable", "_tvm_ffi", "errors"))}


def run_python(program):
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_the_modules_that_an_import_adds_to_numpy_and_tvm_ffi():
    program = """
import sys
sys.modules["torch"] = None
import numpy, tvm_ffi
before = set(sys.modules)
import robocache
print(*sorted(set(sys.modules) - before))
"""
    assert set(run_python(program)) == OWN_MODULES


def test_import_loads_no_modules_of_files_and_reports():
    late_modules = ("rich", "pyarrow", "matplotlib", "jsonschema", "h5py", "av")
    program = f"""
import sys; sys.modules["torch"] = None
import robocache
for use in ("resample_trajectories", "open", "Writer", "Loader", "actions", "live"):
    getattr(robocache, use)
    assert not [name for name in {late_modules} if name in sys.modules], use
"""
    run_python(program)


def test_each_public_name_is_listed_for_import_and_for_type_checkers():
    public_names = {*robocache._MODULE_OF, "actions", "live"}
    assert public_names == set(robocache.__all__) <= set(dir(robocache))
    tree = ast.parse(Path(robocache.__file__).read_text())
    type_checked = {
        alias.name: statement.module
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for alias in statement.names
    }
    assert type_checked == {**robocache._MODULE_OF, "actions": None, "live": None}


def test_names_do_not_depend_on_earlier_imports():
    """Submodules imported before change no public name, and pickling the package, as Ray and Dask do, changes none."""
    pickled = pickle.dumps(robocache)
    assert pickle.loads(pickled) is robocache
    program = f"""
import pickle, types
assert pickle.loads({pickled!r}).__name__ == "robocache"
import robocache
robocache.frames.encode; robocache.lerobot.make_dataset
import robocache.doctor.clocks, robocache.export.report, robocache.ingest.clocks, robocache.loader
for name in robocache.__all__:
    is_module = isinstance(getattr(robocache, name), types.ModuleType)
    assert is_module == (name in ("actions", "live")), name
assert robocache.loader.Loader is robocache.Loader
"""
    run_python(program)
    for name in ("Lodaer", "no_such_module", "_private", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"module 'robocache' has no attribute '{name}'"):
            getattr(robocache, name)


def test_torch_compiles_unused_names_and_registers_every_operation():
    pytest.importorskip("torch")
    program = """
import torch, robocache
@torch.compile(fullgraph=True, backend="eager")
def f(values, times, targets):
    return robocache.resample_trajectories(values, times, targets) * 2
times = torch.arange(8, dtype=torch.float64)[None]
assert f(torch.ones(1, 8, 3), times, times).sum().item() == 48
values = torch.ones(1, 8, 3, requires_grad=True)
robocache.resample_trajectories(values, times, times).sum().backward()
features = torch.ones(1, 5, 2, requires_grad=True)
points = torch.rand(1, 5, 3)
grid = dict(grid_min=(0, 0, 0), voxel_size=1.0, grid_size=(2, 2, 2))
robocache.voxelize_pointcloud(points, features, mode="sum", **grid).sum().backward()
streams = {"a": (values, times)}
robocache.fuse_multimodal(streams, times).sum().backward()
print(*(name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("robocache::")))
"""
    registered = {name.partition(".")[0] for name in run_python(program)}
    called = {"resample_trajectories", "fuse_multimodal", "voxelize_pointcloud"}
    assert called | {"voxelize_sparse", "voxel_downsample", "integrate_tsdf_out"} <= registered


def test_a_tensor_keeps_its_array_alive():
    array = np.array([False, True])
    reference, tensor = weakref.ref(array), _lib.from_numpy(array)
    del array
    assert _lib.to_numpy(tensor).tolist() == [False, True]
    assert reference() is not None
    del tensor
    assert reference() is None
