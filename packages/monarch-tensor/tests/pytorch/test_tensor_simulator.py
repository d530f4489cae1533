"""The simulator: programs without workers, their costs, traces and graphs."""

import gc
import json
from pathlib import Path

import pytest
import torch

from monarch import tensor as mt
from monarch.actor import Actor, endpoint, this_proc
from monarch.actor.testing import Universe, patch_tensor_engine
from monarch.tensor import RemoteException, Stream, TensorMeshError, fetch_shard, inspect, remote, set_meta
from monarch.tensor.simulator import CostModel, Link, Simulator, estimate, simulated
from monarch.tensor.simulator.controller import SimulatedController
from monarch.tensor.simulator.costs import flops_of

pytestmark = pytest.mark.timeout(180)

SNAPSHOT = Path(__file__).parent / "simulator_trace.json"

# A microsecond for each kernel, a byte each nanosecond, a message in ten microseconds: times that add up by hand.
PLAIN = CostModel(
    memory_bandwidth=1e9,
    flops=1e9,
    half_flops=2e9,
    launch=1e-6,
    inside=Link(1e9, 10e-6),
    between=Link(1e8, 100e-6),
    controller=Link(1e9, 50e-6),
    function=7e-6,
)


def simulator(hosts=1, gpus=2, **options):
    return Simulator(hosts, gpus, costs=PLAIN, **options)


def us(seconds):
    return round(seconds * 1e6, 6)


def step(mesh, steps=2):
    """A bit of everything."""
    beside = Stream("beside")
    weight = torch.ones(16, 16)
    for _ in range(steps):
        x = mesh.rank("gpu") + torch.ones(8, 16)
        y = torch.mm(x, weight)
        theirs, borrow = beside.borrow(y, mutable=True)
        with beside.activate():
            theirs.reduce_("gpu")
        weight.mul_(2)
        borrow.drop()
        y.add_(1)
    first = y.slice_mesh(gpu=0).to_mesh(mesh)
    only = y.reduce("gpu", "stack")
    inspect(only)
    return first, only


def test_trace_of_a_program_equals_the_snapshot():
    sim = simulator(2, 2)
    with sim.mesh.activate():
        step(sim.mesh)
    found = sim.trace()
    assert found == SNAPSHOT.read_text(encoding="utf-8")
    events = json.loads(found)["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {f"rank {i}" for i in range(4)}


@pytest.mark.parametrize("mode", ["stream_only", "everything"])
def test_equal_programs_have_equal_traces(mode):
    def run(before):
        # Numbers of the first program, garbage, and the time are no part of it.
        garbage = [[] for _ in range(before)]
        for g in garbage:
            g.append(g)
        sim = simulator(2, 2, trace_mode=mode, group_workers=True, build_ir=True)
        with sim.mesh.activate():
            model = torch.nn.Linear(16, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                model(torch.ones(8, 16)).sum().backward()
                model.weight.grad.reduce_(("host", "gpu"), "avg")
                optimizer.step()
                optimizer.zero_grad()
            kept = step(sim.mesh)
        return sim.trace(), json.dumps(sim.export_ir()), kept

    first = run(0)
    assert run(5_000)[:2] == first[:2]


def test_operators_take_launches_bytes_and_operations():
    sim = simulator(1, 1)
    with sim.mesh.activate():
        x = torch.ones(1000)  # 4,000 bytes written: 1 + 4 us
        assert us(sim.estimate().seconds) == 5
        y = x * 2  # 4,000 read, 4,000 written: 1 + 8 us
        assert us(sim.estimate().seconds) == 14
        y.view(10, 100).t()  # nothing
        assert us(sim.estimate().seconds) == 14
        y.add_(1)  # 4,000 read and written
        assert us(sim.estimate().seconds) == 23
        a = torch.empty(100, 100)  # memory only
        assert us(sim.estimate().seconds) == 23
        a @ a  # 2,000,000 operations: 2,000 us, and not 120 us for the bytes
        assert us(sim.estimate().seconds) == 2024
        half = torch.empty(100, 100, dtype=torch.bfloat16)
        half @ half
        assert us(sim.estimate().seconds) == 3025
        torch.tensor([1.0] * 1000)  # from the controller: 50 + 4 us
        assert us(sim.estimate().seconds) == 3079
        inspect(x)
        assert us(sim.estimate().seconds) == 3133
        remote(lambda a: a, propagate=lambda a: a)(x)
        assert us(sim.estimate().seconds) == 3140
        totals = sim.estimate().operators["aten.mm.default"]
        assert (totals.commands, us(totals.seconds), totals.bytes) == (2, 3002, 180_000)


def test_operations_of_convolutions_and_attention():
    sim = simulator(1, 1)
    with sim.mesh.activate():
        x = torch.ones(2, 3, 8, 8, requires_grad=True)
        conv = torch.nn.Conv2d(3, 5, 3)
        conv(x).sum().backward()
        torch.nn.functional.conv_transpose2d(torch.ones(2, 3, 4, 4), torch.ones(3, 5, 2, 2))
        q, k = torch.ones(2, 4, 16, 8), torch.ones(2, 4, 32, 8)
        torch.nn.functional.scaled_dot_product_attention(q, k, k)
        torch.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5))
    found = {}
    for entry in sim.mesh.controller.log:
        if not isinstance(entry.work, str) and flops_of(entry.work):
            found.setdefault(entry.work.name.split(".")[1], []).append(flops_of(entry.work))
    forward = 2 * (2 * 5 * 6 * 6) * (3 * 3 * 3)
    assert found["convolution"] == [forward, 2 * (2 * 3 * 4 * 4) * (5 * 2 * 2)]
    assert found["convolution_backward"] == [2 * forward]
    assert found["baddbmm"] == [2 * 2 * 3 * 4 * 5]
    attention = [n for name, numbers in found.items() if "attention" in name for n in numbers]
    assert attention == [2 * (2 * 4 * 16) * 32 * (8 + 8)]


@pytest.mark.parametrize(
    ("arguments", "ranks", "expected"),
    [
        ({}, 4, 1 + 6 * (10 + 1)),  # all-reduce: 2 (n - 1) parts of 1,000 bytes
        ({"reduction": "stack"}, 4, 1 + 3 * (10 + 4)),
        ({"scatter": True}, 4, 1 + 3 * (10 + 1)),
        ({"reduction": "stack", "scatter": True}, 4, 1 + 3 * (10 + 1)),
        ({}, 1, 1),
    ],
)
def test_collectives_are_rings(arguments, ranks, expected):
    sim = simulator(1, ranks)
    with sim.mesh.activate():
        x = torch.empty(ranks, 250 * 4 // ranks)
        x.reduce("gpu", **arguments)
    assert us(sim.estimate().seconds) == expected


def test_links_between_hosts_are_slower():
    sim = simulator(2, 2)
    with sim.mesh.activate():
        x = torch.empty(1000)
        x.reduce("gpu")
        assert us(sim.estimate().seconds) == 1 + 2 * (10 + 2)
        x.reduce("host")
        assert us(sim.estimate().seconds) == 25 + 1 + 2 * (100 + 20)
        x.reduce("gpu", mesh=sim.mesh.slice(gpu=1))
        assert us(sim.estimate().seconds) == 266 + 1 + 10 + 4
    assert set(sim.estimate().collectives) == {"reduce sum over gpu", "reduce sum over host"}


def test_moves_are_trees():
    sim = simulator(1, 4)
    with sim.mesh.activate():
        x = torch.empty(1000)
        x.slice_mesh(gpu=0).to_mesh(sim.mesh.slice(gpu=2))
        found = sim.estimate()
        # Ranks 0 and 2 take part in it, the others continue.
        assert found.members == [[0], [1, 3], [2]]
        assert [us(found.end.get((g, 0), 0)) for g in range(3)] == [15, 0, 15]
        x.slice_mesh(gpu=0).to_mesh(sim.mesh)
        # The rank itself and three others: two rounds.
        assert us(sim.estimate().seconds) == 15 + 1 + 2 * 14


def test_overrides_by_name():
    def estimated(**overrides):
        sim = Simulator(1, 2, costs=CostModel(launch=1e-6, memory_bandwidth=1e9, overrides=overrides))
        with sim.mesh.activate():
            x = torch.empty(1000)
            y = x * 2
            y.reduce("gpu")
            remote(named, propagate=lambda a: a)(y)
        return us(sim.estimate().seconds)

    every = {"reduce": 5e-6, "named": 3e-6}
    assert estimated(**every) == 9 + 5 + 3
    assert estimated(**every, **{"aten.mul": 20e-6}) == 20 + 5 + 3
    assert estimated(**every, **{"aten.mul.Tensor": lambda work: 1e-9 * work.inputs[0].shape[0], "aten.mul": 1}) == 1 + 5 + 3


def named(x):
    raise AssertionError("a simulated function does not run")


def test_streams_run_beside_each_other_but_for_borrows():
    sim = simulator(1, 1)
    long, short = {"aten.sin": 100e-6}, {"aten.cos": 10e-6}
    sim.costs = CostModel(launch=0, memory_bandwidth=float("inf"), overrides=long | short)
    beside = Stream("beside")
    with sim.mesh.activate():
        x = torch.empty(4)
        with beside.activate():
            torch.empty(4).sin()
        x.cos()
        # The two run side by side.
        assert us(sim.estimate().seconds) == 100
        x.cos()
        theirs, borrow = beside.borrow(x)
        with beside.activate():
            theirs.cos()
        found = sim.estimate()
        assert [us(found.end[0, s]) for s in (0, 1)] == [20, 110]
        x.cos()
        borrow.drop()
        # The owner waits for the end of the borrow, and not for later commands.
        with beside.activate():
            torch.empty(4).sin()
        x.cos()
        found = sim.estimate()
        assert found.streams == ["main", "beside"]
        assert [us(found.end[0, s]) for s in (0, 1)] == [120, 210]
        assert [us(found.busy[0, s]) for s in (0, 1)] == [40, 210]
    sim2 = simulator(1, 1, trace_mode="everything")
    with sim2.mesh.activate():
        x = torch.empty(1000)
        theirs, borrow = beside.borrow(x)
        with beside.activate():
            theirs.cos()
        borrow.drop()
    waits = [e for e in json.loads(sim2.trace())["traceEvents"] if e["name"] == "wait"]
    assert [(e["tid"], e["ts"], e["dur"]) for e in waits] == [(0, 0.0, 9.0)]


def test_forgotten_borrow_ends():
    sim = simulator(1, 1, build_ir=True)
    beside = Stream("beside")
    with sim.mesh.activate():
        x = torch.empty(4)
        beside.borrow(x, mutable=True)
        gc.collect()
        x.add_(1)
    kinds = [n["kind"] for n in sim.export_ir()["nodes"]]
    assert kinds.count("signal") == kinds.count("wait") == 2


def test_collective_waits_for_all_its_ranks():
    sim = simulator(2, 2)
    with sim.mesh.activate():
        x = torch.empty(1000)
        with sim.mesh.slice(host=0, gpu=1).activate():
            torch.ones(1000)  # 5 us on rank 1 only
        x.reduce("gpu")
    found = sim.estimate()
    # Ranks 2 and 3 meet no rank that is late.
    assert found.members == [[0], [1], [2, 3]]
    assert [us(found.end[g, 0]) for g in range(3)] == [30, 30, 25]


def test_peak_memory_is_estimated():
    sim = simulator(1, 2)
    with sim.mesh.activate():
        x = torch.ones(1000)  # 4,000
        y = x * 2  # 8,000
        z = y.view(10, 100)
        y = y + 1  # 12,000: z has the memory of the first y
        del z  # 8,000
        w = torch.ones(500)  # 10,000
        assert sim.estimate().peak_of(0) == 12_000
        x.drop()  # 6,000
        w = w.reduce("gpu", "stack")  # 10,000, then 8,000
        assert [size for _, size in sim.estimate().memory[0]] == [4000, 8000, 12_000, 8000, 10_000, 6000, 10_000, 8000]
        with sim.mesh.slice(gpu=1).activate():
            more = torch.ones(2000)
        assert [sim.estimate().peak_of(r) for r in (0, 1)] == [12_000, 16_000]
        t = y.slice_mesh(gpu=0).to_mesh(sim.mesh.slice(gpu=1))
        assert [sim.estimate().peak_of(r) for r in (0, 1)] == [12_000, 20_000]
        del y, w, more, t
    assert [sim.estimate().memory[g][-1][1] for g in (0, 1)] == [0, 0]


def test_operands_of_checks_are_freed_without_the_collector():
    sim = simulator(1, 2)
    beside = Stream("beside")
    gc.collect()
    gc.disable()
    try:
        with sim.mesh.activate():
            for _ in range(2):
                x = torch.ones(1000)
                _, borrow = beside.borrow(x, mutable=True)
                borrow.drop()
                x.reduce_("gpu")
                inspect(x)
                del x, _, borrow
                assert sim.estimate().memory[0][-1][1] == 0
    finally:
        gc.enable()


def test_recordings_cost_what_their_commands_cost():
    sim = simulator(1, 1)

    @mt.compile
    def twice(x):
        return (x * 2 + 1).sum(), x

    def seconds():
        return us(sim.estimate().seconds)

    with sim.mesh.activate():
        x = torch.empty(1000)
        taken = []
        for _ in range(4):
            before = seconds()
            twice(x)
            taken.append(us((seconds() - before) * 1e-6))
        assert len(set(taken)) == 1
        assert sim.estimate().operators["aten.sum.default"].commands == 4
        assert inspect(twice(x)[0]).shape == ()
    assert sim.estimate().memory[0][-1][1] == 4000
    assert sim.estimate().peak_of(0) == 12_000


def test_thousands_of_ranks():
    sim = simulator(512, 8, group_workers=True)
    mesh = sim.mesh
    with mesh.activate():
        x = torch.ones(100)
        for _ in range(50):
            x = x * 2
            x.reduce_(("host", "gpu"))
        with mesh.slice(host=slice(0, 256)).activate():
            torch.ones(10)
        assert inspect(x, host=511, gpu=7).tolist() == [0.0] * 100
    found = sim.estimate()
    assert [len(m) for m in found.members] == [2048, 2047, 1]
    assert len(found.spans) == 0
    one = json.loads(sim.trace())["traceEvents"]
    assert [e["args"]["name"] for e in one if e["name"] == "process_name"] == ["ranks 0-2047", "ranks 2048-4094", "rank 4095"]


def test_fetches_are_zeros():
    sim = simulator()
    with sim.mesh.activate():
        x = torch.ones(2, 3, dtype=torch.float16).t()
        found = inspect(x, gpu=1)
        assert (found.tolist(), found.dtype) == ([[0.0] * 2] * 3, torch.float16)
        a, [b, c] = fetch_shard((x, [mt.get_active_mesh().rank("gpu"), 3])).get()
        assert a.shape == (3, 2) and b.item() == 0 and c == 3
        with pytest.raises(IndexError):
            inspect(x, gpu=2)
        sim.mesh.check()
    assert sim.mesh.to_table().splitlines()[2:] == ["| 0 | 0 | 0 | host0 |", "| 1 | 0 | 1 | host0 |"]


def test_program_is_checked_as_on_workers():
    sim, other = simulator(), simulator()
    outside = torch.ones(2)
    with sim.mesh.activate():
        x = torch.ones(2)
        with pytest.raises(TypeError, match="LOCAL_TENSOR"):
            x + outside
        with pytest.raises(TypeError, match="WRONG_MESH"), sim.mesh.slice(gpu=0).activate():
            x + 1
        with pytest.raises(TypeError, match="WRONG_STREAM"), Stream("beside").activate():
            x + 1
        _, borrow = Stream("beside").borrow(x)
        with pytest.raises(TypeError, match="MUTATING_BORROW"):
            x.add_(1)
        borrow.drop()
        with pytest.raises(RuntimeError, match="broadcast"):
            x + torch.ones(3)
        with pytest.raises(ValueError, match="expected"):
            x.reduce("gpu", scatter=True, out=torch.ones(7))
        with pytest.raises(KeyError, match="no dimension 'gpus'"):
            x.reduce("gpus")
        for dependent in (lambda: float(x.sum()), x.nonzero, lambda: bool(x[0] > 0)):
            with pytest.raises(TensorMeshError, match="inspect"):
                dependent()
        with pytest.raises(TensorMeshError, match="two controllers"), other.mesh.activate():
            pass
        with pytest.raises(TensorMeshError, match="a simulated one sends nothing"):
            x.to_mesh(other.mesh)
        for asked in (remote(named, propagate="inspect"), remote(named).call, lambda a: mt.call_on_shard_and_fetch(named, a)):
            with pytest.raises(TensorMeshError, match="a simulated mesh has no workers"):
                asked(x)
        assert remote(lambda a: a.sum(0), propagate="cached")(x).shape == ()
        x.drop()
        with pytest.raises(TypeError, match="DROPPED"):
            x + 1
    assert not issubclass(RemoteException, TensorMeshError)


def test_graph_has_nodes_and_edges():
    sim = simulator(1, 2, build_ir=True)
    beside = Stream("beside")
    with sim.mesh.activate():
        x = torch.ones(2)  # 0
        y = x[:1]  # 1
        y.add_(1)  # 2
        z = x * 2  # 3
        theirs, borrow = beside.borrow(z)  # 4 signal, 5 wait, 6 borrow
        with beside.activate():
            theirs + 1  # 7
        graph = sim.export_ir()
        borrow.drop()
    names = [n["name"] for n in graph["nodes"]]
    assert names[:8] == [
        "aten.ones.default",
        "aten.slice.Tensor",
        "aten.add_.Tensor",
        "aten.mul.Tensor",
        "signal",
        "wait",
        "borrow",
        "aten.add.Tensor",
    ]
    node = graph["nodes"][3]
    assert node["inputs"] == [{"tensor": 0, "shape": [2], "dtype": "float32", "device": "cpu"}]
    assert node["outputs"][0]["tensor"] == 2 and node["stream"] == "main"
    assert node["mesh"] == {"labels": ["host", "gpu"], "offset": 0, "sizes": [1, 2], "strides": [2, 1]}
    edges = {(e["from"], e["to"], e["kind"]) for e in graph["edges"]}
    # `x * 2` reads the numbers that were written through the view.
    assert {(0, 2, "data"), (2, 3, "data"), (3, 6, "data"), (3, 7, "data"), (4, 5, "order"), (0, 1, "order"), (5, 6, "order")} <= edges
    assert (3, 5, "order") not in edges
    json.dumps(graph)
    with pytest.raises(ValueError, match="build_ir=True"):
        simulator().export_ir()


def test_display(tmp_path, capsys):
    trace, history = tmp_path / "trace.json", tmp_path / "history.jsonl"
    sim = simulator(2, 2, trace_path=str(trace), command_history_path=str(history), trace_mode="everything")
    with sim.mesh.activate():
        kept = step(sim.mesh)
    sim.display()
    out = capsys.readouterr().out
    assert out.startswith("4 ranks in ") and "aten.mm.default" in out and "reduce sum over gpu" in out and "beside" in out
    assert trace.read_text() == sim.trace()
    events = json.loads(trace.read_text())["traceEvents"]
    [one, *_] = [e for e in events if e["name"] == "aten.mm.default"]
    assert one["args"]["line"].startswith("test_tensor_simulator.py:") and one["args"]["flops"] == 4096
    assert one["args"]["inputs"] == ["float32[8, 16]", "float32[16, 16]"]
    assert any(e["ph"] == "C" for e in events)
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert lines[0]["name"] == "aten.ones.default" and lines[-1]["id"] == len(lines) - 1
    del kept


def test_arguments():
    with pytest.raises(ValueError, match="one GPU at least"):
        Simulator(1, 0)
    with pytest.raises(ValueError, match="simulate_mode is one of"):
        Simulator(1, 1, simulate_mode="fast")
    with pytest.raises(ValueError, match="trace_mode is one of"):
        Simulator(1, 1, trace_mode="little")
    with pytest.raises(NotImplementedError, match="simulate_with_real"):
        Simulator(1, 1, simulate_mode="simulate_with_real")
    with pytest.raises(NotImplementedError, match="trace_path='x.json'"):
        Simulator(1, 1, upload_trace=True, trace_path="x.json")


# Instead of the workers of procs


class Stand:
    """What stands for a mesh of procs in a test."""

    sizes = {"hosts": 2, "gpus": 2}


class Trainer(Actor):
    """Is a controller of a mesh of its own."""

    @endpoint
    def train(self, procs):
        with procs.activate() as mesh:
            weight = torch.ones(4)
            ranks = procs.rank_tensor(list(procs.sizes))
            for _ in range(3):
                weight = weight + ranks.float()
                weight.reduce_()
        with procs.activate():
            # Tensors outlive an activation.
            value = inspect(weight).tolist()
            part = procs.slice(**dict.fromkeys(procs.sizes, 0))
            moved = weight.slice_mesh(**dict.fromkeys(procs.sizes, 0)).to_mesh(part)
            return value, moved.mesh.sizes, estimate(mesh).collectives["reduce sum over procs"].commands


def test_procs_of_a_stand_in():
    stand = Stand()
    with simulated(stand) as mesh:
        x = torch.ones(3)
        x.reduce("gpus")
        x.reduce("hosts")
    with simulated(stand) as again:
        assert again == mesh
        inspect(x)
    found = estimate(mesh, PLAIN)
    assert us(found.collectives["reduce sum over gpus"].seconds) == 1 + 2 * (10 + 0.006)
    assert us(found.collectives["reduce sum over hosts"].seconds) == 1 + 2 * (100 + 0.06)
    with pytest.raises(TypeError, match="expected a mesh of procs"):
        simulated(3)


def test_engine_of_an_actor_is_replaced():
    with Universe() as universe, patch_tensor_engine(Trainer) as factory:
        procs = universe.host.spawn_procs({"procs": 2})
        trainer = this_proc().spawn("trainer", Trainer)
        assert trainer.train.call_one(procs).get() == ([0.0] * 4, {}, 3)
        with factory(procs) as mesh:
            assert isinstance(mesh.controller, SimulatedController)
        procs.stop().get()
        with pytest.raises(RuntimeError, match="cannot be activated: its procs have ended"):
            factory(procs)


def test_mesh_of_workers_has_no_estimate(procs):
    with procs.activate() as mesh, pytest.raises(TypeError, match="has workers"):
        estimate(mesh)
    with simulated(procs) as pretended:
        assert pretended.controller is not mesh.controller
        torch.ones(2)
    # Outside of a simulated mesh the procs have real workers.
    with procs.activate() as again:
        assert again == mesh


def test_simulator_has_a_public_name():
    assert mt.Simulator is Simulator


def test_metadata_are_in_traces_and_graphs():
    for mode in ("stream_only", "everything"):
        simulator = Simulator(1, 2, trace_mode=mode, build_ir=True)
        with simulator.mesh.activate():
            with set_meta("warm-up"):
                torch.ones(2)
            with set_meta(("step", 3)):
                torch.ones(3)
            torch.ones(4)
        events = [
            event for event in json.loads(simulator.trace())["traceEvents"] if event["ph"] == "X" and event["name"] == "aten.ones.default"
        ]
        assert [event.get("args", {}).get("meta") for event in events] == ["warm-up", "('step', 3)", None] * 2
        nodes = [node.get("meta") for node in simulator.export_ir()["nodes"] if node["name"] == "aten.ones.default"]
        assert nodes == ["warm-up", "('step', 3)", None]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Simulator(1.5, 2), TypeError, "hosts is a number of them, not 1.5"),
        (lambda: Simulator(1, "2"), TypeError, "gpus is a number of them, not '2'"),
        (lambda: Simulator(1, 1, costs=3), TypeError, "costs is a CostModel, not 3"),
        (lambda: CostModel(flops=0), ValueError, "flops is a rate, not 0"),
        (lambda: CostModel(launch=-1.0), ValueError, "launch is seconds, not -1.0"),
        (lambda: CostModel(inside=Link(0.0, 1.0)), ValueError, "inside is a bandwidth and a latency"),
        (lambda: estimate(3), TypeError, "expected a simulated mesh"),
    ],
)
def test_inputs_of_the_simulator_are_checked(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("seconds", ["fast", -1.0, float("nan")])
def test_invalid_override_is_named(seconds):
    simulator = Simulator(1, 1, costs=CostModel(overrides={"aten.ones": seconds}))
    with simulator.mesh.activate():
        torch.ones(2)
    with pytest.raises(ValueError, match=r"the override of 'aten.ones.default' is seconds, not"):
        simulator.estimate()
