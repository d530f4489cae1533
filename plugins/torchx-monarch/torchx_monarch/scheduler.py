"""The scheduler: what TorchX asks, answered from the directories of the applications."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, List  # noqa: UP035

from torchx.schedulers.api import (  # pyright: ignore[reportMissingTypeStubs]
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
    filter_regex,
)
from torchx.schedulers.ids import make_unique  # pyright: ignore[reportMissingTypeStubs]
from torchx.specs import (  # pyright: ignore[reportMissingTypeStubs]
    NONE,
    AppDef,
    AppDryRunInfo,
    AppState,
    InvalidRunConfigException,
    ReplicaStatus,
    Role,
    RoleStatus,
    macros,
    runopts,
)

from monarch.actor import ChannelAddr
from monarch.job import JobError, job_load
from torchx_monarch.application import Application

_STREAMS = {None: ("stdout", "stderr"), Stream.COMBINED: ("stdout", "stderr"), Stream.STDOUT: ("stdout",), Stream.STDERR: ("stderr",)}
_INTERVAL_S = 0.1


class MonarchScheduler(Scheduler[dict[str, Any]]):
    """Runs each replica on a host of its own: on `workers`, or on the hosts of the current job of the directory."""

    def __init__(self, session_name: str) -> None:
        super().__init__("monarch", session_name)

    def _run_opts(self) -> runopts:
        opts = runopts()
        addresses = List[str]  # noqa: UP006 (what TorchX compares types with)
        opts.add("workers", type_=addresses, default=None, help="addresses of `monarch worker`, instead of the hosts of the current job")
        opts.add("secret_file", type_=str, default=None, help="the file with the secret of the workers")
        opts.add(
            "mesh", type_=str, default=None, help="the mesh of the current job whose hosts run the application; by default the first one"
        )
        opts.add("log_dir", type_=str, default=None, help="a directory that hosts and this machine share; by default in MONARCH_HOME")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: dict[str, Any]) -> AppDryRunInfo[dict[str, Any]]:
        workers, secret = _checked_hosts(cfg)
        app_id = make_unique(re.sub(r"[^\w.-]", "-", app.name))
        log_dir = os.path.join(os.path.abspath(cfg["log_dir"]), app_id) if cfg.get("log_dir") else str(Application(app_id).folder)
        request = {
            "app_id": app_id,
            "workers": workers,
            "secret_file": secret,
            "mesh": cfg.get("mesh"),
            "log_dir": log_dir,
            "roles": [_request(role, app_id) for role in app.roles],
        }
        return AppDryRunInfo(request, lambda request: json.dumps(request, indent=2))

    def _validate(self, app: AppDef, scheduler: str) -> None:
        """Roles without resources are run too: the hosts are there already."""

    def schedule(self, dryrun_info: AppDryRunInfo[dict[str, Any]]) -> str:
        app_id: str = dryrun_info.request["app_id"]
        Application(app_id).start(dryrun_info.request)
        return app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        app = Application(app_id)
        request = app.read("request.json")
        if not request:
            return None
        found = app.state()
        errors = [
            _error_file(Path(request["log_dir"], name, str(k), "error.json"))
            for name, replicas in found["replicas"].items()
            for k, (state, _) in enumerate(replicas)
            if state == "FAILED"
        ]
        roles = [
            RoleStatus(name, [ReplicaStatus(k, AppState[state], name, host) for k, (state, host) in enumerate(replicas)])
            for name, replicas in found["replicas"].items()
        ]
        return DescribeAppResponse(
            app_id,
            AppState[found["state"]],
            num_restarts=found["attempt"],
            msg=found["message"] or NONE,
            structured_error_msg=next(iter(errors), NONE),
            roles_statuses=roles,
            roles=[Role(role["name"], role["workdir"], num_replicas=len(role["replicas"])) for role in request["roles"]],
        )

    def list(self) -> list[ListAppResponse]:
        return [ListAppResponse(app.id, AppState[app.state()["state"]]) for app in Application.all()]

    def _cancel_existing(self, app_id: str) -> None:
        Application(app_id).cancel()

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """The lines of the last attempt; `since` and `until` are ignored, as lines have no times."""
        app = Application(app_id)
        request = app.read("request.json")
        replicas = {role["name"]: len(role["replicas"]) for role in request.get("roles", ())}
        if not 0 <= k < replicas.get(role_name, 0):
            raise ValueError(f"{app_id} has no replica {role_name}/{k}; its roles and replicas: {replicas or 'none'}")
        paths = [Path(request["log_dir"], role_name, str(k), f"{stream}.txt") for stream in _STREAMS[streams]]
        lines = _lines(paths, app if should_tail else None)
        return filter_regex(regex, lines) if regex else lines


def _checked_hosts(cfg: dict[str, Any]) -> tuple[list[str] | None, str | None]:
    """The options `workers` and `secret_file`."""
    workers, secret = cfg.get("workers"), cfg.get("secret_file")
    if not workers:
        if secret:
            raise _invalid(cfg, "secret_file", "it belongs to 'workers', which is missing")
        try:
            job_load()
        except JobError as e:
            raise _invalid(cfg, "workers", f"without it, the current job of the directory is used: {e}") from e
        return None, None
    if cfg.get("mesh"):
        raise _invalid(cfg, "mesh", "it belongs to the current job, and 'workers' replaces that")
    for address in workers:
        try:
            ChannelAddr(address)
        except ValueError as e:
            raise _invalid(cfg, "workers", str(e)) from e
    if secret:
        secret = os.path.abspath(os.path.expanduser(secret))
        if not os.path.isfile(secret):
            raise _invalid(cfg, "secret_file", f"there is no file {secret}")
    return workers, secret


def _invalid(cfg: dict[str, Any], option: str, reason: str) -> InvalidRunConfigException:
    # The commands of TorchX print the name of the option and not the reason.
    logging.getLogger(__name__).error("option '%s': %s", option, reason)
    return InvalidRunConfigException(f"option '{option}': {reason}", option, cfg)


def _request(role: Role, app_id: str) -> dict[str, Any]:
    """A role with the command and the environment of each replica."""
    workdir = role.image if os.path.isabs(role.image) and os.path.isdir(role.image) else os.getcwd()
    replicas: list[tuple[list[str], dict[str, str]]] = []
    for k in range(role.num_replicas):
        own = macros.Values(img_root=workdir, app_id=app_id, replica_id=str(k), rank0_env="TORCHX_RANK0_HOST").apply(role)
        replicas.append(([own.entrypoint, *own.args], own.env))
    return {"name": role.name, "workdir": workdir, "max_retries": role.max_retries, "replicas": replicas}


def _error_file(path: Path) -> str:
    """What torchelastic has written about a failure, as JSON."""
    try:
        return json.dumps(json.loads(path.read_text()))
    except (OSError, ValueError):
        return NONE


def _lines(paths: list[Path], app: Application | None) -> Iterator[str]:
    """The lines of files, up to their ends; with an application until it has ended."""
    positions, partial = [0] * len(paths), [b""] * len(paths)
    while True:
        is_over = app is None or not app.runs()
        for i, path in enumerate(paths):
            try:
                with open(path, "rb") as f:
                    if f.seek(0, os.SEEK_END) < positions[i]:  # a new attempt
                        positions[i], partial[i] = 0, b""
                    f.seek(positions[i])
                    for line in f:
                        positions[i] += len(line)
                        partial[i] += line
                        if line.endswith(b"\n"):
                            yield partial[i].decode(errors="replace")
                            partial[i] = b""
            except FileNotFoundError:
                pass
            if is_over and partial[i]:
                yield partial[i].decode(errors="replace")
        if is_over:
            return
        time.sleep(_INTERVAL_S)


def create_scheduler(session_name: str, **parameters: object) -> MonarchScheduler:
    """The scheduler, as TorchX makes it; parameters of other schedulers are ignored."""
    return MonarchScheduler(session_name)
