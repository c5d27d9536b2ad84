"""Result files of the examples have the intervals of scipy and of publications; wrong files are refused."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("example_results", ROOT / "examples/results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("successes", "rollouts"), [(0, 1), (1, 1), (0, 200), (187, 200), (200, 200), (3, 7)])
def test_wilsons_interval_equals_scipys(results, successes, rollouts):
    expected = binomtest(successes, rollouts).proportion_ci(0.95, method="wilson")
    np.testing.assert_allclose(results.wilson(successes, rollouts), [expected.low, expected.high], atol=1e-12)


# Newcombe, 1998, table of examples, method 10. Counts of successes: both, first only, second only, neither.
@pytest.mark.parametrize(
    ("counts", "interval"),
    [((36, 12, 2, 0), (0.0569, 0.3404)), ((36, 14, 0, 0), (0.1528, 0.4167)), ((0, 0, 0, 30), (-0.1135, 0.1135))],
)
def test_the_paired_interval_equals_the_published_one(results, counts, interval):
    both, first, second, neither = counts
    a = [True] * both + [True] * first + [False] * second + [False] * neither
    b = [True] * both + [False] * first + [True] * second + [False] * neither
    difference, bounds = results.paired_difference(a, b)
    assert difference == pytest.approx((first - second) / len(a))
    np.testing.assert_allclose(bounds, interval, atol=1e-3)
    swapped, swapped_bounds = results.paired_difference(b, a)
    np.testing.assert_allclose([swapped, *swapped_bounds], [-difference, *(-x for x in reversed(bounds))], atol=1e-12)


def write(results, path):
    arms = [
        results.arm("clocks", 0, [True, False, True], curve=[curve_point()], wait_share=0.01),
        results.arm("rows", 0, [False, False, True]),
    ]
    results.write(
        path, command="x", seeds=[0], expert={"successes": 3, "episodes": 3}, arms=arms, predictions="2 of 3", goals=7
    )


def curve_point():
    return {"step": 10, "wall_s": 1.0, "successes": 1, "rollouts": 3, "loss": 0.5}


def test_a_result_file_round_trips(results, tmp_path):
    path = tmp_path / "training-toy-first.json"
    write(results, path)
    content = results.read(path)
    clocks, rows = content["arms"]
    assert (clocks["successes"], clocks["rollouts"], clocks["outcomes"]) == (2, 3, "101")
    assert clocks["interval"] == results.wilson(2, 3) and clocks["curve"] == [curve_point()] and content["goals"] == 7
    assert results.paired_difference(*map(results.outcomes_of, (clocks, rows)))[0] == pytest.approx(1 / 3)
    assert content["versions"]["numpy"] == np.__version__ and "cores" in content["machine"] and content["commit"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("commit"), "'commit'"),
        (lambda content: content["expert"].pop("episodes"), "expert"),
        (lambda content: content["arms"][1].pop("wait_share"), r"arms\[1\].*'wait_share'"),
        (lambda content: content["arms"][0].update(successes=3), r"arms\[0\].*2 of 3"),
        (lambda content: content["arms"][0].update(interval=[0.5, 0.9]), r"arms\[0\].interval"),
        (lambda content: content["arms"][0].update(seed=4), r"arms\[0\].seed"),
        (lambda content: content["arms"][0]["curve"][0].pop("loss"), r"arms\[0\].curve"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(results, tmp_path, change, message):
    path = tmp_path / "training-toy-first.json"
    write(results, path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"(?s){path.name}.*{message}"):
        results.read(path)


@pytest.mark.parametrize(("successes", "rollouts"), [(3, 2), (-1, 2), (0, 0)])
def test_impossible_counts_are_refused(results, successes, rollouts):
    with pytest.raises(ValueError, match="rollouts"):
        results.wilson(successes, rollouts)
