"""Lesson 27: the manifest agrees with itself, and holds no field that was not looked up."""

import copy

import pytest
import yaml

from tests.helpers import ROOT

MANIFEST = ROOT / "labs" / "lab_27_job.yaml"
# Names of fields that the manifest may have, looked up in release 1.37 of Kubernetes' API. A dictionary
# stands for an object, [] for a list, None for a value.
FREE: dict = {"*": None}  # its names are the reader's
METADATA = {"name": None}
CONTAINER = {
    "name": None,
    "image": None,
    "command": None,
    "resources": {"limits": FREE, "requests": FREE},
    "volumeMounts": [{"name": None, "mountPath": None}],
}
VOLUME = {
    "name": None,
    "persistentVolumeClaim": {"claimName": None},
    "emptyDir": {"medium": None, "sizeLimit": None},
}
POD = {
    "subdomain": None,
    "restartPolicy": None,
    "terminationGracePeriodSeconds": None,
    "containers": [CONTAINER],
    "volumes": [VOLUME],
}
JOB = {
    "completionMode": None,
    "completions": None,
    "parallelism": None,
    "backoffLimit": None,
    "template": {"spec": POD},
}
FIELDS = {
    "Service": {"clusterIP": None, "publishNotReadyAddresses": None, "selector": FREE},
    "Job": JOB,
}


def documents() -> list[dict]:
    return list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))


def unknown_fields(value: object, known: object, path: str = "") -> list[str]:
    if isinstance(known, list):
        return [field for item in value for field in unknown_fields(item, known[0], path)]
    if not isinstance(known, dict) or "*" in known:
        return []
    unknown = [f"{path}.{name}" for name in value if name not in known]
    for name in known.keys() & value.keys():
        unknown += unknown_fields(value[name], known[name], f"{path}.{name}")
    return unknown


def problems(manifest: dict) -> list[str]:
    spec = FIELDS[manifest["kind"]]
    known = {"apiVersion": None, "kind": None, "metadata": METADATA, "spec": spec}
    return unknown_fields(manifest, known)


def test_each_field_is_known():
    assert [problems(manifest) for manifest in documents()] == [[], []]


@pytest.mark.parametrize(
    ("path", "typo"),
    [
        (["spec"], "completion"),
        (["spec", "template", "spec"], "subDomain"),
        (["spec", "template", "spec", "containers", 0], "volumeMount"),
    ],
)
def test_a_typo_is_refused(path: list, typo: str):
    manifest = copy.deepcopy(documents()[-1])
    place = manifest
    for step in path:
        place = place[step]
    place[typo] = None
    assert [field.rpartition(".")[2] for field in problems(manifest)] == [typo]


def options(command: list[str]) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=") for word in command if word.startswith("--"))


def test_the_job_has_as_many_pods_as_nodes_and_they_look_for_the_first_one():
    service, job = documents()
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    asked = options(container["command"])
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(asked["nnodes"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(asked["nproc-per-node"])
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert asked["rdzv-endpoint"].partition(":")[0] == f"{name}-0.{service['metadata']['name']}"
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert asked["checkpoints"] in [mount["mountPath"] for mount in container["volumeMounts"]]
