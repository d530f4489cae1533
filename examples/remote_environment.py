"""Runs the processes of three hosts in an environment of the client that no host has.

A venv with NumPy is made here. Three hosts, whose Python lacks NumPy, mount it, and processes there run its interpreter and import NumPy.
Then a module of the environment is edited here: `refresh` shows it on all hosts.

    python examples/remote_environment.py

The hosts are workers on this machine. For root each has mounts, a home and a store of its own, as another machine would, and all mount at
one path; for other users, each host mounts at a path of its own. NumPy comes from the package index.
"""

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from monarch.actor import Actor, HostMesh, ProcMesh, attach_to_workers, endpoint
from monarch.fs import Mount, mount

HOSTS = 3
MODULE = "recipe"


class Environment(Actor):
    """The state of the environment in a process on a host."""

    @endpoint
    def numpy(self) -> str | tuple[str, str, float]:
        """Version, place, and milliseconds of the first import; or the reason why it cannot be imported."""
        begin = time.perf_counter()
        try:
            found = importlib.import_module("numpy")
        except ModuleNotFoundError as e:
            return str(e)
        return found.__version__, os.path.dirname(found.__file__ or ""), (time.perf_counter() - begin) * 1e3

    @endpoint
    def answer(self) -> str:
        """The present result of the module, which is loaded again if it was loaded before."""
        loaded = sys.modules.get(MODULE)
        module = importlib.reload(loaded) if loaded else importlib.import_module(MODULE)
        return module.answer()


def make_environment(folder: Path) -> Path | None:
    """A venv with NumPy and one more module; without the package index, with the NumPy of this interpreter. None if there is neither."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    argv = [sys.executable, "-m", "pip", "--python", f"{folder}/bin/python", "install", "--quiet", "--retries", "1", "numpy"]
    installed = subprocess.run(argv, capture_output=True, text=True)
    if installed.returncode:
        last = (installed.stderr.strip().splitlines() or ["pip has failed"])[-1]
        print(f"the package index has not given NumPy: {last}")
        try:
            found = distribution("numpy")
        except PackageNotFoundError:
            return None
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            shutil.copytree(str(found.locate_file(top)), packages / top, ignore=shutil.ignore_patterns("__pycache__"))
        print(f"offline: it has NumPy {found.version} of this interpreter")
    edit(packages / f"{MODULE}.py", "a first answer")
    return folder


def edit(module: Path, text: str) -> None:
    module.write_text(f"import numpy\n\n\ndef answer():\n    return f'{text}: {{numpy.arange(4).sum()}}'\n")


def paths_without_numpy(folder: Path) -> list[str]:
    """The module path of a host's Python: all packages of this interpreter but NumPy, by links."""
    found: list[str] = []
    for number, path in enumerate(path for path in sys.path if os.path.isdir(path)):
        if not os.path.isdir(os.path.join(path, "numpy")):
            found.append(path)
            continue
        (links := folder / str(number)).mkdir(parents=True)
        for name in os.listdir(path):
            if not name.startswith("numpy"):
                (links / name).symlink_to(os.path.join(path, name))
        found.append(str(links))
    return found


@contextlib.contextmanager
def three_hosts(folder: Path, *, own_mounts: bool) -> Generator[HostMesh]:
    """Workers of this machine. In real use they would be `monarch worker` on each host, or the hosts of a job."""
    paths = paths_without_numpy(folder / "packages")
    code = f"import sys; sys.path[:] = {paths!r}; from monarch.extension.cli import main; main()"
    addresses = [f"ipc://{folder}/worker-{number}" for number in range(HOSTS)]
    with contextlib.ExitStack() as ends:
        workers: list[subprocess.Popen[str]] = []
        for number, address in enumerate(addresses):
            home = folder / f"home-{number}"
            home.mkdir(mode=0o700)
            argv = [*(["unshare", "--mount"] if own_mounts else []), sys.executable, "-c", code, "worker", "--listen", address]
            variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"MONARCH_HOME": str(home)}
            worker = ends.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=variables))
            ends.callback(worker.kill)
            workers.append(worker)
        for worker in workers:
            assert worker.stdout is not None and worker.stdout.readline().startswith("listening")
        hosts = attach_to_workers(workers=addresses, name="hosts")
        yield hosts
        hosts.shutdown().get()


def stop(procs: ProcMesh) -> None:
    procs.stop().get()


def table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> None:
    own_mounts = os.geteuid() == 0 and shutil.which("unshare") is not None
    with contextlib.ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="environment-")))
        source = make_environment(folder / "source")
        if source is None:
            print("no NumPy here: connect this machine to a package index")
            return
        (packages,) = source.glob("lib/python*/site-packages")
        hosts = ends.enter_context(three_hosts(folder, own_mounts=own_mounts))

        without = hosts.spawn_procs().spawn("environment", Environment).numpy.call().get().values()
        # Hosts that share their mounts need a mount point each.
        meshes = [hosts] if own_mounts else [hosts.slice(hosts=slice(n, n + 1)) for n in range(HOSTS)]
        targets = [f"{folder}/environment-{n}" for n in range(len(meshes))]
        mounts: list[Mount] = [mount(mesh, source, target) for mesh, target in zip(meshes, targets, strict=True)]
        for mounted in mounts:
            ends.enter_context(mounted)

        def run() -> list[ProcMesh]:
            """New processes on all hosts, by the mounted interpreter."""
            started: list[ProcMesh] = []
            for mesh, target in zip(meshes, targets, strict=True):
                started.append(mesh.with_python_executable(f"{target}/bin/python").spawn_procs())
                # The processes hold the mount as long as they run.
                ends.callback(stop, started[-1])
            return started

        first = [procs.spawn("environment", Environment) for procs in run()]
        found = [row for actors in first for row in actors.numpy.call().get().values()]
        rows: list[tuple[str, ...]] = [("host", "without the mount", "numpy", "from", "import")]
        for number, (why, row) in enumerate(zip(without, found, strict=True)):
            if isinstance(row, str):
                raise SystemExit(f"host {number}: {row}")
            version, place, milliseconds = row
            rows.append((str(number), str(why), version, os.path.relpath(place, folder), f"{milliseconds:.0f} ms"))
        table(rows)
        before = [text for actors in first for text in actors.answer.call().get().values()]

        begin = time.perf_counter()
        edit(packages / f"{MODULE}.py", "a better answer")
        reports = [refreshing.get() for refreshing in [mounted.refresh() for mounted in mounts]]
        shown = time.perf_counter()
        after = [text for actors in first for text in actors.answer.call().get().values()]
        answered = time.perf_counter()
        again = [text for procs in run() for text in procs.spawn("environment", Environment).answer.call().get().values()]
        sent = sum(report.bytes_sent for report in reports)
        print(f"\nthe edit is on {HOSTS} hosts after {(shown - begin) * 1e3:.0f} ms, with {sent} bytes")
        print(f"the new answers are here after {(answered - begin) * 1e3:.0f} ms\n")
        numbers = map(str, range(HOSTS))
        table([("host", "before", "after the edit", "new processes"), *zip(numbers, before, after, again, strict=True)])
        assert all("better" in text for text in (*after, *again)) and not any("better" in text for text in before)


if __name__ == "__main__":
    main()
