"""The simulator where a program has more than tensors, or a mesh without processes."""

import pytest
import torch

from monarch import tensor as mt
from monarch.actor.testing import Universe
from monarch.tensor import Stream, TensorMeshError, inspect, remote
from monarch.tensor.simulator import Simulator, simulated

pytestmark = pytest.mark.timeout(180)


def test_objects_on_the_workers_in_a_timeline(capsys, tmp_path):
    simulator = Simulator(1, 2, trace_path=str(tmp_path / "trace.json"))
    with simulator.mesh.activate():
        mt.random.get_state()
        made = remote(lambda x: (mt.OpaqueRef(), x), propagate=lambda x: (mt.OpaqueRef(), x))
        ref, t = made(torch.ones(2))
        remote(lambda ref, x: x, propagate=lambda ref, x: x)(ref, t + 1)
    simulator.display()
    assert "aten.add" in capsys.readouterr().out


def test_tensor_without_elements_is_simulated(tmp_path):
    simulator = Simulator(1, 2)
    with simulator.mesh.activate():
        for _ in range(2):
            assert torch.empty(0).shape == (0,)
    assert simulator.estimate().operators["aten.empty.memory_format"].commands == 2


def test_procs_of_a_universe_have_no_workers():
    with Universe() as universe:
        procs = universe.host.spawn_procs({"gpus": 2})
        with pytest.raises(TensorMeshError, match=r"gpus: 2.* of a Universe.*patch_tensor_engine.*simulated\(procs\)"):
            procs.activate()
        with simulated(procs) as mesh:
            assert mesh.sizes == {"gpus": 2}


def test_recordings_over_streams_are_simulated_command_by_command():
    def work(wrap):
        sim, beside = Simulator(1, 2), Stream("beside")

        def step(x):
            lent, borrow = beside.borrow(x)
            with borrow, beside.activate():
                return (lent * 2).sum().reduce("gpu")

        step = wrap(step)
        with sim.mesh.activate():
            x = torch.ones(100)
            for _ in range(4):
                step(x)
            assert inspect(step(x)).shape == ()
        found = sim.estimate()
        return {name: o.commands for name, o in found.operators.items()}, round(found.seconds * 1e6, 6), found.peak_of(0)

    assert work(mt.compile) == work(lambda function: function)
