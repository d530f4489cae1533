"""The plug-in for TorchX, built, unpacked beside the real TorchX, and used by its commands."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES

from tools.project import ROOT

sys.path.append(str(ROOT / "packages" / "monarch-core" / "tests" / "process"))
from eventually import eventually
from plugin_site import unpack_wheel
from worker_processes import Workers

pytestmark = pytest.mark.timeout(90)  # each command imports TorchX
PLUGIN = ROOT / "plugins" / "torchx-monarch"
ENTRIES = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"]["torchx.schedulers"]
COMPONENT = '''
from torchx.specs import AppDef, Role, macros


def app(code: str, count: int = 2, retries: int = 0) -> AppDef:
    """An application whose replicas run code of the shell.

    Args:
        code: the code
        count: replicas
        retries: retries
    """
    words = [macros.replica_id, macros.app_id, macros.img_root, macros.rank0_env]
    role = Role("node", image="", entrypoint="sh", args=["-c", code, *words], env={"WORD": "from " + macros.app_id}, num_replicas=count)
    role.max_retries = retries
    return AppDef("app", [role])
'''
# Each replica writes its pid and stays. TorchX makes one $ of two.
STAY = "echo $$$$ > pid.$0.new; mv pid.$0.new pid.$0; exec sleep 1000"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2, "tls") as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the plug-in, unpacked."""
    return unpack_wheel(PLUGIN, tmp_path_factory.mktemp("site"))


class Commands:
    """`torchx` in a directory with a component."""

    def __init__(self, site: Path, folder: Path, workers: Workers) -> None:
        self.folder = folder
        self.cfg = f"workers={','.join(workers.addresses)},secret_file={workers.secret}"
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "MONARCH_HOME": str(folder / "home"),
            "MONARCH_MESH_ORPHAN_TIMEOUT": "1s",
        }
        (folder / "component.py").write_text(COMPONENT)

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "torchx"), *words]
        return subprocess.run(command, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def run(self, *words: str, cfg: str | None = None, more: tuple[str, ...] = ()) -> str:
        """The handle of the application."""
        options = ["-cfg", self.cfg if cfg is None else cfg] if cfg != "" else []
        done = self("run", "-s", "monarch", *options, *more, "component.py:app", *words)
        assert done.stdout.startswith("monarch://torchx/app-"), done.stderr
        return done.stdout.strip()

    def state(self, handle: str) -> dict[str, Any]:
        return json.loads((self.folder_of(handle) / "state.json").read_text())

    def folder_of(self, handle: str) -> Path:
        return self.folder / "home" / "torchx" / handle.rpartition("/")[2]

    def ended(self, handle: str) -> str:
        """The output of `torchx status` when the application has ended."""
        lock = self.folder_of(handle) / "lock"

        def is_free() -> bool:
            with open(lock) as f:
                try:
                    fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
            return True

        eventually("the end of the keeper", is_free)
        return self("status", handle).stdout

    def pids(self) -> list[int]:
        """Those of both replicas of STAY."""
        paths = [self.folder / f"pid.{k}" for k in range(2)]
        eventually("both replicas run", lambda: all(path.exists() for path in paths))
        return [int(path.read_text()) for path in paths]


@pytest.fixture
def torchx(site: Path, tmp_path: Path, workers: Workers) -> Commands:
    return Commands(site, tmp_path, workers)


def is_over(pids: list[int]) -> Callable[[], bool]:
    return lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_replicas_run_on_hosts_with_logs(torchx: Commands) -> None:
    handle = torchx.run("--code", 'echo "$0 $1 $2 $3"; echo "$WORD $TORCHX_RANK0_HOST" >&2', more=("--wait",))
    app = handle.rpartition("/")[2]
    assert "State: SUCCEEDED" in torchx("status", handle).stdout
    assert handle in torchx("list", "-s", "monarch").stdout
    read = [torchx("log", "--streams", stream, f"{handle}/node/{k}").stdout for k in range(2) for stream in ("stdout", "stderr")]
    out = [f"node/{k} {k} {app} {torchx.folder} TORCHX_RANK0_HOST\n" for k in range(2)]
    err = [f"node/{k} from {app} 127.0.0.1\n" for k in range(2)]
    assert read == [out[0], err[0], out[1], err[1]]
    assert sorted(torchx("log", "-t", handle).stdout.splitlines(keepends=True)) == sorted(out + err)
    assert torchx.folder_of(handle).stat().st_mode & 0o777 == 0o700


def test_failing_replica_ends_application_with_reason(torchx: Commands) -> None:
    fail = 'while [ ! -e pid.0 ]; do sleep 0.01; done; echo "no data" >&2; echo "[5]" > $TORCHELASTIC_ERROR_FILE; exit 3'
    code = f"if [ $0 = 1 ]; then {fail}; fi; {STAY}"
    handle = torchx.run("--code", code)
    said = torchx.ended(handle)
    assert "State: FAILED" in said and "node/1 on 127.0.0.1: exit code 3\nno data" in said and "Error Msg: [5]" in said, said
    assert [replica[0] for replica in torchx.state(handle)["replicas"]["node"]] == ["CANCELLED", "FAILED"]
    assert is_over([int((torchx.folder / "pid.0").read_text())])()
    assert "no-such-program" in torchx.ended(torchx.run("--code", "exec no-such-program", "--count", "1"))


def test_cancel_ends_the_processes(torchx: Commands) -> None:
    handle = torchx.run("--code", STAY)
    pids = torchx.pids()
    assert torchx("cancel", handle).returncode == 0
    assert torchx("cancel", handle).returncode == 0
    assert "State: CANCELLED" in torchx.ended(handle)
    assert is_over(pids)()


def test_killed_keeper_leaves_no_processes(torchx: Commands) -> None:
    handle = torchx.run("--code", STAY)
    pids = torchx.pids()
    os.kill(json.loads((torchx.folder_of(handle) / "lock").read_text())["pid"], signal.SIGKILL)
    said = torchx.ended(handle)
    assert "State: FAILED" in said and "the process that kept the application has ended" in said
    eventually("the end of the replicas", is_over(pids))


def test_failure_repeats_the_application(torchx: Commands) -> None:
    # Replicas that start for the second time succeed. At first, one stays, and the other one fails after that.
    fail = "while [ ! -e pid.0 ]; do sleep 0.01; done; exit 1"
    code = f"echo >> starts.$0; if [ $(cat starts.$0 | wc -l) = 2 ]; then exit 0; elif [ $0 = 1 ]; then {fail}; fi; {STAY}"
    said = torchx.ended(torchx.run("--code", code, "--retries", "1"))
    assert "State: SUCCEEDED" in said and "Num Restarts: 1" in said, said


def test_hosts_of_current_job_run_replicas(torchx: Commands) -> None:
    (torchx.folder / "mine.py").write_text('from monarch.job import ProcessJob\njob = ProcessJob({"a": 1, "b": 1})\n')
    monarch = [sys.executable, "-c", "from monarch._core.cli import main; main()"]
    subprocess.run([*monarch, "apply", "mine.job"], cwd=torchx.folder, env=torchx.env, check=True, capture_output=True)
    try:
        handle = torchx.run("--code", "echo $MONARCH_SIZE_HOSTS", "--count", "1", cfg="mesh=b")
        assert "State: SUCCEEDED" in torchx.ended(handle)
        said = torchx.ended(torchx.run("--code", "true", cfg=""))
        assert "the application has 2 replicas, and there are 1 hosts" in said
    finally:
        subprocess.run([*monarch, "kill"], cwd=torchx.folder, env=torchx.env, check=True, capture_output=True)


def test_wrong_options_are_named(torchx: Commands) -> None:
    for cfg, option, reason in (
        ("", "workers", "no such job"),
        ("secret_file=x", "secret_file", "belongs to 'workers'"),
        ("workers=nowhere", "workers", "invalid address: nowhere"),
        ("workers=tcp://a:1,secret_file=missing", "secret_file", "there is no file"),
        ("workers=tcp://a:1,mesh=b", "mesh", "belongs to the current job"),
    ):
        done = torchx("run", "-s", "monarch", "-cfg", cfg, "component.py:app", "--code", "true")
        assert done.returncode == 1 and f"option '{option}': " in done.stderr and reason in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert not (torchx.folder / "home" / "torchx").exists()


def test_other_schedulers_stay_known() -> None:
    own = {name: f"{module}:create_scheduler" for name, module in DEFAULT_SCHEDULER_MODULES.items()}
    assert {**own, "monarch": "torchx_monarch:create_scheduler"} == ENTRIES
