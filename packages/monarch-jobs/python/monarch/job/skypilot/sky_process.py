"""The program that drives SkyPilot, for any interpreter that has it: nothing of Monarch is imported here by its name.

Its arguments: SOCKET, and the file of the module of channels. A request is {"do": NAME, "with": {...}}; each has one answer, {"ok": ...} or
{"error": TEXT, "kind": CLASS}. The output of SkyPilot goes to standard error. The process ends with its client.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import re
import signal
import socket
import sys
from typing import Any

_TAIL_LINES = 30
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Sky:
    """The requests; `sky` is imported by the first."""

    def __init__(self) -> None:
        self._sky: Any = None

    @property
    def sky(self) -> Any:
        if self._sky is None:
            self._sky = importlib.import_module("sky")
        return self._sky

    def version(self) -> str:
        return str(self.sky.__version__)

    def launch(self, task: str, cluster: str, idle_minutes: int | None, down: bool) -> str:
        """Submits the task and gives the id of the request, which the API server works on."""
        found = self.sky.Task.from_yaml_str(task)
        # Autostop and down are settings of one option there: down without minutes would end the cluster with its first task.
        down = down and idle_minutes is not None
        return str(self.sky.launch(found, cluster_name=cluster, idle_minutes_to_autostop=idle_minutes, down=down))

    def exists(self, cluster: str) -> bool:
        """Whether there is a cluster of that name, in whatever state."""
        return self._cluster(cluster) is not None

    def withdraw(self, cluster: str) -> None:
        """Ends what a caller has launched that did not get the id of its request."""
        for known in self.sky.api_status(all_status=False, cluster_name=cluster):
            if known.cluster_name == cluster:
                self.sky.get(self.sky.api_cancel([known.request_id]))
        self.down(cluster, None)

    def request(self, request: str, cluster: str) -> dict[str, Any]:
        """How a launch is doing: `state` is `going`, `done` (with the number of the job) or `failed` (with why)."""
        known = self.sky.api_status([request])
        state = known[0].status if known else ""
        if state in ("PENDING", "RUNNING"):
            return {"state": "going", "detail": str(known[0].status_msg or "") or self._provisioning(cluster)}
        if not known:
            # The server keeps requests for a day.
            if self._cluster(cluster) is None:
                return {"state": "failed", "detail": "SkyPilot knows neither the launch nor the cluster any more"}
            jobs = self.sky.get(self.sky.job_status(cluster))
            return {"state": "done", "job": max((number for number in jobs if number is not None), default=None)}
        try:
            job, _ = self.sky.get(request)
        except Exception as error:
            return {"state": "failed", "detail": _words(error)}
        return {"state": "done", "job": job}

    def _provisioning(self, cluster: str) -> str:
        found = self._cluster(cluster)
        return str(found.get("init_status_reason") or found.get("last_event") or "") if found else ""

    def job(self, cluster: str, job: int | None) -> dict[str, Any]:
        """The states of the cluster and of the task on it; None where there is none."""
        found = self._cluster(cluster, refresh=True)
        if found is None:
            return {"cluster": None, "job": None}
        known = self.sky.get(self.sky.job_status(cluster, None if job is None else [job]))
        state = next(iter(known.values()), None)
        return {"cluster": _name(found["status"]), "job": None if state is None else _name(state)}

    def _cluster(self, cluster: str, refresh: bool = False) -> Any:
        mode = self.sky.StatusRefreshMode.AUTO if refresh else self.sky.StatusRefreshMode.NONE
        found = self.sky.get(self.sky.status([cluster], refresh=mode))
        return found[0] if found else None

    def ssh(self, cluster: str) -> dict[str, str]:
        """Has SkyPilot write what ssh needs for the nodes: the paths of that file and of the key; empty where there is none."""
        # The command does the same: the interface for programs has no such call.
        cli = importlib.import_module("sky.client.cli.command").cli
        cli.main(["status", cluster], standalone_mode=False)
        path = os.path.join(os.path.expanduser("~/.sky/generated/ssh"), cluster)
        if not os.path.isfile(path):
            return {"config": "", "key": ""}
        with open(path) as file:
            key = re.search(r"^\s*IdentityFile\s+(.+?)\s*$", file.read(), re.MULTILINE)
        # ssh takes `~` from the machine's user database, SkyPilot from HOME.
        return {"config": path, "key": os.path.expanduser(key[1]) if key else ""}

    def logs(self, cluster: str, job: int | None, lines: int = _TAIL_LINES) -> str:
        """The last lines that the task has printed, its set-up included."""
        out = io.StringIO()
        self.sky.tail_logs(cluster, job, follow=False, tail=lines, output_stream=out)
        return _COLOURS.sub("", out.getvalue())

    def down(self, cluster: str, request: str | None) -> None:
        """Ends a launch that still goes on, and the cluster; one that is not there is fine."""
        if request is not None:
            known = self.sky.api_status([request])
            if known and known[0].status in ("PENDING", "RUNNING"):
                self.sky.get(self.sky.api_cancel([request]))
        if self._cluster(cluster) is None:
            return
        try:
            self.sky.get(self.sky.down(cluster))
        except Exception as error:
            if type(error).__name__ != "ClusterDoesNotExist":
                raise


def _name(state: Any) -> str:
    return str(getattr(state, "value", state))


def _words(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    cause = error.__cause__
    return f"{text}\n{cause}" if cause is not None and str(cause) and str(cause) not in text else text


def _loaded(file: str) -> Any:
    """The module of this file: the standard library is all that it imports."""
    spec = importlib.util.spec_from_file_location("monarch_channel", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    # A caller in the background may ignore this signal, and SkyPilot's children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor, file = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    channels = _loaded(file)
    channel = channels.Channel(socket.socket(fileno=int(descriptor)))
    sky = Sky()
    while True:
        try:
            asked = channel.take().head
        except channels.ChannelError:  # the client has ended
            return
        try:
            answer: dict[str, Any] = {"ok": getattr(sky, asked["do"])(**asked["with"])}
        except (Exception, SystemExit) as error:
            answer = {"error": _words(error), "kind": type(error).__name__}
        channel.send(answer)


if __name__ == "__main__":
    main()
