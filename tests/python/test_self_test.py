"""The stored results of `robocache self-test`: a change of any byte must be noticed."""

import inspect
import json
import time

import pytest

import robocache
from robocache import cli, self_test


@pytest.fixture(scope="module")
def report_and_seconds():
    """The report of one run, and its CPU seconds in all threads, which other programs do not change."""
    begin = time.process_time()
    return self_test.self_test(), time.process_time() - begin


def test_the_cpu_gives_the_stored_results(report_and_seconds):
    report, cpu_seconds = report_and_seconds
    assert len(report.results) >= 100
    assert [result for result in report.failures if result.device == "cpu"] == []
    assert cpu_seconds < 10


def test_every_operation_and_a_loader_run_on_every_device(monkeypatch):
    operations = {
        name
        for name in robocache.__all__
        if inspect.isfunction(getattr(robocache, name))
        and getattr(robocache, name).__module__.startswith("robocache.ops.")
    } - {"check_times"}  # check_times computes nothing
    called = set()

    def noting_calls(name, function):
        return lambda *arguments, **options: (called.add(name), function(*arguments, **options))[1]

    for name in operations | {"Loader"}:
        monkeypatch.setattr(self_test, name, noting_calls(name, getattr(robocache, name)))
    live_classes = {"Ring", "Aligner"}
    for name in live_classes:
        monkeypatch.setattr(self_test, name, noting_calls(name, getattr(robocache.live, name)))
    conversions = ("Relative", "StepDelta", "Rotate", "Rescale", "BinarizeGripper")
    directions = {f"{name}.{direction}" for name in conversions for direction in ("forward", "back")}
    directions.remove("BinarizeGripper.back")
    for name, _, direction in (path.partition(".") for path in directions):
        conversion = getattr(robocache.actions, name)
        monkeypatch.setattr(conversion, direction, noting_calls(f"{name}.{direction}", getattr(conversion, direction)))
    report = self_test.self_test()
    assert called == operations | {"Loader"} | live_classes | directions and len(operations) >= 8
    cases = {device: {result.case for result in report.results if result.device == device} for device in report.devices}
    assert all(names == cases["cpu"] for names in cases.values())
    assert cases["cpu"] == set(json.loads(self_test._ANSWERS.read_text()))


def test_gradients_of_every_differentiable_operation_are_compared():
    pytest.importorskip("torch")
    differentiated = {case.split()[1] for case, _ in self_test._gradients("cpu")}
    assert differentiated == {"resample", "fuse", "voxelize"}


def test_cuda_gives_the_stored_results(cuda):
    results = [result for result in self_test.self_test().results if result.device.startswith("cuda")]
    assert len(results) >= 100
    assert [result for result in results if not result.passed] == []


def test_a_wrong_result_is_named(monkeypatch, tmp_path, capsys):
    answers = json.loads(self_test._ANSWERS.read_text())
    answers["fuse concat"] = "0" * 16
    answers_path = tmp_path / "answers.json"
    answers_path.write_text(json.dumps(answers))
    monkeypatch.setattr(self_test, "_ANSWERS", answers_path)
    report = self_test.self_test()
    monkeypatch.setattr(cli, "self_test", lambda: report)
    assert cli.main(["self-test"]) == 1
    out = capsys.readouterr().out
    assert "cpu: fuse concat: expected 0000000000000000, got " in out
    assert cli.main(["self-test", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert not printed["ok"]
    assert {failure["case"] for failure in printed["failures"]} == {"fuse concat"}


def test_an_operation_that_raises_fails_with_its_error(monkeypatch):
    def refuse(*arguments, **options):
        raise self_test.errors.DeviceError("no memory")

    monkeypatch.setattr(self_test, "fuse_multimodal", refuse)
    messages = {result.case: result.got for result in self_test.self_test().failures}
    cases = {case for case in json.loads(self_test._ANSWERS.read_text()) if "fuse" in case.split()}
    assert messages == dict.fromkeys(cases, "DeviceError: no memory") and "gradient fuse" in cases


def test_the_command_succeeds(report_and_seconds, monkeypatch, capsys):
    monkeypatch.setattr(cli, "self_test", lambda: report_and_seconds[0])
    assert cli.main(["self-test"]) == 0
    assert "as expected" in capsys.readouterr().out
    assert cli.main(["self-test", "--json"]) == 0
