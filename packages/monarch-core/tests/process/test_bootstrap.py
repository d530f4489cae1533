"""Functions that run in a proc before its actors, and the commands that start procs."""

from __future__ import annotations

import os
import sys
import warnings

import pytest
from fresh import lines, run
from mesh_actors import Probe

from monarch.actor import ActorError, BootstrapCommand, SpawnError, default_bootstrap_cmd, this_host
from monarch.config import configured


def started(command, *names):
    with this_host().spawn_procs(bootstrap_command=command) as mesh:
        return mesh.spawn("probe", Probe).environment.call_one(*names).get()


# ---- the function


def test_bootstrap_runs_in_every_proc_before_actors():
    def prepare():
        os.environ["PREPARED"] = str(os.getpid())

    with this_host().spawn_procs({"gpus": 2}, bootstrap=prepare) as mesh:
        probe = mesh.spawn("probe", Probe)
        assert mesh.initialized.get() is True
        pids = probe.pid.call().get()
        assert [v[0] for v in probe.environment.call("PREPARED").get().values()] == [str(p) for p in pids.values()]


def test_async_bootstrap():
    async def prepare():
        import asyncio

        await asyncio.sleep(0)
        os.environ["PREPARED"] = "async"

    with this_host().spawn_procs(bootstrap=prepare) as mesh:
        assert mesh.spawn("probe", Probe).environment.call_one("PREPARED").get() == ["async"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_failure_of_bootstrap_is_an_actor_error(kind):
    def fail():
        raise ValueError("no such device")

    async def fail_later():
        fail()

    mesh = this_host().spawn_procs({"gpus": 2}, bootstrap=fail if kind == "sync" else fail_later)
    with pytest.raises(ActorError, match="no such device") as caught:
        mesh.initialized.get()
    assert isinstance(caught.value.exception, ValueError)
    mesh.stop().get()


def test_unpicklable_bootstrap_is_refused_at_once():
    import threading

    lock = threading.Lock()
    with pytest.raises(TypeError, match="lock"):
        this_host().spawn_procs(bootstrap=lambda: lock)


def test_bootstrap_with_arguments_fails_with_a_type_error():
    mesh = this_host().spawn_procs(bootstrap=lambda missing: missing)
    with pytest.raises(ActorError, match="missing"):
        mesh.initialized.get()
    mesh.stop().get()


def test_error_during_bootstrap_for_testing():
    done = run(
        """
        from monarch.actor import ActorError, this_host
        mesh = this_host().spawn_procs()
        try:
            mesh.initialized.get()
        except ActorError as e:
            print("Error during bootstrap for testing" in str(e))
        """,
        env={"MONARCH_ERROR_DURING_BOOTSTRAP_FOR_TESTING": "1"},
    )
    assert lines(done.stdout) == ["True"]


# ---- the command


def test_value_object():
    command = BootstrapCommand("python", "shown", ["-c", "pass"], {"A": "1"}, False)
    assert (command.program, command.arg0, command.args, command.env, command.inherit_env) == (
        "python",
        "shown",
        ["-c", "pass"],
        {"A": "1"},
        False,
    )
    command.program = "other"
    assert command.program == "other"
    other = command.with_env({"A": "2", "B": None})
    assert (command.env, other.env) == ({"A": "1"}, {"A": "2", "B": None})
    assert (other.program, other.inherit_env) == ("other", False)


def test_default_command_is_this_interpreter():
    command = default_bootstrap_cmd()
    assert (command.program, command.env) == (sys.executable, {})
    assert started(command, "MONARCH_PROC_FDS") == [None]


def test_environment_of_a_command(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("GONE", "1")
    command = BootstrapCommand(sys.executable, env={"ADDED": "2", "GONE": None})
    assert started(command, "KEPT", "ADDED", "GONE") == ["1", "2", None]


def test_empty_environment(monkeypatch):
    monkeypatch.setenv("GONE", "1")
    command = BootstrapCommand(sys.executable, env={"ADDED": "2"}, inherit_env=False)
    assert started(command, "ADDED", "GONE", "PATH") == ["2", None, None]


def test_variables_that_count_before_the_start():
    with this_host().spawn_procs(bootstrap_command=BootstrapCommand(sys.executable, env={"PYTHONDEVMODE": "1"})) as mesh:
        probe = mesh.spawn("probe", Probe)
        assert probe.evaluate.call_one("sys.flags.dev_mode").get()
        # A spawn from the actor has a different environment than the zygote: it uses an interpreter of its own.
        hosts = probe.evaluate.call_one("__import__('monarch.actor').actor.this_host().spawn_procs(name='inner')").get()
        assert hosts.spawn("inner", Probe).evaluate.call_one("sys.flags.dev_mode").get()


def test_command_by_point_over_hosts_and_per_host():
    seen = []

    def command(point):
        seen.append(dict(point))
        return BootstrapCommand(sys.executable, env={"POINT": str(point)})

    hosts = this_host().flatten("hosts")
    with hosts.spawn_procs({"gpus": 2}, bootstrap_command=command) as mesh:
        found = mesh.spawn("probe", Probe).environment.call("POINT").get()
        assert [v[0] for v in found.values()] == ["{'hosts': 0/1, 'gpus': 0/2}", "{'hosts': 0/1, 'gpus': 1/2}"]
    assert seen == [{"hosts": 0, "gpus": 0}, {"hosts": 0, "gpus": 1}]


def test_command_holds_for_one_call_only():
    with this_host().spawn_procs(bootstrap_command=BootstrapCommand(sys.executable, env={"ONLY": "here"})) as mesh:
        probe = mesh.spawn("probe", Probe)
        assert probe.environment.call_one("ONLY").get() == ["here"]
    with this_host().spawn_procs() as mesh:
        assert mesh.spawn("probe", Probe).environment.call_one("ONLY").get() == [None]


def test_wrapper_that_ends_up_running_our_bootstrap(tmp_path):
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\nexport WRAPPED="$#"\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    assert started(BootstrapCommand(str(wrapper)), "WRAPPED") == ["2"]


def test_wrapper_that_waits_for_our_bootstrap(tmp_path):
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\ncode=$?\necho "ended with $code" > {tmp_path}/code\nexit $code\n')
    wrapper.chmod(0o755)
    assert started(BootstrapCommand(str(wrapper)), "MONARCH_PROC_FDS") == [None]
    assert (tmp_path / "code").read_text() == "ended with 0\n"


def test_arguments_of_upstream_0_7_start_our_bootstrap():
    command = BootstrapCommand(sys.executable, args=["-m", "monarch._src.actor.bootstrap_main"])
    with pytest.warns(DeprecationWarning, match="bootstrap"):
        assert started(command, "MONARCH_PROC_FDS") == [None]


def test_one_deprecation_warning_for_many_procs():
    command = BootstrapCommand(sys.executable, args=["-m", "x.actor.bootstrap_main"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with this_host().spawn_procs({"gpus": 3}, bootstrap_command=command) as mesh:
            assert mesh.initialized.get()
    assert [w.category for w in caught] == [DeprecationWarning]


def test_program_that_is_not_our_bootstrap():
    mesh = this_host().spawn_procs(bootstrap_command=BootstrapCommand("/bin/sh", args=["-c", "echo something else >&2; exit 3"]))
    with pytest.raises(SpawnError, match="1 of 1 procs did not start") as caught:
        mesh.initialized.get()
    text = str(caught.value)
    assert "/bin/sh -c" in text
    assert "non-zero code 3" in text
    assert "something else" in text
    assert caught.value.failure.reason.code == 3


def test_proc_that_is_not_ready_in_time():
    with configured(host_spawn_ready_timeout="200ms"):
        mesh = this_host().spawn_procs(bootstrap_command=BootstrapCommand("/bin/sh", args=["-c", "echo waiting; read never"]))
    # The program neither connects nor ends.
    assert isinstance(mesh.initialized.exception(), SpawnError)
    with configured(host_spawn_ready_timeout="200ms"):
        mesh = this_host().spawn_procs(bootstrap_command=BootstrapCommand("/bin/sleep", args=["1000"]))
    with pytest.raises(SpawnError, match=r"1 of 1 procs did not start[\s\S]*not ready after"):
        mesh.initialized.get()


def test_procs_start_in_a_removed_folder(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for method in ("auto", "exec"):
        with configured(spawn_method=method), this_host().spawn_procs() as mesh:
            assert mesh.initialized.get() is True


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (BootstrapCommand(""), ValueError, "program is empty"),
        (BootstrapCommand("/bin/a\0b"), ValueError, "program has a NUL byte"),
        (BootstrapCommand("/bin/a", env={"A": "\ud800"}), ValueError, r"env\['A'\] is '.ud800': it has a surrogate at position 0"),
        (BootstrapCommand(5), TypeError, "program is 5, which is not a string"),  # pyright: ignore
        (BootstrapCommand("true", args=["x", None]), TypeError, r"args\[1\] is None"),  # pyright: ignore
        (BootstrapCommand("true", env={"A": 5}), TypeError, r"env\['A'\] is 5"),  # pyright: ignore
        (BootstrapCommand("true", env={"A=B": "c"}), ValueError, "'A=B' cannot name a variable"),
        (lambda point: "true", TypeError, "gave 'true', which is not a BootstrapCommand"),
    ],
)
def test_malformed_command_is_refused_at_once(command, error, text):
    with pytest.raises(error, match=text):
        this_host().spawn_procs(bootstrap_command=command)


def test_program_whose_name_is_not_unicode_is_named():
    mesh = this_host().spawn_procs(bootstrap_command=BootstrapCommand("/no/such/\udc80"))
    with pytest.raises(SpawnError, match=r"cannot run /no/such/\\udc80: No such file"):
        mesh.initialized.get()
