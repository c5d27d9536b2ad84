"""The examples in the README and in the docstrings do what they say, as they are written."""

import contextlib
import doctest
import importlib
import inspect
import io
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import robocache
from robocache import cli

torch = pytest.importorskip("torch")

README = (Path(__file__).parents[2] / "README.md").read_text()


def snippets(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def snippet(language, part):
    """The one snippet with `part` in it."""
    (found,) = [text for text in snippets(language) if part in text]
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lerobot_files(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "ingest"))
    return importlib.import_module("lerobot_files")


# ---- README ----


def test_from_a_lerobot_dataset_to_a_training_loop(rng, folder, lerobot_files, device):
    lengths = (700, 400)
    episodes = lerobot_files.make_episodes(rng, lengths)
    for episode in episodes:
        episode.columns["action"] = 50 * episode.columns["action"] + 700
    lerobot_files.write_lerobot("path/to/lerobot_dataset", episodes)
    for line in snippet("bash", "robocache ingest").splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "robocache"
        assert cli.main(arguments) == 0

    seen = []

    def policy(state, action, is_pad):
        assert state.shape == (1024, 2, 3)
        assert action.shape == (1024, 16, 2)
        assert is_pad.shape == (1024, 16)
        assert state.dtype == action.dtype == torch.bfloat16
        assert {x.device.type for x in (state, action, is_pad)} == {device}
        assert state.isfinite().all()
        assert action.isfinite().all()
        assert not is_pad.all(1).any()  # the window begins on the anchor, which is a row
        at_the_anchor = action[:, 0].double()  # rows of the recording, nearly all of them
        seen.append((at_the_anchor.mean().item(), at_the_anchor.std().item()))
        return ((action - state.mean()) ** 2)[~is_pad].mean()

    source = snippet("python", "policy(")
    assert source.count('device="cuda"') == 1
    names = {"policy": policy}
    exec(source.replace('device="cuda"', f'device="{device}"'), names)
    assert len(seen) == 10 * (sum(lengths) // 1024)
    np.testing.assert_allclose(seen, [(0, 1)] * len(seen), atol=0.1)
    assert names["loader"].state_dict() == {"seed": 0, "epoch": 10, "step": 0}


def test_a_recorder_of_ones_own(rng, folder):
    time_ns, values = np.arange(5) * 10**7, rng.normal(size=(5, 3)).astype(np.float32)
    exec(snippet("python", "robocache.Writer"), {"robocache": robocache, "time_ns": time_ns, "values": values})
    ds = robocache.open("cache")
    assert ds.episodes["task"].to_pylist() == ["pick the cup"]
    assert ds.episodes["success"].to_pylist() == [True]
    np.testing.assert_array_equal(ds.episode(0)["joint.position"][0], time_ns)
    np.testing.assert_array_equal(ds.episode(0)["joint.position"][1], values)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_the_operation_by_itself(device, framework):
    source = snippet("python", "resample_trajectories").strip()
    names = {
        "robocache": robocache,
        "values": torch.tensor([[0.0], [10.0], [20.0]]),
        "times": torch.tensor([0.0, 0.1, 1.0]),
        "target_times": torch.tensor([0.05, 0.55, 2.0]),
    }
    for name in ("values", "times", "target_times"):
        if framework == "numpy":
            names[name] = names[name].numpy()
        else:
            names[name] = names[name].to(device)
    out, valid = eval(source, names)
    assert type(out) is type(names["values"])
    np.testing.assert_allclose(out.tolist(), [[5.0], [15.0], [20.0]], rtol=1e-6)
    assert valid.tolist() == [True, False, False]  # the second in a gap, the third outside


def test_every_python_snippet_of_the_readme_is_tried_here():
    assert len(snippets("python")) == 3


# ---- Docstrings ----


def documented():
    """Every public object and method with an example."""
    found = []
    for name in robocache.__all__:
        value = getattr(robocache, name)
        members = inspect.getmembers(value, inspect.isroutine) if inspect.isclass(value) else []
        for path, documented in [(name, value), *((f"{name}.{member}", routine) for member, routine in members)]:
            if ">>>" in (inspect.getdoc(documented) or ""):
                found.append(pytest.param(documented, id=path))
    return found


def write_example_cache(path, time_ns, values):
    with robocache.Writer(path) as w:
        for _ in range(4):
            with w.episode(task="pick the cup") as ep:
                for stream in ("joint.position", "observation.state", "action"):
                    ep.append(stream, time_ns, values)


@pytest.mark.parametrize("example_of", documented())
def test_the_examples_of_docstrings(rng, folder, example_of):
    time_ns, values = np.arange(200) * 20_000_000, rng.normal(size=(200, 7)).astype(np.float32)
    write_example_cache("other", time_ns, values)
    if example_of not in (robocache.Writer, robocache.ingest):  # those make it
        write_example_cache("cache", time_ns, values)
    (folder / "logs").mkdir()
    for name, rows in (("imu", 13312), ("joints", 33280)):
        (folder / "logs" / f"{name}.csv").write_text("".join(f"{k},{k}\n" for k in range(rows)))
    names = {"robocache": robocache, "np": np, "ds": robocache.open("other"), "time_ns": time_ns, "values": values}
    for example in doctest.DocTestParser().get_examples(inspect.getdoc(example_of)):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(example.source, "<docstring>", "single"), names)
        if example.want:
            assert printed.getvalue() == example.want
