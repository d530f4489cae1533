"""What goes wrong: operands, data that are not here, operations that fail on workers, workers that die."""

import logging
import os
import signal
import threading

import pytest
import torch

from monarch.actor import SupervisionError, this_host
from monarch.tensor import RemoteException, Stream, TensorMeshError, fetch_shard, inspect, no_mesh, remote
from monarch.tensor._torch_range import check_torch

pytestmark = pytest.mark.timeout(180)


def failing(size=3):
    """A tensor that no worker can compute: the matrix is not positive definite."""
    return torch.linalg.cholesky(-torch.eye(size))


@pytest.mark.parametrize(
    "use",
    [
        lambda t: float(t),
        lambda t: int(t),
        lambda t: bool(t),
        lambda t: t.item(),
        lambda t: t.tolist(),
        lambda t: t.numpy(),
        lambda t: 1 if t > 0 else 0,
        lambda t: 3 in t.reshape(1),
        lambda t: [0, 1][t.to(torch.int64)],
        lambda t: t.data_ptr(),
        lambda t: torch.nonzero(t),
        lambda t: torch.masked_select(t, t > 0),
        lambda t: torch.unique(t),
    ],
)
def test_data_are_never_fetched_in_silence(mesh, use):
    t = torch.rand(())
    with pytest.raises((TensorMeshError, TypeError), match=r"inspect") as e:
        use(t)
    assert "fetch_shard" in str(e.value) or "inspect" in str(e.value)


def test_known_number_is_available(mesh):
    step = torch.tensor(0.0)
    step += 1
    assert step.item() == 1.0
    assert (step * 3 + 1).item() == 4.0
    step.add_(torch.rand(()))
    with pytest.raises(TensorMeshError):
        step.item()


def test_operands_that_cannot_be_used_are_marked(procs):
    local = torch.ones(2)
    with procs.activate() as mesh:
        t = torch.ones(2)
        other = mesh.slice(gpus=0)
        with other.activate():
            elsewhere = torch.ones(2)
        stream = Stream("beside")
        with stream.activate():
            beside = torch.ones(2)
        gone = torch.ones(2)
        gone.drop()
        for operand, marker, remedy in (
            (local, "LOCAL_TENSOR", "on the controller only"),
            (elsewhere, "WRONG_MESH", "this tensor is on DeviceMesh(ranks=[0])"),
            (beside, "WRONG_STREAM", "of stream beside"),
            (gone, "DROPPED", "test_tensor_errors.py"),
        ):
            for call in (lambda o=operand: torch.add(t, o), lambda o=operand: t + o, lambda o=operand: o + t):
                with pytest.raises(TypeError) as e:
                    call()
                first, *others = str(e.value).splitlines()
                assert first.startswith("aten.add.Tensor(") and marker in first and "float32[2]" in first
                assert others[0].startswith(f"{marker}: ") and remedy in others[0]
        with pytest.raises(TypeError) as e:
            torch.cat([t, local, gone])
        assert str(e.value).splitlines()[0] == "aten.cat.default([float32[2], LOCAL_TENSOR, DROPPED])"
        assert len(str(e.value).splitlines()) == 3


def test_autograd_through_a_reduction_is_refused(mesh):
    t = torch.ones(2, requires_grad=True)
    for call in (lambda: t.reduce("gpus"), lambda: t.to_mesh(mesh), lambda: remote(lambda x: None)(t)):
        with pytest.raises(TypeError, match="REQUIRES_GRAD.*\n?.*no_grad"):
            call()
    with torch.no_grad():
        assert inspect(t.reduce("gpus")).tolist() == [2.0, 2.0]
    assert inspect(t).tolist() == [1.0, 1.0]


def test_torch_s_own_errors_come_at_once(mesh):
    with pytest.raises(RuntimeError, match=r"mat1|reduction dim"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    with pytest.raises(IndexError):
        torch.ones(2, 3).sum(5)


def test_controller_generator_is_refused(mesh):
    with no_mesh.activate():
        generator = torch.Generator()
    with pytest.raises(TensorMeshError, match="manual_seed"):
        torch.rand(2, generator=generator)


def test_operator_without_a_fake_implementation_is_named(mesh):
    with no_mesh.activate():
        library = torch.library.Library("monarch_tests", "DEF")
        library.define("opaque(Tensor x) -> Tensor")
        library.impl("opaque", lambda x: x.clone(), "CPU")
    with pytest.raises(TensorMeshError, match=r'monarch_tests.opaque.default.*fake.*remote\(propagate="inspect"\)'):
        torch.ops.monarch_tests.opaque(torch.ones(2))


def test_operator_missing_on_workers_is_named(mesh):
    with no_mesh.activate():
        library = torch.library.Library("monarch_here", "DEF")
        library.define("only_here(Tensor x) -> Tensor")
        library.impl("only_here", lambda x: torch.empty_like(x), "Meta")
    made = torch.ops.monarch_here.only_here(torch.ones(2))
    with pytest.raises(RemoteException, match=r"monarch_here.*no operator of torch's registry on this worker"):
        inspect(made)


def test_first_fetch_of_poison_names_both_places(mesh):
    good = torch.ones(3)
    bad = failing()
    later = (bad.sum() + 1) * 2
    with pytest.raises(RemoteException) as e:
        inspect([good, later], gpus=1)
    error = e.value
    assert str(error).splitlines()[0] == "A remote function has failed asynchronously on rank 1."
    assert (error.rank, error.operation) == (1, "aten._linalg_check_errors.default")
    assert error.controller_frames[0].function == "failing" and error.controller_frames[0].file == __file__
    assert error.controller_frames[1].function == "test_first_fetch_of_poison_names_both_places"
    assert "not positive-definite" in str(error.exception) and any(error.operation in f for f in error.worker_frames)
    assert error.host
    assert inspect(good + 1).tolist() == [2.0, 2.0, 2.0]


def test_in_place_write_of_poison_poisons_views(mesh):
    base = torch.zeros(3, 3)
    view = base[0]
    other = torch.zeros(3)
    base.add_(failing())
    for t in (base, view, view + 1):
        with pytest.raises(RemoteException, match="positive-definite"):
            inspect(t)
    assert inspect(other).tolist() == [0.0] * 3


def test_check_raises_what_no_fetch_has_raised_once(mesh):
    failing()
    with pytest.raises(RemoteException, match="positive-definite"):
        mesh.check()
    mesh.check()


def test_check_raises_each_new_failure_at_once(mesh):
    """Not only the first one since the last check, and not only when its report has come by the other way."""
    for _ in range(30):
        with pytest.raises(RemoteException):
            inspect(failing())
        failing()
        with pytest.raises(RemoteException):
            mesh.check()
        mesh.check()


def test_unfetched_failure_is_logged_once(mesh):
    logged = threading.Event()
    records = []

    class Noticed(logging.Handler):
        def emit(self, record):
            records.append(record)
            logged.set()

    handler = Noticed()
    logging.getLogger("monarch.tensor").addHandler(handler)
    try:
        bad = failing(4)
        assert logged.wait(60)
        # The second call has nothing left to log.
        mesh.controller.failures._log()
    finally:
        logging.getLogger("monarch.tensor").removeHandler(handler)
    assert [record.levelno for record in records] == [logging.ERROR]
    text = records[0].getMessage()
    assert "A remote function has failed asynchronously on rank" in text and "failing" in text
    with pytest.raises(RemoteException):
        inspect(bad)


def test_running_out_of_memory_is_recoverable(mesh):
    kept = torch.ones(4)
    huge = torch.zeros(1 << 50)
    with pytest.raises(RemoteException, match=r"aten.zeros|aten.empty"):
        inspect(huge.sum())
    assert inspect(kept * 2).tolist() == [2.0] * 4


def test_failure_of_a_rank_fails_its_collective_everywhere(mesh):
    rank = mesh.rank("gpus")
    # Not positive definite on rank 1 only.
    matrix = torch.eye(2) * (1 - 2 * rank)
    root = torch.linalg.cholesky(matrix)
    assert inspect(root, gpus=0).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    total = root.reduce("gpus")
    for gpu in (0, 1):
        with pytest.raises(RemoteException, match="positive-definite") as e:
            inspect(total, gpus=gpu)
        assert e.value.rank == 1
    assert inspect(torch.ones(2).reduce("gpus")).tolist() == [2.0, 2.0]
    stacked = root.reduce("gpus", "stack")
    with pytest.raises(RemoteException, match="on rank 1"):
        inspect(stacked)
    assert inspect(rank.reduce("gpus", "stack")).tolist() == [0, 1]


def test_rank_outside_its_group_fails_it_everywhere():
    """The others wait for it in the rendezvous of the group."""

    @remote
    def sabotage(rank, broken):
        from monarch.tensor._worker import groups

        def refused(*_):
            raise OSError("no socket for this rank")

        if int(rank) == 1:
            kept = groups.Group.__dict__.get("_kept", groups.Group._gloo)
            groups.Group._kept = kept
            groups.Group._gloo = refused if broken else kept

    own = this_host().spawn_procs({"gpus": 2})
    with own.activate() as mesh:
        rank = mesh.rank("gpus")
        sabotage(rank, True)
        total = torch.ones(2).reduce("gpus")
        for gpu in (0, 1):
            with pytest.raises(RemoteException, match="no socket for this rank"):
                inspect(total, gpus=gpu)
        sabotage(rank, False)
        assert inspect(torch.ones(2).reduce("gpus")).tolist() == [2.0, 2.0]
    own.stop().get(60)


def test_poisoned_tensor_fails_after_its_movement(mesh):
    rank = mesh.rank("gpus")
    root = torch.linalg.cholesky(torch.eye(2) * (1 - 2 * rank))
    there = root.slice_mesh(gpus=1).to_mesh(mesh)
    for gpu in (0, 1):
        with pytest.raises(RemoteException, match="on rank 1"):
            inspect(there, gpus=gpu)
    fine = root.slice_mesh(gpus=0).to_mesh(mesh)
    assert inspect(fine, gpus=1).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_failed_remote_function_names_its_line(mesh):
    @remote(propagate=lambda x: x)
    def divide(x):
        raise ZeroDivisionError(f"no division of {tuple(x.shape)}")

    out = divide(torch.ones(2)) + 1
    with pytest.raises(RemoteException, match=r"ZeroDivisionError: no division of \(2,\)") as e:
        inspect(out)
    assert isinstance(e.value.exception, ZeroDivisionError)
    assert any("in divide" in frame for frame in e.value.worker_frames)


def test_exception_that_cannot_be_sent_keeps_its_text(mesh):
    @remote(propagate=lambda x: x)
    def odd(x):
        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__(f"{a} and {b}")

        raise Odd(1, 2)

    with pytest.raises(RemoteException, match="Odd: 1 and 2"):
        inspect(odd(torch.ones(2)))


def test_unpicklable_argument_is_refused_at_once(mesh):
    @remote
    def take(x, lock):
        pass

    with pytest.raises(TypeError, match="lock"):
        take(torch.ones(2), threading.Lock())
    assert inspect(torch.ones(2) + 1).tolist() == [2.0, 2.0]


def test_every_rank_that_fails_a_call_counts_once(mesh, caplog):
    @remote
    def fail():
        raise ValueError("no")

    with pytest.raises(RemoteException, match="ValueError: no"):
        fail.call().get()
    assert inspect(torch.ones(1)).item() == 1.0
    assert "is set already" not in caplog.text


def test_wrong_shapes_of_results_are_named(mesh):
    @remote(propagate=lambda x: x)
    def wrong(x):
        return x[:1]

    with pytest.raises(RemoteException, match=r"wrong returned float32\[1\] as its tensor 0, and float32\[3\] was propagated"):
        inspect(wrong(torch.ones(3)))


def test_tensors_cannot_be_pickled(mesh):
    import pickle

    with pytest.raises(TypeError, match="data are on the workers"):
        pickle.dumps(torch.ones(2))


def test_killed_worker_ends_fetches_with_its_rank(monkeypatch):
    noticed = threading.Event()
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: noticed.set())
    own = this_host().spawn_procs({"gpus": 2})
    with own.activate():
        pids = [pid for _, pid in remote(os.getpid).call().get()]
        t = torch.ones(2).reduce("gpus")
        assert inspect(t).tolist() == [2.0, 2.0]
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(SupervisionError, match="SIGKILL|signal 9|killed"):
            inspect(t, gpus=1)
        # The other rank waits for no collective with it.
        with pytest.raises((SupervisionError, RemoteException, TensorMeshError)):
            for _ in range(100):
                inspect(torch.ones(2).reduce("gpus"))
        with pytest.raises((SupervisionError, TensorMeshError)):
            for _ in range(10_000):
                torch.ones(2)
    assert noticed.wait(60)


def test_controller_far_ahead_is_paused(mesh):
    import monarch.tensor._controller.controller as controller

    @remote
    def slowly():
        import time

        time.sleep(0.3)  # sleeps: the worker is slower than the controller

    slowly()
    x = torch.zeros(1)
    most = 0
    for _ in range(6 * controller.MARK_COMMANDS):
        x = x + 1
        most = max(most, mesh.controller.lead())
    assert most == controller.MARKS
    assert inspect(x).item() == 6 * controller.MARK_COMMANDS


def test_missing_or_old_torch_is_named(monkeypatch):
    from importlib import metadata

    monkeypatch.setattr(metadata, "version", lambda name: "2.7.1+cpu")
    with pytest.raises(ImportError, match=r"needs torch >= 2.8, < 3.0, and torch 2.7.1\+cpu is installed"):
        check_torch()

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(ImportError, match=r"needs torch >= 2.8.*pip install torch"):
        check_torch()


def test_unread_future_hides_no_failure(mesh):
    for ask in (fetch_shard, remote(_gives_back).call, remote(_gives_back).choose):
        ask(failing())
        ask(torch.ones(2))
        with pytest.raises(RemoteException, match="not positive-definite"):
            mesh.check()
    assert inspect(torch.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("of", ["a fetch", "a call", "a call of one rank"])
def test_failure_raised_by_a_future_is_not_repeated(mesh, of):
    ask = {"a fetch": fetch_shard, "a call": remote(_gives_back).call, "a call of one rank": remote(_gives_back).choose}[of]
    future = ask(failing())
    with pytest.raises(RemoteException, match="not positive-definite"):
        future.get(60)
    mesh.check()
    with pytest.raises(RemoteException, match="not positive-definite"):
        future.get(60)


def _gives_back(value):
    return value


def test_check_raises_one_failure_after_the_other(mesh):
    failing(2)
    failing(4)
    for _ in range(2):
        with pytest.raises(RemoteException, match="not positive-definite"):
            mesh.check()
    mesh.check()


def test_line_of_a_failure_stays_known(mesh):
    bad = failing()
    x = torch.zeros(1)
    for _ in range(20_000):  # more than the number of operations whose lines are kept
        x = x + 1
    with pytest.raises(RemoteException) as e:
        inspect(bad)
    assert e.value.controller_frames[0].function == "failing"
