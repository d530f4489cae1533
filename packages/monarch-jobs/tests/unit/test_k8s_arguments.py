"""What a KubernetesJob and its meshes refuse, before anything is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch.job.kubernetes import pod_template
from monarch.job.kubernetes.arguments import ImageSpec, checked, checked_mesh

Object = dict[str, Any]
IMAGE = ImageSpec("registry.example.com/monarch:1")
LONG = "a" * 64


def _mesh(**arguments: Any) -> Object:
    return {"name": "workers", "num_replicas": 1, **arguments}


def _template(spec: Object | None = None, **worker: Any) -> Object:
    return {"spec": {"containers": [{"name": "worker", "image": "mine:1", **worker}], **(spec or {})}}


BAD_MESHES: dict[str, tuple[Object, type[Exception], str]] = {
    "upper case": (_mesh(name="Workers"), ValueError, r"mesh 'Workers': the name .*\^\[a-z\]\[a-z0-9\]\*\$"),
    "dash": (_mesh(name="a-b"), ValueError, "mesh 'a-b'"),
    "digit first": (_mesh(name="0a"), ValueError, "mesh '0a'"),
    "line break": (_mesh(name="a\n"), ValueError, "mesh 'a\n'"),
    "long name": (_mesh(name=LONG), ValueError, "at most 63"),
    "empty name": (_mesh(name=""), ValueError, "the name of a mesh is empty"),
    "name of a member": (_mesh(name="metadata", num_replicas=0), ValueError, "mesh 'metadata' needs at least one host, not 0"),
    "reserved name": (_mesh(name="query_engine"), ValueError, "cannot be named 'query_engine'"),
    "name of no text": (_mesh(name=3), TypeError, "name"),
    "negative": (_mesh(num_replicas=-1), ValueError, "mesh 'workers' needs at least one host, not -1"),
    "count of text": (_mesh(num_replicas="2"), TypeError, "num_replicas"),
    "image of another kind": (_mesh(image_spec="img"), TypeError, "^mesh .*: image_spec: Input should be an ImageSpec, not .img.$"),
    "empty image": (_mesh(image_spec={"image": ""}), ValueError, "^mesh .workers.: image_spec: '' is no reference"),
    "both": (_mesh(image_spec=IMAGE, pod_template=_template()), ValueError, "image_spec and pod_template exclude each other"),
    "selector and image": (_mesh(image_spec=IMAGE, label_selector="a=b"), ValueError, "label_selector .* image_spec"),
    "rank label and image": (_mesh(image_spec=IMAGE, pod_rank_label="rank"), ValueError, "pod_rank_label"),
    "selector": (_mesh(label_selector="a=b=c"), ValueError, "'a=b=c' is no requirement"),
    "empty selector": (_mesh(label_selector=" "), ValueError, "selects every pod"),
    "rank label": (_mesh(pod_rank_label="a b"), ValueError, "pod_rank_label 'a b'"),
    "labels of attached": (_mesh(labels={"a": "b"}), ValueError, "labels are for pods that the job makes"),
    "annotations of attached": (_mesh(annotations={"a": "b"}), ValueError, "annotations are for pods"),
    "port 0": (_mesh(port=0), ValueError, "port.*not 0"),
    "large port": (_mesh(port=65536), ValueError, "port.*not 65536"),
    "port of root": (_mesh(image_spec=IMAGE, port=80), ValueError, "port 80 is below 1024"),
    "label key": (_mesh(image_spec=IMAGE, labels={"-a": "b"}), ValueError, "label '-a'"),
    "label domain": (_mesh(image_spec=IMAGE, labels={"A.b/c": "b"}), ValueError, "'A.b' before the '/'"),
    "long label key": (_mesh(image_spec=IMAGE, labels={LONG: "b"}), ValueError, "at most 63"),
    "label value": (_mesh(image_spec=IMAGE, labels={"a": "b c"}), ValueError, "label 'a': the value 'b c'"),
    "long label value": (_mesh(image_spec=IMAGE, labels={"a": LONG}), ValueError, "more than 63"),
    "label of no text": (_mesh(image_spec=IMAGE, labels={"a": 1}), TypeError, "labels.a"),
    "our label": (
        _mesh(image_spec=IMAGE, labels={"app.kubernetes.io/name": "x"}),
        ValueError,
        "'app.kubernetes.io/name' is set by monarch",
    ),
    "label of the job": (_mesh(image_spec=IMAGE, labels={"monarch.pytorch.org/job": "x"}), ValueError, "set by monarch"),
    "label of a controller": (_mesh(image_spec=IMAGE, labels={"apps.kubernetes.io/pod-index": "0"}), ValueError, "by a controller"),
    "annotation key": (_mesh(image_spec=IMAGE, annotations={"a b": ""}), ValueError, "annotation 'a b'"),
    "annotations": (_mesh(image_spec=IMAGE, annotations={"a": "b" * (256 * 1024)}), ValueError, "262,145 bytes"),
    "image": (_mesh(image_spec=ImageSpec("a b")), ValueError, "'a b' is no reference of an image"),
    "no image": (_mesh(image_spec={}), TypeError, "image"),
    "image field": (_mesh(image_spec={"image": "a", "imag": 1}), TypeError, "imag"),
    "quantity": (_mesh(image_spec=ImageSpec("a", {"cpu": "two"})), ValueError, "resource 'cpu': 'two' is no quantity"),
    "zero": (_mesh(image_spec=ImageSpec("a", {"cpu": 0})), ValueError, "'0' is not above 0"),
    "negative amount": (_mesh(image_spec=ImageSpec("a", {"memory": "-1Gi"})), ValueError, "'-1Gi' is no quantity"),
    "unknown resource": (_mesh(image_spec=ImageSpec("a", {"gpu": 1})), ValueError, "resource 'gpu' is unknown"),
    "half a device": (_mesh(image_spec=ImageSpec("a", {"nvidia.com/gpu": "500m"})), ValueError, "'500m' is no whole number"),
    "shared memory": (_mesh(image_spec=ImageSpec("a", shared_memory_size="big")), ValueError, "shared_memory_size: 'big'"),
    "template of no mapping": (_mesh(pod_template="x"), TypeError, "pod_template"),
    "unknown argument": (_mesh(imag="x"), TypeError, "imag"),
}

BAD_TEMPLATES: dict[str, tuple[Object, type[Exception], str]] = {
    "a whole pod": ({"kind": "Pod", **_template()}, ValueError, "pod_template has 'kind'"),
    "no spec": ({}, ValueError, "no container named 'worker'.*none"),
    "no worker": ({"spec": {"containers": [{"name": "main"}]}}, ValueError, "no container named 'worker'.*'main'"),
    "two workers": ({"spec": {"containers": [{"name": "worker"}, {"name": "worker"}]}}, ValueError, "2 containers named 'worker'"),
    "no image": ({"spec": {"containers": [{"name": "worker"}]}}, ValueError, "container 'worker' has no image"),
    "containers of no list": ({"spec": {"containers": {}}}, ValueError, "no container named"),
    "containers as mapping": ({"spec": {"containers": {"name": "worker"}}}, TypeError, "containers is a list, not dict"),
    "restart policy": (_template({"restartPolicy": "Always"}), ValueError, "restartPolicy is 'Always': .*'Never'"),
    "our volume": (_template({"volumes": [{"name": "monarch-join"}]}), ValueError, "volume 'monarch-join'"),
    "our mount": (_template(volumeMounts=[{"name": "x", "mountPath": "/run/monarch/join/"}]), ValueError, "/run/monarch/join"),
    "other port": (
        _template(env=[{"name": "MONARCH_PORT", "value": "1"}]),
        ValueError,
        "MONARCH_PORT='1', and the port of the mesh is 26600",
    ),
    "our variable": (_template(env=[{"name": "MONARCH_POD_UID", "value": "1"}]), ValueError, "MONARCH_POD_UID"),
    "named port": (_template(ports=[{"name": "monarch", "containerPort": 1}]), ValueError, "port 'monarch' 1"),
    "command of text": (_template(command="python"), TypeError, "command is a list of texts"),
    "our label": (
        {"metadata": {"labels": {"monarch.pytorch.org/mesh-name": "x"}}, **_template()},
        ValueError,
        "mesh-name' is set by monarch",
    ),
    "label value": ({"metadata": {"labels": {"a": "b c"}}, **_template()}, ValueError, "label 'a'"),
    "label of number": ({"metadata": {"labels": {"a": 1}}, **_template()}, TypeError, "'a' is 1, and text is needed"),
    "no JSON": (_template(env=object()), TypeError, r"env is a object"),
    "key of no text": (_template({3: 4}), TypeError, "the key 3"),  # type: ignore[dict-item]
}

BAD_JOBS: dict[str, tuple[Object, type[Exception], str]] = {
    "namespace": ({"namespace": "My_Space"}, ValueError, "'My_Space' is no name of a namespace"),
    "long namespace": ({"namespace": LONG}, ValueError, "at most 63"),
    "namespace of no text": ({"namespace": None}, TypeError, "namespace"),
    "timeout": ({"timeout": 0}, ValueError, "timeout.*not 0"),
    "timeout of text": ({"timeout": "1"}, TypeError, "timeout"),
    "provisioner": ({"provisioner": "kopf"}, ValueError, "provisioner.*'kopf'"),
    "workload": ({"workload": "pod"}, ValueError, "workload.*'pod'"),
    "secret": ({"join_secret": "A"}, ValueError, "'A' is no name of a Secret"),
    "secret of insecure": ({"join_secret": "a", "insecure": True}, ValueError, "insecure=True"),
    "idle": ({"idle_timeout": 0.0}, ValueError, "idle_timeout"),
    "idle for ever": ({"idle_timeout": float("inf")}, ValueError, "idle_timeout"),
    "idle StatefulSet": ({"idle_timeout": 1.0, "workload": "statefulset"}, ValueError, "idle_timeout frees nothing with a StatefulSet"),
    "idle mesh": ({"idle_timeout": 1.0, "provisioner": "monarchmesh"}, ValueError, "idle_timeout frees nothing with a MonarchMesh"),
    "gang of an operator": ({"provisioner": "monarchmesh", "workload": "jobset"}, ValueError, "workload='jobset'"),
    "gateway": ({"attach_to": " "}, ValueError, "attach_to is empty"),
}


@pytest.mark.parametrize("name", BAD_MESHES)
def test_bad_mesh_is_refused(name: str) -> None:
    arguments, kind, text = BAD_MESHES[name]
    with pytest.raises(kind, match=text):
        checked_mesh(arguments)


@pytest.mark.parametrize("name", BAD_TEMPLATES)
def test_bad_template_is_refused(name: str) -> None:
    template, kind, text = BAD_TEMPLATES[name]
    with pytest.raises(kind, match=text) as caught:
        checked({"namespace": "a", "meshes": {"workers": checked_mesh(_mesh(pod_template=template)).model_dump()}})
    assert "mesh 'workers'" in str(caught.value)


@pytest.mark.parametrize("name", BAD_JOBS)
def test_bad_job_is_refused(name: str) -> None:
    arguments, kind, text = BAD_JOBS[name]
    with pytest.raises(kind, match=text) as caught:
        checked({"namespace": "a", **arguments})
    assert str(caught.value).startswith("KubernetesJob: ")


def test_restart_policy_is_that_of_the_workload() -> None:
    def job(policy: str, **arguments: Any) -> None:
        mesh = checked_mesh(_mesh(pod_template=_template({"restartPolicy": policy}))).model_dump()
        checked({"namespace": "a", "meshes": {"workers": mesh}, **arguments})

    job("Never")
    job("Always", workload="statefulset")
    job("Always", provisioner="monarchmesh")
    with pytest.raises(ValueError, match="restartPolicy is 'Never': .*'Always'"):
        job("Never", workload="statefulset")


def test_meshes_of_a_gang_have_one_value_each() -> None:
    first = checked_mesh(_mesh(image_spec=IMAGE, labels={"queue": "a"})).model_dump()
    second = {**first, "name": "others", "labels": {"queue": "b"}}
    checked({"namespace": "a", "meshes": {"workers": first, "others": second}})
    with pytest.raises(ValueError, match="label 'queue' is 'a' for mesh 'workers' and 'b' for mesh 'others'"):
        checked({"namespace": "a", "workload": "jobset", "meshes": {"workers": first, "others": second}})


def test_idle_time_needs_our_command() -> None:
    def job(**worker: Any) -> None:
        mesh = checked_mesh(_mesh(pod_template=_template(**worker))).model_dump()
        checked({"namespace": "a", "idle_timeout": 1.0, "meshes": {"workers": mesh}})

    job()
    for own in ("command", "args"):
        with pytest.raises(ValueError, match="mesh 'workers': idle_timeout is an option of `monarch worker`"):
            job(**{own: ["mine"]})


def test_long_name_of_a_monarch_mesh_is_refused() -> None:
    mesh = checked_mesh(_mesh(name="a" * 53, image_spec=IMAGE)).model_dump()
    checked({"namespace": "a", "meshes": {"a" * 53: mesh}})
    with pytest.raises(ValueError, match="52"):
        checked({"namespace": "a", "provisioner": "monarchmesh", "meshes": {"a" * 53: mesh}})


def test_template_of_the_official_client_is_plain() -> None:
    client = pytest.importorskip("kubernetes.client")
    worker = client.V1Container(name="worker", image="mine:1", image_pull_policy="Never", env=[client.V1EnvVar(name="a", value="b")])
    template = client.V1PodTemplateSpec(spec=client.V1PodSpec(containers=[worker], host_network=True))
    plain = pod_template.plain(template)
    container = {"name": "worker", "image": "mine:1", "imagePullPolicy": "Never", "env": [{"name": "a", "value": "b"}]}
    assert plain == {"spec": {"containers": [container], "hostNetwork": True}}
    assert checked_mesh(_mesh(pod_template=template)).pod_template == plain


def test_image_spec_does_not_change() -> None:
    with pytest.raises(AttributeError):
        IMAGE.image = "other"  # type: ignore[misc]
    assert checked_mesh(_mesh(image_spec=IMAGE)).image_spec == {
        "image": "registry.example.com/monarch:1",
        "resources": None,
        "enable_fuse": False,
        "shared_memory_size": None,
    }


def test_other_objects_are_no_templates() -> None:
    with pytest.raises(TypeError, match="pod_template"):
        checked_mesh(_mesh(pod_template=SimpleNamespace(spec=1)))
