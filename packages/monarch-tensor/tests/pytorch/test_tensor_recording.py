"""Commands that are sent together, and recorded calls."""

import concurrent.futures
import threading

import pytest
import torch

from monarch.tensor import RemoteException, Stream, TensorMeshError, coalescing, compile, get_active_stream, inspect, no_mesh

pytestmark = pytest.mark.timeout(180)


def test_coalesced_block_is_one_message(mesh):
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


def test_recorded_call_is_replayed_without_python_code(mesh):
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


def test_training_step_is_replayed(mesh):
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


def test_first_difference_is_named(mesh):
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


def test_recording_refuses_graphs_and_nesting(mesh):
    @compile
    def with_graph(x):
        return x * 2

    called = []

    @compile
    def given_graph(*args):
        called.append(args)

    requiring = torch.ones(2, requires_grad=True)
    with pytest.raises(
        TypeError, match=r"compile\(.*given_graph\)\(float32\[1\], \[REQUIRES_GRAD\]\)\nREQUIRES_GRAD: autograd does not reach"
    ):
        given_graph(torch.ones(1), [requiring])
    assert not called
    with pytest.raises(TypeError, match="REQUIRES_GRAD"):
        compile(lambda: requiring)()
    with torch.no_grad():
        assert inspect(with_graph(requiring)).tolist() == [2.0, 2.0]

    refused = r"with_graph\): argument \[0\]\[1\] is of type set, which has no hash: it cannot be compared"
    with pytest.raises(TypeError, match=refused):
        with_graph([torch.ones(2), {1, 2}])
    with pytest.raises(TypeError, match=r"argument \['x'\] is of type bytearray"):
        with_graph(x=bytearray(b"1"))
    for wrong in (3, "step"):
        with pytest.raises(TypeError, match=f"compile: expected a function of mesh tensors, not {wrong!r}"):
            compile(wrong)

    @compile
    def nested(x):
        return with_graph(x)

    with pytest.raises(TensorMeshError, match="another recording is under way"):
        nested(torch.ones(2))
    assert inspect(torch.ones(2) + 1).tolist() == [2.0, 2.0]


def test_threads_record_at_the_same_time(mesh):
    barrier = threading.Barrier(2)

    @compile
    def step(x, by):
        half = x * by
        # Both threads record, and neither recording has commands of the other.
        barrier.wait()
        freed = half + 1
        del freed
        return half + x

    def run(by):
        with mesh.activate():
            x = torch.full((2,), float(by))
            # The third call is replayed.
            return [inspect(step(x, by)).tolist() for _ in range(3)]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, (2, 3)))
    assert found == [[[float(by * by + by)] * 2] * 3 for by in (2, 3)]


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


def test_number_written_by_a_replay_is_unknown(mesh):
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


def test_collective_is_replayed(mesh):
    @compile
    def total(x):
        return (x + mesh.rank("gpus")).reduce("gpus")

    x = torch.ones(2)
    assert [inspect(total(x), gpus=i % 2).tolist() for i in range(4)] == [[3.0, 3.0]] * 4


def test_failure_within_a_replay_poisons_its_results(mesh):
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


def test_gradients_of_a_recording_are_each_calls(mesh):
    w = torch.nn.Parameter(torch.ones(1))

    @compile
    def fresh(x):
        w.grad = None
        (w * x).sum().backward()

    found = []
    for i in range(6):
        fresh(torch.full((1,), float(i)))
        found.append(inspect(w.grad).item())
    assert found == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    # No replay makes a gradient that is gone before each call.
    @compile
    def backward(x):
        (w * x).sum().backward()

    optimizer = torch.optim.SGD([w], lr=1.0)
    for _ in range(5):
        optimizer.zero_grad()
        backward(torch.ones(1))
        optimizer.step()
    assert inspect(w.detach()).item() == -4.0

    @compile
    def of_argument(x, v):
        with torch.enable_grad():
            (v * x).sum().backward()

    found = []
    for i in range(5):
        v = torch.nn.Parameter(torch.ones(1))
        with torch.no_grad():
            of_argument(torch.full((1,), float(i)), v)
        found.append(inspect(v.grad).item())
    assert found == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_recording_uses_no_replaced_or_dropped_memory(mesh):
    used = torch.ones(1)
    target = torch.zeros(1)

    @compile
    def add(x):
        target.data = x * 2
        return x + used

    found = []
    for i in range(6):
        found.append(inspect(add(torch.full((1,), float(i)))).item())
        assert inspect(target).item() == 2.0 * i
        if i == 3:
            used.data = torch.full((1,), 100.0)
    assert found == [1.0, 2.0, 3.0, 4.0, 104.0, 105.0]
    used.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        add(torch.zeros(1))


def test_arguments_that_are_one_tensor_are_another_signature(mesh):
    @compile
    def add(x, y):
        return x + y

    x, y = torch.ones(1), torch.full((1,), 2.0)
    assert [inspect(add(*given)).item() for given in ((x, y), (y, y), (x, y), (y, y), (x, x))] == [3.0, 4.0, 3.0, 4.0, 2.0]


def test_recorded_call_refuses_unrepeatable_operations(mesh):
    with no_mesh.activate():
        local = torch.ones(1)
    with pytest.raises(TypeError, match="LOCAL_TENSOR"):
        compile(lambda x, y: (x * 2, y * 2))(torch.ones(1), local)
    given = torch.ones(1)
    with pytest.raises(TensorMeshError, match="drop of a tensor that it has not made"):
        compile(lambda x: x.drop())(given)


def test_failure_in_a_replay_has_the_calls_line(mesh):
    @compile
    def root(x):
        return torch.linalg.cholesky(x)

    for _ in range(2):
        inspect(root(torch.eye(2)))
    for _ in range(100):
        torch.ones(1) + 1
    with pytest.raises(RemoteException) as e:
        inspect(root(-torch.eye(2)))
    assert e.value.controller_frames[0].function == "test_failure_in_a_replay_has_the_calls_line"


def test_slices_are_compared_by_their_values(mesh):
    @compile
    def part(x, where):
        return x[where] + 1

    x = torch.arange(6.0)
    for _ in range(3):
        assert inspect(part(x, slice(0, 2))).tolist() == [1.0, 2.0]
        assert inspect(part(x, slice(2, 6, 2))).tolist() == [3.0, 5.0]


def test_borrow_within_a_recorded_call_is_replayed(mesh):
    beside = Stream("beside")
    total, calls = torch.zeros(2), []
    with beside.activate():
        step = torch.ones(2)

    @compile
    def add(factor):
        calls.append(1)
        lent, borrow = get_active_stream().borrow(step)
        with borrow:
            total.add_(lent * factor)

    for i in range(5):
        add(2.0)
        with beside.activate():
            step.mul_(2)  # waits for the end of the borrow
        assert inspect(total).tolist() == [2.0 * (2 ** (i + 1) - 1)] * 2
    assert len(calls) == 2


def test_streams_and_slices_are_replayed_with_their_order(mesh):
    beside, calls = Stream("beside"), []
    second = mesh.slice(gpus=1)

    @compile
    def moved(x):
        calls.append(1)
        everywhere = (x + 1).slice_mesh(gpus=1).to_mesh(mesh, stream=beside)
        with beside.activate():
            return everywhere * 2, everywhere.slice_mesh(gpus=0).to_mesh(second)

    def entries():
        mesh.check()
        return mesh.controller.workers.size_of_table.call().get().values()

    tables = []
    for i in range(12):
        both, there = moved(torch.full((2,), float(i)) + mesh.rank("gpus"))
        assert (both.stream, there.mesh, there.stream) == (beside, second, beside)
        assert inspect(both).tolist() == [2.0 * i + 4] * 2 and inspect(there).tolist() == [i + 2.0] * 2
        tables.append(entries())
    assert len(calls) == 2 and tables[4] == tables[11]


def test_gradients_over_streams_are_each_calls(mesh):
    beside = Stream("beside")
    w = torch.nn.Parameter(torch.ones(1))
    norms = []

    @compile
    def step(x):
        w.grad = None
        (w * x).sum().backward()
        lent, borrow = beside.borrow(w.grad)
        with borrow, beside.activate():
            return lent * 10

    for i in range(5):
        norms.append(step(torch.full((1,), float(i))))
        assert inspect(w.grad).item() == i
    assert [inspect(norm).item() for norm in norms] == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_call_with_another_stream_order_is_refused(mesh):
    beside, other = Stream("beside"), Stream("other")
    streams = [beside, other]
    x = torch.ones(2)

    @compile
    def lend():
        stream = streams.pop(0)
        lent, borrow = stream.borrow(x)
        with borrow, stream.activate():
            return lent + 1

    lend()
    with pytest.raises(TensorMeshError, match="operation 0 .*was recorded on another mesh or stream"):
        lend()

    @compile
    def left():
        beside.borrow(x)

    with pytest.raises(TensorMeshError, match="a borrow that began in the recorded call has not ended there"):
        left()
    _, outer = beside.borrow(x)
    with pytest.raises(TensorMeshError, match="the end of a borrow that it has not begun"):
        compile(outer.drop)()
    outer.drop()
    assert inspect(x + 1).tolist() == [2.0, 2.0]


def test_recorded_call_runs_where_its_tensors_are(procs):
    calls = []

    @compile
    def double(x):
        calls.append(1)
        return x * 2

    with procs.activate():
        x = torch.ones(2)
    assert [inspect(double(x)).tolist() for _ in range(4)] == [[2.0, 2.0]] * 4
    assert len(calls) == 2
    with pytest.raises(TensorMeshError, match="no mesh is active"):
        double(torch.tensor(1.0).item())
