"""Code sync to other hosts, which are processes here with directories of their own, and reloading."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import threading

import pytest
from worker_processes import Workers
from workspace_hosts import OtherHosts, Reader

from monarch._core.config import entry_points
from monarch._core.process.current import current_process
from monarch._core.sync import path as workspace_path
from monarch._core.sync import sync as workspace_sync
from monarch.actor import ActorError, SupervisionError, Workspace, attach_to_workers, endpoint, this_host
from monarch.extension import promise


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def source(tmp_path):
    made = tmp_path / "source"
    made.mkdir()
    return made


@pytest.fixture
def hosts(tmp_path):
    directories = [tmp_path / f"host{i}" for i in range(3)]
    for directory in directories:
        directory.mkdir()
    found = OtherHosts(directories)
    yield found
    found.stop()


def write(top, **modules):
    top.mkdir(exist_ok=True)
    for name, text in modules.items():
        (top / f"{name}.py").write_text(textwrap.dedent(text))


def trees(hosts, place="code"):
    found = []
    for directory in hosts.directories:
        top = directory / place
        found.append({str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file() and "__pycache__" not in p.parts})
    return found


def leftovers(hosts):
    return {p.name for d in hosts.directories for p in (d / ".monarch" / "code").iterdir()} - {"a", "b", "a.tree", "b.tree", "lock"}


def test_every_host_gets_what_changed(source, hosts, capfd):
    write(source, a="A = 1")
    write(source / "package", __init__="", b="B = 1")
    (source / ".gitignore").write_text("*.log\n")
    (source / "x.log").write_text("")
    workspace = Workspace({source: "code"}, env=None)
    hosts.sync(workspace)
    expected = {"a.py": b"A = 1", "package/__init__.py": b"", "package/b.py": b"B = 1", ".gitignore": b"*.log\n"}
    assert trees(hosts) == [expected] * 3
    write(source, a="A = 2")
    (source / "package/b.py").unlink()
    hosts.sync(workspace)
    hosts.sync(workspace)
    assert trees(hosts) == [{"a.py": b"A = 2", "package/__init__.py": b"", ".gitignore": b"*.log\n"}] * 3
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("workspace ")]
    assert lines[0].startswith(f"workspace {source} -> code: 4 files, ") and " to 3 hosts in " in lines[0]
    assert lines[1].startswith(f"workspace {source} -> code: 1 file, ")
    assert lines[2].startswith(f"workspace {source} -> code: 0 files, 0 B to 3 hosts in ")
    assert leftovers(hosts) == set()


def test_outdated_host_gets_the_missing_files(source, hosts):
    write(source, a="A = 1", b="B = 1")
    OtherHosts(hosts.directories[:1]).sync(Workspace({source: "code"}, env=None))
    write(source, a="A = 2")
    OtherHosts(hosts.directories[1:2]).sync(Workspace({source: "code"}, env=None))
    hosts.sync(Workspace({source: "code"}, env=None))
    assert trees(hosts) == [{"a.py": b"A = 2", "b.py": b"B = 1"}] * 3


def test_large_files_and_many(source, hosts, monkeypatch):
    monkeypatch.setattr(workspace_sync, "BATCH", 1000)
    for i in range(50):
        (source / f"f{i}").write_bytes(bytes([i]) * (i * 100))
    (source / "large").write_bytes(os.urandom(10_000))
    hosts.sync(Workspace({source: "code"}, env=None))
    assert trees(hosts) == [{p.name: p.read_bytes() for p in source.iterdir()}] * 3


def test_several_directories(source, tmp_path, hosts):
    write(source, a="A = 1")
    other = tmp_path / "other"
    write(other, b="B = 1")
    hosts.sync(Workspace({source: "x/one", other: "x/two"}, env=None))
    assert trees(hosts, "x/one") == [{"a.py": b"A = 1"}] * 3
    assert trees(hosts, "x/two") == [{"b.py": b"B = 1"}] * 3


def test_file_changed_during_the_sync_is_sent_anew(source, hosts, monkeypatch):
    write(source, a="A = 1")
    original = workspace_sync._parts
    calls = []

    def parts(digest, path):
        if not calls:
            (source / "a.py").write_text("A = 2, late")
        calls.append(path)
        return original(digest, path)

    monkeypatch.setattr(workspace_sync, "_parts", parts)
    hosts.sync(Workspace({source: "code"}, env=None))
    assert trees(hosts) == [{"a.py": b"A = 2, late"}] * 3


def test_endlessly_changing_file_is_an_error(source, hosts, monkeypatch):
    write(source, a="A = 1")
    hosts.sync(Workspace({source: "code"}, env=None))
    original = workspace_sync._parts

    def parts(digest, path):
        (source / "a.py").write_bytes(os.urandom(30))
        return original(digest, path)

    monkeypatch.setattr(workspace_sync, "_parts", parts)
    write(source, a="A = 2")
    with pytest.raises(RuntimeError, match=r"a\.py changes while it is read"):
        hosts.sync(Workspace({source: "code"}, env=None))
    assert trees(hosts) == [{"a.py": b"A = 1"}] * 3 and leftovers(hosts) == set()


def test_concurrent_syncs_leave_one_whole_tree(source, tmp_path, hosts):
    """Two directories go to the same place: each host ends up with one of them, complete."""
    other = tmp_path / "other"
    other.mkdir()
    for i in range(30):
        (source / f"f{i}").write_text("one")
        (other / f"f{i}").write_text("other")
    errors = []

    def sync(top, first):
        try:
            OtherHosts(hosts.directories, first).sync(Workspace({top: "code"}, env=None))
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=sync, args=(top, 100 * i + 1)) for i, top in enumerate([source, other] * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    wanted = [{p.name: p.read_bytes() for p in top.iterdir()} for top in (source, other)]
    assert all(tree in wanted for tree in trees(hosts)) and leftovers(hosts) == set()


def test_host_killed_during_a_sync_keeps_its_tree(source, hosts, monkeypatch, faults):
    write(source, a="A = 1")
    hosts.sync(Workspace({source: "code"}, env=None))
    write(source, a="A = 2")
    original = workspace_sync._parts

    def parts(digest, path):
        procs = hosts.__core__.spawned[-1].info.procs
        os.kill(dict(current_process().native.alive_procs())[procs[1]], 9)
        return original(digest, path)

    monkeypatch.setattr(workspace_sync, "_parts", parts)
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        hosts.sync(Workspace({source: "code"}, env=None))
    assert trees(hosts)[1] == {"a.py": b"A = 1"}
    monkeypatch.undo()
    hosts.sync(Workspace({source: "code"}, env=None))
    assert trees(hosts) == [{"a.py": b"A = 2"}] * 3 and leftovers(hosts) == set()


def test_cancelled(source, hosts, monkeypatch):
    write(source, a="A = 1")
    hosts.sync(Workspace({source: "code"}, env=None))
    write(source, a="A = 2")
    original = workspace_sync._parts

    async def main():
        loop = asyncio.get_running_loop()
        reached, cancelled, over = asyncio.Event(), threading.Event(), asyncio.Event()

        def parts(digest, path):
            loop.call_soon_threadsafe(reached.set)
            cancelled.wait()
            return original(digest, path)

        ends = workspace_sync.Sync.run

        def run(self):
            try:
                ends(self)
            finally:
                loop.call_soon_threadsafe(over.set)

        monkeypatch.setattr(workspace_sync, "_parts", parts)
        monkeypatch.setattr(workspace_sync.Sync, "run", run)
        task = asyncio.ensure_future(workspace_sync.sync_workspace(hosts, Workspace({source: "code"}, env=None), False, False))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        await over.wait()

    asyncio.run(main())
    monkeypatch.undo()
    assert trees(hosts) == [{"a.py": b"A = 1"}] * 3 and leftovers(hosts) == set()


def test_full_disk(source, tmp_path, small_disk):
    (tmp_path / "roomy").mkdir()
    hosts = OtherHosts([tmp_path / "roomy", small_disk])
    write(source, a="A = 1")
    workspace = Workspace({source: "code"}, env=None)
    hosts.sync(workspace)
    for i in range(10):
        (source / f"data{i}").write_bytes(os.urandom(100_000))
    with pytest.raises(ActorError) as caught:
        hosts.sync(workspace)
    text = str(caught.value)
    assert f"workspace on host {os.uname().nodename}: No space left on device" in text and str(small_disk) in text
    assert trees(hosts)[1] == {"a.py": b"A = 1"}
    assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize > 200_000
    for i in range(1, 10):
        (source / f"data{i}").unlink()
    hosts.sync(workspace)
    assert trees(hosts)[0] == trees(hosts)[1] and leftovers(hosts) == set()


def test_disk_that_is_full_at_the_switch(source, small_disk):
    """The files fit once, but not twice."""
    hosts = OtherHosts([small_disk])
    write(source, a="A = 1")
    workspace = Workspace({source: "code"}, env=None)
    hosts.sync(workspace)
    (source / "data").write_bytes(os.urandom(150_000))
    with pytest.raises(ActorError, match=r"No space left on device: '.*/disk/"):
        hosts.sync(workspace)
    assert trees(hosts) == [{"a.py": b"A = 1"}] and leftovers(hosts) == set()


def test_new_code_is_importable_at_once(source, hosts, monkeypatch):
    """The code is importable in existing procs and in later ones, at the position of the directory in `sys.path` here."""
    write(source, code_sync_a="def f():\n    return 1, __file__")
    write(source / "lib", code_sync_b="def f():\n    return 2, __file__")
    monkeypatch.syspath_prepend(str(source / "lib"))
    before = hosts.spawn_procs("before", by_command=True).spawn("reader", Reader)
    first = before.path.call().get().values()
    hosts.sync(Workspace({source: "code"}, env=None))
    for i, ((path, directory), (old, _)) in enumerate(zip(before.path.call().get().values(), first, strict=True)):
        top = hosts.directories[i] / "code"
        assert directory == str(hosts.directories[i])
        assert path.index(str(top / "lib")) == old.index(str(source / "lib")) and str(source / "lib") not in path
    # The directory is not on `sys.path` here, so it comes before installed packages. A later proc gets it with its set-up.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(source / "lib")])
    monkeypatch.setitem(workspace_path._mirrored, current_process().agent_uid, [(str(source), "code", False)])
    later = hosts.spawn_procs("later", by_command=True).spawn("reader", Reader)
    hosts.sync(Workspace({source: "code"}, env=None))
    for i, value in enumerate(later.call.call("code_sync_a", "f").get().values()):
        assert value == (1, str(hosts.directories[i] / "code/code_sync_a.py"))
    for i, value in enumerate(before.call.call("code_sync_b", "f").get().values()):
        assert value == (2, str(hosts.directories[i] / "code/lib/code_sync_b.py"))
    for directory, (path, _) in zip(hosts.directories, later.path.call().get().values(), strict=True):
        at = path.index(str(directory / "code"))
        assert path[at + 1].endswith("site-packages")


def test_reload_on_hosts(source, hosts):
    write(source, code_sync_base="VALUE = 1", code_sync_top="from code_sync_base import VALUE\ndef f():\n    return VALUE")
    workspace = Workspace({source: "code"}, env=None)
    hosts.sync(workspace)
    reader = hosts.spawn_procs("procs").spawn("reader", Reader)
    hosts.sync(workspace)
    assert reader.call.call("code_sync_top", "f").get().values() == [1, 1, 1]
    write(source, code_sync_base="VALUE = 2", code_sync_top="from code_sync_base import VALUE\ndef f():\n    return VALUE * 10")
    hosts.sync(workspace)
    assert reader.call.call("code_sync_top", "f").get().values() == [1, 1, 1]
    hosts.sync(workspace, auto_reload=True)
    assert reader.call.call("code_sync_top", "f").get().values() == [20, 20, 20]


class Spawner(Reader):
    @endpoint
    def spawn_here(self):
        self.reader = this_host().spawn_procs(name="inner").spawn("reader", Reader)
        self.reader.initialized.get()
        return self.reader


@pytest.mark.parametrize("kind", ["unix", "tls"])
def test_reload_in_procs_that_others_have_spawned(source, tmp_path, kind):
    """Every proc of the hosts reloads: also procs of another mesh of the same hosts, and those spawned by actors there; but not those of
    other hosts.
    """
    write(source, code_sync_far="def f():\n    return 1")
    workspace = Workspace({source: "code"}, env=None)
    with Workers(3, kind, env={**os.environ, "MONARCH_HOME": str(tmp_path / "home")}) as workers, workers.attach() as hosts:
        some = attach_to_workers(workers=workers.addresses[:2], **workers.trust())
        asyncio.run(hosts.sync_workspace(workspace))
        own = some.spawn_procs().spawn("reader", Reader)
        spawners = hosts.spawn_procs().spawn("spawner", Spawner)
        inner = [reader for _, reader in spawners.spawn_here.call().get().items()]
        readers = [own, spawners, *inner]
        assert {value for reader in readers for value in reader.call.call("code_sync_far", "f").get().values()} == {1}
        write(source, code_sync_far="def f():\n    return 222")
        asyncio.run(some.sync_workspace(workspace, auto_reload=True))
        found = [list(reader.call.call("code_sync_far", "f").get().values()) for reader in readers]
        assert found == [[222, 222], [222, 222, 1], [222], [222], [1]]
        # The sync does not wait for an ended proc.
        with pytest.raises(SupervisionError):
            own.slice(hosts=0).die.call_one().get()
        write(source, code_sync_far="def f():\n    return 3")
        asyncio.run(hosts.sync_workspace(workspace, auto_reload=True))
        found = [list(reader.call.call("code_sync_far", "f").get().values()) for reader in (spawners, *inner)]
        assert found == [[3, 3, 3], [3], [3], [3]]


@pytest.fixture
def local(source):
    """A process of this host that imports from a directory."""

    def prepare():
        sys.path.insert(0, str(source))

    with this_host().spawn_procs(bootstrap=prepare) as procs:
        yield procs.spawn("reader", Reader)


def reload(source):
    asyncio.run(this_host().sync_workspace(Workspace({source: "code"}, env=None), auto_reload=True))


def test_reload_here(source, local):
    write(
        source,
        code_sync_m="""
        COUNT = globals().get("COUNT", 0) + 1

        class Thing:
            def what(self):
                return "old"

        def f():
            return "old", COUNT
        """,
    )
    write(source, code_sync_n="COUNT = globals().get('COUNT', 0) + 1\ndef f():\n    return COUNT")
    reload(source)
    assert local.call.call_one("code_sync_m", "f").get() == ("old", 1)
    assert local.call.call_one("code_sync_n", "f").get() == 1
    local.keep.call_one("code_sync_m", "Thing").get()
    # The new text has the same size, and may have the same second.
    text = (source / "code_sync_m.py").read_text()
    (source / "code_sync_m.py").write_text(text.replace("old", "new"))
    assert local.call.call_one("code_sync_m", "f").get() == ("old", 1)
    reload(source)
    assert local.call.call_one("code_sync_m", "f").get() == ("new", 2)
    assert local.call.call_one("code_sync_n", "f").get() == 1
    # An instance keeps its class.
    assert local.ask_kept.call_one().get() == "old"
    local.keep.call_one("code_sync_m", "Thing").get()
    assert local.ask_kept.call_one().get() == "new"
    reload(source)
    assert local.call.call_one("code_sync_m", "f").get() == ("new", 2)


def test_module_that_cannot_be_reloaded_is_reported(source, local):
    write(source, code_sync_bad="def f():\n    return 1", code_sync_good="def f():\n    return 1")
    for module in ("code_sync_bad", "code_sync_good"):
        assert local.call.call_one(module, "f").get() == 1
    write(source, code_sync_bad="def f():\n    return 22\nraise ValueError('on purpose')", code_sync_good="def f():\n    return 22")
    for _ in range(2):  # the reload is tried again
        with pytest.raises(ActorError) as caught:
            reload(source)
        text = str(caught.value)
        assert caught.value.code == "reload_failed" and isinstance(caught.value.exception, ValueError)
        assert text.startswith("module code_sync_bad could not be reloaded; ValueError: on purpose at <root>.<anon> (")
        assert os.uname().nodename in text and 'code_sync_bad.py", line 3' in text
        assert local.call.call_one("code_sync_good", "f").get() == 22
    write(source, code_sync_bad="def f():\n    return 333")
    reload(source)
    assert local.call.call_one("code_sync_bad", "f").get() == 333
    write(source, code_sync_bad="def f(:")
    with pytest.raises(ActorError, match="SyntaxError"):
        reload(source)
    assert local.call.call_one("code_sync_bad", "f").get() == 333


def test_sync_without_changes_is_silent(source, capfd):
    asyncio.run(this_host().sync_workspace(Workspace.null(), auto_reload=True))
    asyncio.run(this_host().sync_workspace(Workspace({source: "code"}, env=None)))
    assert capfd.readouterr().out == ""


@pytest.fixture
def environment(tmp_path):
    made = tmp_path / "env"
    (made / "conda-meta").mkdir(parents=True)
    return made


def provide(monkeypatch, value):
    """Replaces the entry point of a wheel; None: no wheel has it."""
    found = value and entry_points.LoadedEntry("monarch.mesh", "push_environment", "files 1.0", "files:push", value)
    monkeypatch.setitem(entry_points._known, ("monarch.mesh", "push_environment"), found)


def test_environment_is_pushed_to_each_hosts_workspace(hosts, source, environment, monkeypatch, capfd):
    write(source, code_sync_env="X = 1")
    calls = []

    def push(mesh, path, targets):
        calls.append((mesh, path, targets))
        done = promise("the environment")
        done.set_result((7, 2048))
        return done.future

    provide(monkeypatch, push)
    places = [str(directory / ".environment") for directory in hosts.directories]
    for workspace, lines in ((Workspace({source: "code"}, env=environment), 2), (Workspace(None, env=environment), 1)):
        asyncio.run(workspace_sync.sync_workspace(hosts, workspace, True, False))
        assert calls.pop() == (hosts, str(environment), places) and not calls
        shown = capfd.readouterr().out.splitlines()
        assert len(shown) == lines and shown[-1].startswith(
            f"environment {environment} -> .environment: 7 files written, 2.0 KiB to 3 hosts"
        )
    assert trees(hosts)[0] == {"code_sync_env.py": b"X = 1"}


def test_environment_that_cannot_be_pushed_fails_the_sync(hosts, environment, monkeypatch):
    def push(mesh, path, targets):
        done = promise("the environment")
        done.set_exception(OSError(28, "no space", targets[1]))
        return done.future

    provide(monkeypatch, push)
    with pytest.raises(OSError, match="no space"):
        asyncio.run(workspace_sync.sync_workspace(hosts, Workspace(None, env=environment), True, False))


@pytest.mark.parametrize("file", ["pyvenv.cfg", "conda-meta/python-3.10.13-h955ad1f_0.json"])
def test_environment_of_another_python_is_refused_first(hosts, source, environment, monkeypatch, capfd, file):
    provide(monkeypatch, pytest.fail)
    (environment / file).write_text("home = /usr/bin\nversion = 3.10.13\n" if file == "pyvenv.cfg" else "{}")
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(ValueError, match=f"^{environment} is an environment of Python 3.10, and procs are of the client's Python {own}"):
        asyncio.run(workspace_sync.sync_workspace(hosts, Workspace({source: "code"}, env=environment), True, False))
    assert capfd.readouterr().out == "" and not any((directory / "code").exists() for directory in hosts.directories)


def test_environment_misuse(source, environment, monkeypatch):
    workspace = Workspace({source: "code"}, env=environment)
    provide(monkeypatch, None)
    with pytest.raises(NotImplementedError, match=r"sync_workspace\(conda=True\) needs .*monarch-fs"):
        asyncio.run(this_host().sync_workspace(workspace, conda=True))
    provide(monkeypatch, "no function")
    with pytest.raises(NotImplementedError, match="files 1.0: entry point 'push_environment' .* not a function"):
        asyncio.run(this_host().sync_workspace(workspace, conda=True))
    provide(monkeypatch, pytest.fail)
    with pytest.raises(ValueError, match="is no environment"):
        asyncio.run(this_host().sync_workspace(Workspace(None, env=source), conda=True))
    # Nothing is copied on the client's own host.
    asyncio.run(this_host().sync_workspace(workspace, conda=True))
    with pytest.raises(ValueError, match="the client's own host has no workspace"):
        this_host().with_python_executable("$WORKSPACE_DIR/.environment/bin/python").spawn_procs()


def test_misuse(source):
    with pytest.raises(TypeError, match="takes a Workspace, not str"):
        asyncio.run(this_host().sync_workspace(str(source)))
    with pytest.raises(NotADirectoryError, match="nowhere"):
        asyncio.run(this_host().sync_workspace(Workspace({source / "nowhere": "code"}, env=None)))
