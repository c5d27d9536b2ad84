"""The stored answers of `robocache self-test`: no change may alter a byte of them without a word."""

import json

import pytest

from robocache import cli, self_test


def test_the_cpu_gives_the_stored_answers():
    found = self_test.self_test()
    assert len(found.results) >= 100
    assert [result for result in found.failures if result.device == "cpu"] == []


def test_cuda_gives_the_stored_answers(cuda):
    results = [result for result in self_test.self_test().results if result.device.startswith("cuda")]
    assert len(results) >= 100
    assert [result for result in results if not result.passed] == []


def test_a_wrong_answer_is_named(monkeypatch, tmp_path, capsys):
    answers = json.loads(self_test._ANSWERS.read_text())
    answers["fuse concat"] = "0" * 16
    stored = tmp_path / "answers.json"
    stored.write_text(json.dumps(answers))
    monkeypatch.setattr(self_test, "_ANSWERS", stored)
    assert cli.main(["self-test"]) == 1
    out = capsys.readouterr().out
    assert "cpu: fuse concat: expected 0000000000000000, got " in out
    assert cli.main(["self-test", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert {failure["case"] for failure in found["failures"]} == {"fuse concat"}


def test_an_operation_that_raises_fails_with_its_error(monkeypatch):
    def refuse(*arguments, **options):
        raise self_test.errors.DeviceError("no memory")

    monkeypatch.setattr(self_test, "fuse_multimodal", refuse)
    failed = {result.case: result.got for result in self_test.self_test().failures}
    assert failed == {f"fuse {name}": "DeviceError: no memory" for name in ("concat", "dict", "scaled")}


@pytest.mark.parametrize("arguments", [["self-test"], ["self-test", "--json"]])
def test_the_command_succeeds(arguments, capsys):
    assert cli.main(arguments) == 0
    assert "as expected" in capsys.readouterr().out or "--json" in arguments
