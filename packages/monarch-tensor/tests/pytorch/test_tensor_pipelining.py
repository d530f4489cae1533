"""Pipelines over slices of a mesh against the unsplit model on the controller; and the mesh and stream in which a backward runs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from monarch.actor import this_host
from monarch.tensor import DeviceMesh, Stream, grad_function, grad_generator, inspect, no_mesh, remote
from monarch.tensor._controller.active import active
from monarch.tensor._tensors.mesh import get_active_stream, main_stream
from monarch.tensor.pipelining import PipelineParallelism
from monarch.tensor.simulator import CostModel, Link, Simulator

BATCH, WIDTH = 6, 5


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    procs = this_host().spawn_procs({"pp": 2})
    with procs.activate() as mesh:
        pass
    yield mesh
    procs.stop().get()


def parts(count: int) -> list[nn.Module]:
    """The stages of a model, with the same parameters at each call."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def local_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(BATCH, WIDTH, generator=generator), torch.rand(BATCH, WIDTH, generator=generator)


def on_mesh(mesh: DeviceMesh, stream: Stream, tensor: torch.Tensor) -> Any:
    with no_mesh.activate():
        numbers = tensor.tolist()
    with stream.activate(), mesh.activate():
        return torch.tensor(numbers)


def copied(mesh: DeviceMesh, stream: Stream, module: nn.Module) -> nn.Module:
    """The module with its parameters on a mesh."""
    made = copy.deepcopy(module)
    for name, parameter in list(made.named_parameters()):
        *path, last = name.split(".")
        owner = made.get_submodule(".".join(path))
        moved = on_mesh(mesh, stream, parameter.detach())
        with stream.activate(), mesh.activate():
            setattr(owner, last, nn.Parameter(moved))
    return made


def numbers_of(tensor: Any) -> torch.Tensor:
    with tensor.stream.activate(), tensor.mesh.activate():
        return inspect(tensor.detach())


def slices(mesh: DeviceMesh, count: int = 2) -> list[DeviceMesh]:
    return [mesh.slice(pp=i) for i in range(count)]


def pipeline_of(mesh: DeviceMesh, local: list[nn.Module], **options: Any) -> PipelineParallelism:
    meshes = slices(mesh)
    compute, p2p = options.pop("compute_stream", main_stream), Stream("p2p")
    stages = [copied(meshes[i % 2], compute, part) for i, part in enumerate(local)]
    options = {"batch_size": BATCH, "loss_fn": nn.functional.mse_loss, **options}
    return PipelineParallelism(meshes, stages, compute, p2p, **options)


def data_of(pipeline: PipelineParallelism) -> tuple[Any, Any]:
    x, y = local_data()
    last = pipeline.meshes[(len(pipeline.stages) - 1) % len(pipeline.meshes)]
    return on_mesh(pipeline.meshes[0], pipeline.compute_stream, x), on_mesh(last, pipeline.compute_stream, y)


def check_gradients(pipeline: PipelineParallelism, local: list[nn.Module]) -> None:
    for stage, part in zip(pipeline.stages, local, strict=True):
        assert isinstance(stage, nn.Module)
        for found, expected in zip(stage.parameters(), part.parameters(), strict=True):
            assert expected.grad is not None and found.grad is not None
            torch.testing.assert_close(numbers_of(found.grad), expected.grad)


SCHEDULES = [("dora-dfs", 2, 1), ("dora-dfs", 4, 2), ("gpipe", 2, 2), ("GPipe", 4, 1), ("1F1B", 2, 1), ("interleaved", 4, 3)]


@pytest.mark.parametrize(("schedule", "stages", "microbatch"), SCHEDULES)
def test_losses_and_gradients_equal_the_unsplit_model(mesh: DeviceMesh, schedule: str, stages: int, microbatch: int) -> None:
    local = parts(stages)
    pipeline = pipeline_of(mesh, local, schedule=schedule, microbatch_size=microbatch)
    x, y = local_data()
    given = data_of(pipeline)
    for step in range(2):  # gradients add up
        losses = pipeline.run(*given)
        loss = nn.functional.mse_loss(nn.Sequential(*local)(x), y)
        loss.backward()
        assert len(losses) == BATCH // microbatch and all(one.mesh == pipeline.meshes[1] for one in losses)
        torch.testing.assert_close(sum(numbers_of(one) for one in losses) / len(losses), loss.detach())
        assert step or all(not one.requires_grad for one in losses)
    check_gradients(pipeline, local)


def test_streams_of_its_own_and_an_optimiser(mesh: DeviceMesh) -> None:
    local = parts(2)
    compute = Stream("compute")
    pipeline = pipeline_of(mesh, local, compute_stream=compute, microbatch_size=2)
    given = data_of(pipeline)
    x, y = local_data()
    model = nn.Sequential(*local)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimisers: list[Any] = [torch.optim.SGD(stage.parameters(), lr=0.1) for stage in pipeline.stages if isinstance(stage, nn.Module)]
    for _ in range(3):
        losses = pipeline.run(*given)
        assert losses[0].stream is compute
        for stage_mesh, optimiser in zip(pipeline.meshes, optimisers, strict=True):
            with compute.activate(), stage_mesh.activate():
                optimiser.step()
                optimiser.zero_grad()
        plain.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        plain.step()
        torch.testing.assert_close(sum(numbers_of(one) for one in losses) / len(losses), loss.detach())


def test_run_inside_of_an_activation_without_targets(mesh: DeviceMesh) -> None:
    local = parts(4)
    pipeline = pipeline_of(mesh, local, microbatch_size=3)
    x, _ = data_of(pipeline)
    with mesh.activate():
        outputs = pipeline.run(x)
        assert active.mesh == mesh
    with torch.no_grad():
        expected = nn.Sequential(*local)(local_data()[0])
    torch.testing.assert_close(torch.cat([numbers_of(one) for one in outputs]), expected)
    assert all(p.grad is None for stage in pipeline.stages if isinstance(stage, nn.Module) for p in stage.parameters())


def test_last_function_has_several_results_and_loss(mesh: DeviceMesh) -> None:
    meshes = slices(mesh)
    weight, bias = torch.full((WIDTH,), 0.5), torch.full((WIDTH,), 0.25)

    def model(first: Any, second: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def begin(x: Any) -> Any:
            # A result without gradient, one that is the bias of all rows, and one that the next stage does not use.
            return x * first, (x > 0.5).long(), x + second, x * second

        def end(product: Any, positive: Any, total: Any, unused: Any, y: Any) -> Any:
            return ((product + total.reshape(-1, WIDTH) - y) * positive).pow(2).sum()

        return begin, end

    x, y = local_data()
    plain = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    begin, end = model(*plain)
    loss = end(*begin(x), y)
    loss.backward()
    made = [on_mesh(meshes[0], main_stream, one).requires_grad_() for one in (weight, bias)]
    pipeline = PipelineParallelism(
        meshes, model(*made), main_stream, Stream("p2p"), batch_size=BATCH, microbatch_size=2, loss_reduction="sum"
    )
    losses = pipeline.run(*data_of(pipeline))
    torch.testing.assert_close(sum(numbers_of(one) for one in losses), loss.detach())
    for found, expected in zip(made, plain, strict=True):
        torch.testing.assert_close(numbers_of(found.grad), expected.grad)


def test_gradient_can_be_a_view_of_received_data(mesh: DeviceMesh) -> None:
    meshes = slices(mesh)
    bias = on_mesh(meshes[0], main_stream, torch.zeros(1, WIDTH)).requires_grad_()
    pipeline = PipelineParallelism(
        meshes, [lambda x: bias.view(WIDTH) + x[0] * 0, lambda h, y: (h * y[0]).sum()], main_stream, Stream("p2p"), batch_size=1
    )
    _, y = local_data()
    one = on_mesh(meshes[0], main_stream, y[:1])
    for _ in range(2):
        pipeline.run(one, on_mesh(meshes[1], main_stream, y[:1]))
    torch.testing.assert_close(numbers_of(bias.grad), 2 * y[:1])


def test_one_mesh_with_several_stages(mesh: DeviceMesh) -> None:
    local = parts(3)
    stages = [copied(mesh, main_stream, part) for part in local]
    pipeline = PipelineParallelism([mesh], stages, main_stream, Stream("p2p"), batch_size=BATCH, loss_fn=nn.functional.mse_loss)
    x, y = local_data()
    losses = pipeline.run(*data_of(pipeline))
    loss = nn.functional.mse_loss(nn.Sequential(*local)(x), y)
    loss.backward()
    torch.testing.assert_close(sum(numbers_of(one) for one in losses) / BATCH, loss.detach())
    check_gradients(pipeline, local)


@pytest.mark.parametrize("meshes", [1, 2])
def test_stages_that_begin_in_place(mesh: DeviceMesh, meshes: int) -> None:
    """Autograd allows no such operation on a leaf."""
    torch.manual_seed(0)
    local: list[nn.Module] = [nn.Linear(WIDTH, WIDTH)] + [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)) for _ in range(3)]
    stages = [copied(slices(mesh)[i % meshes], main_stream, part) for i, part in enumerate(local)]
    options: dict[str, Any] = {"batch_size": BATCH, "loss_fn": nn.functional.mse_loss, "microbatch_size": 2}
    pipeline = PipelineParallelism(slices(mesh, meshes), stages, main_stream, Stream("p2p"), **options)
    losses = pipeline.run(*data_of(pipeline))
    x, y = local_data()
    loss = nn.functional.mse_loss(nn.Sequential(*local)(x), y)
    loss.backward()
    torch.testing.assert_close(sum(numbers_of(one) for one in losses) / len(losses), loss.detach())
    check_gradients(pipeline, local)


def test_stage_that_raises_leaves_tensors_usable(mesh: DeviceMesh) -> None:
    local = parts(2)
    pipeline = pipeline_of(mesh, local)
    given = data_of(pipeline)
    calls = itertools.count()
    stage = pipeline.stages[1]

    def fails(h: Any) -> Any:
        if next(calls) == 2:
            raise LookupError("the third call")
        return stage(h)

    pipeline.stages[1] = fails
    with pytest.raises(LookupError, match="the third call"):
        pipeline.run(*given)
    pipeline.stages[1] = stage
    for one in pipeline.stages:
        assert isinstance(one, nn.Module)
        one.zero_grad()
    pipeline.run(*given)
    x, y = local_data()
    nn.functional.mse_loss(nn.Sequential(*local)(x), y).backward()
    check_gradients(pipeline, local)


def test_nothing_stays_on_the_workers(mesh: DeviceMesh) -> None:
    pipeline = pipeline_of(mesh, parts(2), microbatch_size=2)
    given = data_of(pipeline)
    sizes: list[Any] = []
    for _ in range(4):
        pipeline.run(*given)
        mesh.controller.wait()
        sizes.append(list(mesh.controller.workers.size_of_table.call().get().values()))
    assert sizes[1] == sizes[2] == sizes[3]


# --- errors


def test_arguments_that_do_not_fit(mesh: DeviceMesh) -> None:
    meshes, p2p = slices(mesh), Stream("p2p")

    def make(stages: int, **options: Any) -> PipelineParallelism:
        return PipelineParallelism(meshes, [nn.Identity()] * stages, main_stream, p2p, **options)

    with pytest.raises(ValueError, match="no schedule 'zigzag', only 'dora-dfs', 'gpipe', '1f1b', 'interleaved'"):
        make(2, schedule="zigzag")
    with pytest.raises(ValueError, match="a batch of 4 cannot be cut into microbatches of 3"):
        make(2, microbatch_size=3)
    with pytest.raises(ValueError, match="3 stages do not fit 2 meshes"):
        make(3)
    with pytest.raises(ValueError, match="'1f1b' has one stage for each mesh"):
        make(4, schedule="1f1b")
    with pytest.raises(ValueError, match="5 microbatches do not fit 2 meshes"):
        make(4, schedule="interleaved", batch_size=5)
    with pytest.raises(ValueError, match="neither 'mean' nor 'sum'"):
        make(2, loss_reduction="max")
    with pytest.raises(TypeError, match=r"stages\[1\] is int"):
        PipelineParallelism(meshes, [nn.Identity(), 3], main_stream, p2p)  # pyright: ignore[reportArgumentType]


def test_inputs_that_do_not_fit(mesh: DeviceMesh) -> None:
    pipeline = pipeline_of(mesh, parts(2))
    x, y = data_of(pipeline)
    with pytest.raises(ValueError, match="x has a tensor of .* move it with `to_mesh`"):
        pipeline.run(y, y)
    with pytest.raises(ValueError, match="y has a tensor of .* move it with `to_mesh`"):
        pipeline.run(x, x)
    with pytest.raises(ValueError, match="x has a local tensor"):
        pipeline.run(torch.ones(BATCH, WIDTH), y)
    with pytest.raises(ValueError, match="x has a tensor of <Stream other>"):
        pipeline.run(on_mesh(pipeline.meshes[0], Stream("other"), local_data()[0]), y)
    with pipeline.meshes[0].activate():
        short = x[:3]
    with pytest.raises(ValueError, match=rf"x has a tensor of shape \[3, {WIDTH}\]: expected a batch of {BATCH}"):
        pipeline.run(short, y)
    pipeline.loss_fn = nn.MSELoss(reduction="none")
    with pytest.raises(ValueError, match=rf"the loss of a microbatch is one number, and the last stage returned \[1, {WIDTH}\]"):
        pipeline.run(x, y)


# --- the context of a backward


def crossing(target: DeviceMesh, seen: list[Any]) -> Callable[[Any], Any]:
    """`to_mesh` that is differentiable."""

    @grad_function
    def move(t: Any) -> Any:
        source = t.mesh

        def backward(gradient: Any) -> Any:
            seen.append((active.mesh, get_active_stream()))
            return gradient.to_mesh(source)

        return t.to_mesh(target), backward

    return move


def test_generator_runs_nodes_on_their_gradients_mesh(mesh: DeviceMesh) -> None:
    first, second = slices(mesh)
    seen: list[Any] = []
    x, _ = local_data()
    weight = on_mesh(first, main_stream, x).requires_grad_()
    factor = on_mesh(second, main_stream, 2 * x).requires_grad_()
    with first.activate():
        hidden = weight * 3
        moved = crossing(second, seen)(hidden)
    with second.activate():
        loss = (moved * factor).sum()
    # No mesh is active here, and another one is active there.
    with no_mesh.activate():
        gradients = list(grad_generator(loss, [factor, weight]))
        assert active.mesh is None
    torch.testing.assert_close(numbers_of(gradients[0]), 3 * x)
    torch.testing.assert_close(numbers_of(gradients[1]), 6 * x)
    assert gradients[1].mesh == first and seen == [(first, main_stream)]


def test_function_restores_mesh_and_stream_under_the_engine(mesh: DeviceMesh) -> None:
    side = Stream("side")
    seen: list[Any] = []

    @grad_function
    def watched(t: Any) -> Any:
        def backward(gradient: Any) -> Any:
            seen.append((active.mesh, get_active_stream()))
            return None

        return t * 1, backward

    part = mesh.slice(pp=0)
    with side.activate(), part.activate():
        result = watched(torch.ones(2).requires_grad_()).sum()
        result.backward(retain_graph=True)
        assert active.mesh == part
    with no_mesh.activate():
        local = watched(torch.ones(2).requires_grad_()).sum()
    with mesh.activate():
        for _ in grad_generator(local, local):
            pass
        local.backward()
        assert active.mesh == mesh and get_active_stream() is main_stream
    assert seen == [(part, side), (None, main_stream)]


def test_function_without_any_mesh() -> None:
    @grad_function
    def doubled(t: Any) -> Any:
        return t * 2, lambda gradient: gradient * 2

    leaf = torch.ones(3).requires_grad_()
    doubled(leaf).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2, 2, 2]


@remote(propagate=lambda x: x.clone())
def forward(x):
    return x.clone()


@remote(propagate=lambda x: x.clone())
def backward(x):
    return x.clone()


@grad_function
def slow(x):
    return forward(x), lambda gradient: backward(gradient)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 8), (4, 8), (8, 32)])
def test_no_schedule_waits_for_gradients_with_activations(stages, microbatches):
    # In the simulated time a forward takes 1 s, a backward 2 s, and all else takes no time.
    free = Link(1e30, 0.0)
    costs = CostModel(1e30, 1e30, 1e30, 0.0, free, free, free, 0.0, {"forward": 1.0, "backward": 2.0})
    seconds = {}
    for schedule in ("gpipe", "1f1b", "dora-dfs"):
        simulator = Simulator(stages, 1, costs=costs)
        meshes = [simulator.mesh.slice(host=i) for i in range(stages)]
        with meshes[0].activate():
            x = torch.ones(microbatches, 2, requires_grad=True)
        with meshes[-1].activate():
            y = torch.ones(microbatches, 2)
        pipeline = PipelineParallelism(
            meshes, [slow] * stages, main_stream, Stream("p2p"), schedule, microbatches, 1, torch.nn.functional.mse_loss
        )
        pipeline.run(x, y)
        seconds[schedule] = simulator.estimate().seconds
    assert max(seconds.values()) <= min(seconds.values()) + 1e-6
    # A stage is idle while the first microbatch comes to it, and while the last one leaves.
    assert seconds["gpipe"] == pytest.approx((microbatches + stages - 1) * 3, abs=stages)
