"""Hosts of tests: present in the block, gone afterwards, and code sync to them."""

from __future__ import annotations

import asyncio
import os
import select

import pytest
from fresh_script import Script
from mesh_actors import Probe
from workspace_hosts import Reader

from monarch.actor import Workspace
from monarch.actor.testing import local_hosts


def test_procs_on_each(capfd):
    with local_hosts(2, env={"ON_HOST": "yes", "HOME": None}) as hosts:
        assert hosts.sizes == {"hosts": 2}
        probe = hosts.spawn_procs({"gpus": 2}).spawn("probe", Probe)
        parents = probe.evaluate.call("os.getppid()").get().values()
        assert parents[0] == parents[1] != parents[2] == parents[3]
        assert probe.environment.call("ON_HOST", "HOME").get().values() == [["yes", None]] * 4
        workspaces = {value[0] for value in probe.environment.call("WORKSPACE_DIR").get().values()}
        assert len(workspaces) == 2
        fds = [os.pidfd_open(pid) for pid in {*parents, *probe.pid.call().get().values()}]
    for fd in fds:
        assert select.select([fd], [], [], 20)[0]
        os.close(fd)
    assert not any(os.path.exists(os.path.dirname(path)) for path in workspaces)


def test_async_and_shut_down_by_the_test():
    async def main():
        async with local_hosts(1) as hosts:
            probe = hosts.spawn_procs().spawn("probe", Probe)
            assert await probe.echo.call_one(5) == 5
            await hosts.shutdown()

    asyncio.run(main())


def test_local_host_that_cannot_start_is_an_error(capfd):
    with pytest.raises(RuntimeError, match="1 of 1 local hosts did not start"), local_hosts(1, env={"PYTHONHOME": "/nowhere"}):
        pass
    with pytest.raises(ValueError, match="at least one"):
        local_hosts(0)


@pytest.mark.parametrize("number", [9, 15])
def test_local_hosts_end_with_a_killed_test(number):
    script = Script(
        """
        from monarch.actor.testing import local_hosts
        with local_hosts(2) as hosts:
            hosts.spawn_procs({"gpus": 2}).initialized.get()
            say("ready")
            threading.Event().wait()
        """
    )
    script.until("ready")
    script.send(number)
    done = script.end()
    assert done.code == -number and done.left == []


def test_code_sync(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "synced_there.py").write_text("def f():\n    return 1, __file__\n")
    workspace = Workspace({source: "code"}, env=None)
    with local_hosts(2) as hosts:
        early = hosts.spawn_procs({"gpus": 2}).spawn("early", Reader)
        asyncio.run(hosts.sync_workspace(workspace))
        found = early.call.call("synced_there", "f").get().values()
        assert [number for number, _ in found] == [1] * 4 and len({file for _, file in found}) == 2
        assert all(file.endswith("/code/synced_there.py") and not file.startswith(str(source)) for _, file in found)
        (source / "synced_there.py").write_text("def f():\n    return 2, __file__\n")
        asyncio.run(hosts.sync_workspace(workspace, auto_reload=True))
        late = hosts.spawn_procs().spawn("late", Reader)
        for reader in (early, late):
            assert {number for number, _ in reader.call.call("synced_there", "f").get().values()} == {2}
        with pytest.raises(RuntimeError, match="owned HostMesh"):
            asyncio.run(hosts.slice(hosts=0).sync_workspace(workspace))
