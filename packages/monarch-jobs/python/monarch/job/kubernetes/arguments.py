"""The arguments of a KubernetesJob, checked when they are given: what cannot be right is refused before anything is sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from monarch.actor import ChannelAddr
from monarch.job._job.arguments import problem_of
from monarch.job._job.job_state import check_count, check_mesh_names
from monarch.job.kubernetes import pod_template as templates
from monarch.job.kubernetes import rules
from monarch.job.kubernetes.manifests import names

_Model = TypeVar("_Model", bound=BaseModel)

Provisioner = Literal["native", "monarchmesh"]
Workload = Literal["job", "statefulset", "jobset"]

DEFAULT_PORT = 26600
# The StatefulSet of a MonarchMesh has the mesh's name, and its pods have that in a label, with 11 characters more.
LONGEST_MONARCH_MESH = 52


@dataclass(frozen=True)
class ImageSpec:
    """Pods of one container with this image, which has `monarch` on its PATH.

    Args:
        image: as for a container.
        resources: amounts by name, as requests and limits: `{"cpu": 8, "memory": "64Gi", "nvidia.com/gpu": 8}`.
        enable_fuse: the container may mount: privileged, with /dev/fuse; where `resources` has a device of a plugin with "fuse" in its
            name, unprivileged with that device. Without it, the container is not root.
        shared_memory_size: the size of /dev/shm, such as "16Gi"; it counts as memory of the pod.
    """

    image: str
    resources: dict[str, str | int] | None = None
    enable_fuse: bool = False
    shared_memory_size: str | None = None


ImageSpec.__module__ = "monarch.job.kubernetes"


class _ImageFields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    image: str
    resources: dict[str, str | int] | None = None
    enable_fuse: bool = False
    shared_memory_size: str | None = None

    @model_validator(mode="after")
    def _together(self) -> _ImageFields:
        rules.check_image(self.image)
        rules.check_resources(self.resources or {})
        if self.shared_memory_size is not None:
            rules.quantity("shared_memory_size", self.shared_memory_size)
        return self


class MeshArguments(BaseModel):
    """One mesh: its pods are there already (attached), or come from exactly one of `image_spec`, `pod_template` (provisioned)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    num_replicas: int
    label_selector: str | None = None
    pod_rank_label: str = names.POD_INDEX_LABEL
    image_spec: dict[str, Any] | None = None
    pod_template: dict[str, Any] | None = None
    port: int = Field(DEFAULT_PORT, ge=1, le=65535)
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    annotations: dict[str, str] = Field(default_factory=dict[str, str])

    @property
    def provisioned(self) -> bool:
        return self.image_spec is not None or self.pod_template is not None

    @property
    def selector(self) -> str:
        """Of an attached mesh."""
        return self.label_selector or names.selector(self.name)

    @field_validator("pod_template", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return templates.plain(value)

    @field_validator("image_spec", mode="before")
    @classmethod
    def _fields(cls, value: Any) -> Any:
        if isinstance(value, ImageSpec):
            return asdict(value)
        if value is None or type(value) is dict:
            return cast("Any", value)
        raise PydanticCustomError("image_spec", "Input should be an ImageSpec")

    @field_validator("image_spec")
    @classmethod
    def _image(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else validated(_ImageFields, value, "image_spec").model_dump()

    @model_validator(mode="after")
    def _together(self) -> MeshArguments:
        check_mesh_names([self.name])
        rules.check_mesh_name(self.name)
        check_count(self.name, self.num_replicas)
        rules.check_key("pod_rank_label", self.pod_rank_label)
        if self.label_selector is not None:
            rules.check_selector(self.label_selector)
        if not self.provisioned:
            for given in ("labels", "annotations"):
                if getattr(self, given):
                    raise ValueError(f"{given} are for pods that the job makes: give image_spec or pod_template, or leave them out")
            return self
        if self.image_spec is not None and self.pod_template is not None:
            raise ValueError("image_spec and pod_template exclude each other: give one of them")
        made = "image_spec" if self.image_spec is not None else "pod_template"
        if self.label_selector is not None:
            raise ValueError(f"label_selector is for pods that are there already, and {made} makes new ones: give one of them")
        if self.pod_rank_label != names.POD_INDEX_LABEL:
            raise ValueError(f"pod_rank_label is for pods that are there already: those of {made} have their index from their controller")
        rules.check_labels(self.labels)
        rules.check_annotations(self.annotations)
        templates.check_free("label", self.labels)
        templates.check_free("annotation", self.annotations)
        if self.image_spec is not None and not self.image_spec["enable_fuse"] and self.port < 1024:
            raise ValueError(f"port {self.port} is below 1024, where only root can listen: take a higher one, or a pod_template")
        return self


class KubernetesArguments(BaseModel):
    """Every argument of the constructor, and the meshes that `add_mesh` has added.

    `kubeconfig` is `{"path": ...}`, `{"given": true}` for a configuration that exists in this process only, or None: found by itself.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    namespace: str
    timeout: PositiveInt | None = None
    kubeconfig: dict[str, Any] | None = None
    attach_to: str | None = None
    provisioner: Provisioner = "native"
    workload: Workload = "job"
    join_secret: str | None = None
    network_policy: bool = True
    idle_timeout: float | None = Field(None, gt=0, allow_inf_nan=False)
    insecure: bool = False
    meshes: dict[str, MeshArguments] = Field(default_factory=dict[str, MeshArguments])

    @property
    def restart_policy(self) -> str:
        """Of the pods: a Job replaces those that end, the kubelet restarts the containers of a StatefulSet."""
        return "Never" if self.provisioner == "native" and self.workload != "statefulset" else "Always"

    @property
    def provisioned(self) -> list[MeshArguments]:
        """The meshes whose pods the job makes, in order."""
        return [mesh for mesh in self.meshes.values() if mesh.provisioned]

    @model_validator(mode="after")
    def _together(self) -> KubernetesArguments:
        rules.check_namespace(self.namespace)
        if self.join_secret is not None:
            rules.check_object_name("Secret", self.join_secret)
        if self.insecure and self.join_secret is not None:
            raise ValueError("insecure=True is for workers without encryption, which have no join_secret: leave out one of them")
        if self.provisioner == "monarchmesh" and self.workload == "jobset":
            raise ValueError("workload='jobset' is for provisioner='native': an operator makes a StatefulSet of each MonarchMesh")
        if self.idle_timeout is not None and self.restart_policy == "Always":
            workload = "a MonarchMesh" if self.provisioner == "monarchmesh" else "a StatefulSet"
            raise ValueError(
                f"idle_timeout frees nothing with {workload}, which starts workers again that end: take workload='job' or 'jobset'"
            )
        if self.attach_to is not None:
            if not self.attach_to.strip():
                raise ValueError("attach_to is empty")
            try:
                ChannelAddr(self.attach_to)
            except ValueError as error:
                raise ValueError(f"attach_to: {error}") from None
        for name, mesh in self.meshes.items():
            self._check_mesh(name, mesh)
        if self.workload == "jobset":
            _check_one_job_set(self.provisioned)
        return self

    def _check_mesh(self, name: str, mesh: MeshArguments) -> None:
        if name != mesh.name:
            raise ValueError(f"the mesh '{mesh.name}' is listed as '{name}'")
        if self.provisioner == "monarchmesh" and mesh.provisioned and len(name) > LONGEST_MONARCH_MESH:
            raise ValueError(
                f"mesh '{name}': the pods of a MonarchMesh have its name in a label, which allows {LONGEST_MONARCH_MESH} characters"
            )
        if mesh.pod_template is not None:
            try:
                templates.check_template(mesh.pod_template, mesh.port, self.restart_policy)
                if self.idle_timeout is not None and not templates.is_started_by_us(mesh.pod_template):
                    raise ValueError("idle_timeout is an option of `monarch worker`, and the pod_template has a command of its own")
            except (TypeError, ValueError) as error:
                raise type(error)(f"mesh '{name}': {error}") from None


def _check_one_job_set(meshes: list[MeshArguments]) -> None:
    """All meshes are one object, so their labels and annotations are."""
    for what in ("labels", "annotations"):
        found: dict[str, tuple[str, str]] = {}
        for mesh in meshes:
            for key, value in cast("dict[str, str]", getattr(mesh, what)).items():
                other, there = found.setdefault(key, (mesh.name, value))
                if there != value:
                    raise ValueError(
                        f"{what.removesuffix('s')} '{key}' is '{there}' for mesh '{other}' and '{value}' for mesh '{mesh.name}': "
                        "a JobSet has one value for all its meshes"
                    )


def checked(arguments: dict[str, Any]) -> KubernetesArguments:
    """The arguments as a model; `TypeError` or `ValueError` name the one that is wrong."""
    return validated(KubernetesArguments, arguments, "KubernetesJob")


def checked_mesh(arguments: dict[str, Any]) -> MeshArguments:
    """The same for those of `add_mesh`."""
    name = arguments.get("name")
    return validated(MeshArguments, arguments, f"mesh '{name}'" if isinstance(name, str) else "mesh")


def validated(model: type[_Model], arguments: dict[str, Any], title: str) -> _Model:
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        kind, where, what, first = problem_of(error)
        if where and not what.startswith(f"{where}: "):
            what = f"{where}: {what}"
        text = what if what.startswith(title) else f"{title}: {what}"
        raise kind(text if first["type"] == "value_error" else f"{text}, not {first['input']!r}") from None
