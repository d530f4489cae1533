"""Commands that are sent together, and recorded calls."""

import pytest
import torch

from monarch.tensor import TensorMeshError, coalescing, compile, inspect

pytestmark = pytest.mark.timeout(180)


def test_a_coalesced_block_is_one_message(mesh):
    controller = mesh.controller
    mesh.check()
    sent = []
    run = controller._run
    controller._run = lambda *a: (sent.append(1), run(*a))
    try:
        with coalescing():
            x = torch.zeros(2)
            for _ in range(500):
                x = x + 1
            assert not sent
        assert len(sent) == 1
        with coalescing():
            y = x * 2
            assert inspect(y).tolist() == [1000.0, 1000.0]
    finally:
        controller._run = run


def test_a_recorded_call_is_replayed_without_its_python_code(mesh):
    calls = []
    scale = torch.full((2,), 3.0)

    @compile
    def step(p, g, factor):
        calls.append(factor)
        change = (g * scale + 1) * factor
        p.add_(change)
        return change.sum(), p, [p[0], "text"]

    p, g = torch.zeros(2), torch.ones(2)
    for i in range(1, 6):
        total, same, (first, text) = step(p, g, 2.0)
        assert same is p and text == "text"
        assert [inspect(t).tolist() for t in (total, p, first)] == [16.0, [8.0 * i, 8.0 * i], 8.0 * i]
    assert calls == [2.0, 2.0]
    step(p, g, 3.0)
    step(torch.zeros(4, 2), g, 2.0)
    assert calls == [2.0, 2.0, 3.0, 2.0]
    scale.add_(1)
    total, *_ = step(torch.zeros(2), g, 2.0)
    assert inspect(total).item() == 20.0


def test_a_training_step_is_replayed(mesh):
    net = torch.nn.Linear(3, 1)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x, y):
        optimiser.zero_grad()
        loss = (net(x) - y).pow(2).mean()
        loss.backward()
        optimiser.step()
        return loss.detach()

    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.5)
    x, y = torch.eye(3), torch.ones(3, 1)
    plain = [inspect(step(x, y)).item() for _ in range(6)]
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.5)
    recorded = compile(step)
    assert [inspect(recorded(x, y)).item() for _ in range(6)] == plain


def test_the_first_difference_is_named(mesh):
    state = [1]

    @compile
    def changing(x):
        y = x + 1
        state[0] += 1
        return y * state[0] if state[0] < 3 else y.sin()

    x = torch.ones(2)
    changing(x)
    with pytest.raises(TensorMeshError, match=r"second call differs from the recording in operation 1 at .*: aten.mul.Tensor was recorded"):
        changing(x)

    values = [1.0]

    @compile
    def other_value(x):
        values[0] += 1
        return x * values[0]

    other_value(x)
    with pytest.raises(TensorMeshError, match="operation 0.*other operands or values"):
        other_value(x)

    @compile(verify=False)
    def unverified(x):
        values[0] += 1
        return x * values[0]

    first = inspect(unverified(x)).tolist()
    assert inspect(unverified(x)).tolist() == first


def test_what_a_recording_cannot_have(mesh):
    from monarch.tensor import Stream

    stream = Stream("beside")

    @compile
    def two_streams(x):
        with stream.activate():
            torch.ones(2)
        return x + 1

    with pytest.raises(TensorMeshError, match="on one mesh and one stream"):
        two_streams(torch.ones(2))

    @compile
    def with_graph(x):
        return x * 2

    with pytest.raises(TensorMeshError, match="requires grad"):
        with_graph(torch.ones(2, requires_grad=True))

    with pytest.raises(TypeError, match="cannot be compared"):
        with_graph([torch.ones(2), {1, 2}])

    @compile
    def nested(x):
        return with_graph(x)

    with pytest.raises(TensorMeshError, match="another recording is under way"):
        nested(torch.ones(2))
    assert inspect(torch.ones(2) + 1).tolist() == [2.0, 2.0]


def test_replays_leave_nothing_on_the_workers(mesh):
    @compile
    def step(x):
        return ((x + 1) * 2).sum()

    x = torch.ones(3)
    for _ in range(3):
        step(x)

    def entries():
        mesh.check()
        return mesh.controller.workers.size_of_table.call().get().values()

    before = entries()
    for _ in range(20):
        step(x)
    assert entries() == before


def test_a_number_that_a_replay_writes_is_not_known_any_more(mesh):
    count = torch.tensor(3.0)

    @compile
    def add(x):
        x.add_(1)
        return x

    add(count)
    add(count)
    assert count.item() == 5.0
    add(count)
    with pytest.raises(TensorMeshError, match="inspect"):
        count.item()
    assert inspect(count).item() == 6.0


def test_a_collective_is_replayed(mesh):
    @compile
    def total(x):
        return (x + mesh.rank("gpus")).reduce("gpus")

    x = torch.ones(2)
    assert [inspect(total(x), gpus=i % 2).tolist() for i in range(4)] == [[3.0, 3.0]] * 4


def test_a_failure_within_a_replay_poisons_its_results(mesh):
    from monarch.tensor import RemoteException

    @compile
    def root(x):
        return torch.linalg.cholesky(x)

    good, bad = torch.eye(2), -torch.eye(2)
    for _ in range(3):
        assert inspect(root(good)).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    out = root(bad)
    with pytest.raises(RemoteException, match="positive-definite"):
        inspect(out)
    assert inspect(root(good)).tolist() == [[1.0, 0.0], [0.0, 1.0]]
