"""Settings reach procs and what they spawn."""

from __future__ import annotations

import pytest
from fresh import lines, run
from mesh_actors import Probe

from monarch.actor import this_host
from monarch.config import configured


def value_in_proc(name):
    with this_host().spawn_procs() as mesh:
        return mesh.spawn("probe", Probe).setting.call_one(name).get()


@pytest.mark.parametrize("method", ["auto", "exec"])
@pytest.mark.parametrize(
    ("name", "value", "back"),
    [
        ("stop_grace_period", "90s", "1m 30s"),
        ("tail_log_lines", 7, 7),
        ("prefix_with_rank", False, False),
        ("mesh_orphan_timeout", None, None),
        ("rdma_max_chunk_size_mb", 3, 3),
        ("message_ttl_default", 9, 9),
    ],
)
def test_values_reach_procs(method, name, value, back):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an ignored setting warns once
        with configured(**{name: value, "spawn_method": method}):
            assert value_in_proc(name) == back


def test_change_applies_to_procs_created_afterwards():
    with this_host().spawn_procs() as before:
        probe = before.spawn("probe", Probe)
        old = probe.setting.call_one("tail_log_lines").get()
        with configured(tail_log_lines=old + 1):
            assert probe.setting.call_one("tail_log_lines").get() == old
            assert value_in_proc("tail_log_lines") == old + 1
        assert value_in_proc("tail_log_lines") == old


@pytest.mark.parametrize("name", ["log_dir", "log_filter", "tls_cert"])
def test_local_settings_stay_here(name):
    with configured(**{name: "debug" if name == "log_filter" else "/somewhere"}):
        assert value_in_proc(name) != "/somewhere"
        assert value_in_proc(name) != "debug"


def test_environment_wins_over_what_is_pushed():
    done = run(
        """
        import logging
        logging.disable(logging.WARNING)
        from mesh_actors import Probe
        from monarch.actor import this_host
        from monarch.config import configure, get_global_config
        configure(stop_grace_period="7s", cleanup_timeout="8s")
        probe = this_host().spawn_procs().spawn("probe", Probe)
        for name in ("stop_grace_period", "cleanup_timeout"):
            print(get_global_config()[name], probe.setting.call_one(name).get())
        """,
        env={"MONARCH_STOP_GRACE_PERIOD": "5s"},
    )
    assert lines(done.stdout) == ["5s 5s", "8s 8s"]


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MONARCH_TAIL_LOG_LINES", "environment variable MONARCH_TAIL_LOG_LINES is ignored: "),
        (
            "MONARCH_TAIL_LOG_LINE",
            "environment variable MONARCH_TAIL_LOG_LINE has no effect: the setting with the closest name is ",
        ),
    ],
)
def test_bad_variable_is_reported_only_by_client(variable, text):
    done = run(
        """
        from mesh_actors import Probe
        from monarch.actor import this_host
        this_host().spawn_procs({"gpus": 2}).spawn("probe", Probe).setting.call("tail_log_lines").get()
        """,
        env={variable: "many"},
    )
    (line,) = lines(done.stderr)
    assert line.startswith(text)


def test_setting_of_a_proc_reaches_its_own_procs():
    with configured(cleanup_timeout="4s", stop_grace_period="6s"):
        mesh = this_host().spawn_procs()
    with mesh:
        probe = mesh.spawn("probe", Probe)
        probe.evaluate.call_one("__import__('monarch.config').config.configure(stop_grace_period='9s')").get()
        assert probe.setting.call_one("stop_grace_period").get() == "9s"
        inner = probe.evaluate.call_one("__import__('monarch.actor').actor.this_host().spawn_procs(name='inner')").get()
        there = inner.spawn("probe", Probe)
        assert there.setting.call_one("stop_grace_period").get() == "9s"
        assert there.setting.call_one("cleanup_timeout").get() == "4s"


def test_runtime_layer_of_a_proc_is_its_own():
    with configured(tail_log_lines=5), this_host().spawn_procs() as mesh:
        probe = mesh.spawn("probe", Probe)
        assert probe.evaluate.call_one("__import__('monarch.config').config.get_runtime_config()").get() == {}
        probe.evaluate.call_one("__import__('monarch.config').config.clear_runtime_config()").get()
        assert probe.setting.call_one("tail_log_lines").get() == 5
