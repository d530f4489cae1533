"""Binding of procs to processors."""

from __future__ import annotations

import os

import pytest
from mesh_actors import Probe

from monarch._core.process import cpu_binding
from monarch.actor import SpawnError, this_host
from monarch.config import configured

ALLOWED = sorted(os.sched_getaffinity(0))
AFFINITY = "sorted(os.sched_getaffinity(0))"


@pytest.mark.parametrize("method", ["auto", "exec"])
def test_each_proc_gets_its_processors(method):
    first, last = ALLOWED[0], ALLOWED[-1]
    with configured(spawn_method=method):
        mesh = this_host().spawn_procs({"gpus": 2}, proc_bind=[{"cpus": str(first)}, {"cpus": f"{first},{last}"}])
    with mesh:
        found = mesh.spawn("probe", Probe).evaluate.call(AFFINITY).get()
        assert list(found.values()) == [[first], sorted({first, last})]


def test_bound_before_user_code_runs():
    def look():
        os.environ["SEEN"] = str(sorted(os.sched_getaffinity(0)))

    with this_host().spawn_procs(proc_bind=[{"cpus": str(ALLOWED[0])}], bootstrap=look) as mesh:
        assert mesh.spawn("probe", Probe).environment.call_one("SEEN").get() == [str([ALLOWED[0]])]


def test_threads_of_the_runtime_are_bound_too():
    per_thread = "{tuple(sorted(os.sched_getaffinity(int(t)))) for t in os.listdir('/proc/self/task')}"
    with this_host().spawn_procs(proc_bind=[{"cpus": str(ALLOWED[0])}]) as mesh:
        assert mesh.spawn("probe", Probe).evaluate.call_one(per_thread).get() == {(ALLOWED[0],)}


def test_binding_refused_by_the_kernel_fails_the_spawn():
    mesh = this_host().spawn_procs({"gpus": 2}, proc_bind=[{"cpus": str(ALLOWED[0])}, {"cpus": "4000"}])
    with pytest.raises(SpawnError, match="1 of 2 procs did not start") as caught:
        mesh.initialized.get()
    assert "4000" in str(caught.value)
    mesh.stop().get()


@pytest.mark.parametrize("value", ["", "a", "3-1", "-1", "1,,2", "1-", "0-99999999999"])
def test_bad_syntax_is_refused_in_the_caller(value):
    with pytest.raises(ValueError, match="invalid list of processors or nodes"):
        this_host().spawn_procs(proc_bind=[{"cpus": value}])


@pytest.mark.parametrize(("text", "expected"), [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), (" 1 , 2-3", {1, 2, 3}), ("5-5", {5})])
def test_syntax(text, expected):
    assert cpu_binding.parse_cpus(text) == expected


def test_empty_dict_binds_nothing():
    with this_host().spawn_procs(proc_bind=[{}]) as mesh:
        assert mesh.spawn("probe", Probe).evaluate.call_one(AFFINITY).get() == ALLOWED


class Calls:
    """Replaces the system calls by those of a machine with two nodes."""

    def __init__(self, monkeypatch, nodes):
        self.affinity = None
        self.memory = None
        monkeypatch.setattr(cpu_binding, "visible_nodes", lambda: nodes)
        monkeypatch.setattr(cpu_binding, "node_cpus", lambda chosen: {n * 10 + i for n in chosen for i in range(2)})
        monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: setattr(self, "affinity", set(cpus)))
        monkeypatch.setattr(cpu_binding, "_bind_memory", lambda chosen: setattr(self, "memory", chosen))


@pytest.mark.parametrize(
    ("options", "affinity", "memory"),
    [
        ({"cpunodebind": "1"}, {10, 11}, None),
        ({"cpunodebind": "0-1", "membind": "1"}, {0, 1, 10, 11}, {1}),
        ({"membind": "0"}, None, {0}),
        ({"physcpubind": "3", "cpus": "7"}, {3}, None),
        ({"cpus": "7"}, {7}, None),
    ],
)
def test_several_nodes(monkeypatch, options, affinity, memory):
    calls = Calls(monkeypatch, [0, 1])
    cpu_binding.bind(options)
    assert (calls.affinity, calls.memory) == (affinity, memory)


def test_one_node_ignores_options_of_nodes(monkeypatch):
    calls = Calls(monkeypatch, [0])
    cpu_binding.bind({"cpunodebind": "0", "cpus": "1"})
    assert (calls.affinity, calls.memory) == ({1}, None)
    cpu_binding.bind({"membind": "0"})
    assert calls.memory is None
