"""Random number generators of the ranks, and the remote functions of `builtins` and `timer`."""

import copy
import logging

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from monarch import tensor as mt
from monarch.tensor import RemoteException, TensorMeshError, builtins, inspect, manual_seed, random, remote, timer
from monarch.tensor.timer import ExecutionTimer

pytestmark = pytest.mark.timeout(180)

RANKS = (0, 1)


def drawn(t):
    return [inspect(t, gpus=rank).tolist() for rank in RANKS]


def draw():
    return drawn(torch.rand(4))


def local(seed):
    with mt.no_mesh.activate(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.rand(4).tolist()


def test_seeds_have_the_rank_added(mesh):
    manual_seed(7)
    assert draw() == [local(7), local(8)]


def test_one_seed_for_all_ranks(mesh):
    manual_seed(7, per_rank=False)
    assert draw() == [local(7)] * 2


def test_ranks_of_a_slice_count_from_0(mesh):
    with mesh.slice(gpus=1).activate():
        manual_seed(7)
        assert inspect(torch.rand(4)).tolist() == local(7)


def test_without_a_seed_ranks_draw_independently(mesh):
    builtins.seed_remote()
    first, second = draw()
    assert first != second


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**64 - 1])
def test_seeds_of_64_bits(mesh, seed):
    manual_seed(seed, per_rank=False)
    assert draw() == [local(seed)] * 2


@pytest.mark.parametrize(
    ("seed", "error"), [(2**64, ValueError), (-(2**63) - 1, ValueError), (True, TypeError), ("1", TypeError), (1.0, TypeError)]
)
def test_bad_seeds(mesh, seed, error):
    for call in (manual_seed, random.new_state, random.make_deterministic):
        with pytest.raises(error, match="expected"):
            call(seed)


def test_seed_needs_an_active_mesh():
    for call in (lambda: manual_seed(1), lambda: manual_seed(1, per_rank=False), random.get_state, random.make_deterministic):
        with pytest.raises(TensorMeshError, match="active"):
            call()


def test_states_are_taken_and_set_again(mesh):
    manual_seed(3)
    state = random.get_state()
    assert type(state) is random.State
    first = draw()
    assert draw() != first
    for _ in range(2):
        random.set_state(state)
        assert draw() == first


def test_new_state_does_not_change_the_generators(mesh):
    manual_seed(3)
    expected = draw()
    manual_seed(3)
    state = random.new_state(11)
    assert draw() == expected
    random.set_state(state)
    assert draw() == [local(11), local(12)]
    random.set_state(random.new_state(11, per_rank=False))
    assert draw() == [local(11)] * 2


def test_bad_states(mesh):
    for wrong in (None, 3, torch.rand(3), mt.OpaqueRef()):
        with pytest.raises(TypeError, match="expected a State"):
            random.set_state(wrong)
    with pytest.raises(TypeError, match="no worker has its value"):
        random.set_state(random.State())
    with pytest.raises(TensorMeshError):
        _ = random.get_state().value
    with pytest.raises(TypeError):
        copy.copy(random.get_state())


def test_deterministic_programs(mesh):
    deterministic = remote(lambda: torch.are_deterministic_algorithms_enabled())
    random.make_deterministic()
    first = draw()
    assert list(deterministic.call().get().values()) == [True, True]
    random.make_deterministic()
    assert draw() == first
    random.make_deterministic(5)
    assert draw() != first
    remote(torch.use_deterministic_algorithms)(False)


# Builtins


def test_generators_by_builtins(mesh):
    builtins.set_manual_seed_remote(7)
    assert draw() == [local(7)] * 2
    builtins.set_manual_seed_remote(7, mesh.rank("gpus"))
    assert drawn(builtins.initial_seed_remote()) == [7, 8]
    state = builtins.get_rng_state_remote()
    assert state.dtype == torch.uint8
    first = draw()
    builtins.set_rng_state_remote(state)
    assert draw() == first == [local(7), local(8)]
    builtins.set_manual_seed_remote(2**64 - 1)
    assert drawn(builtins.initial_seed_remote()) == [-1, -1]
    builtins.random_seed_remote()
    assert len(set(drawn(builtins.initial_seed_remote()))) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has a generator")
def test_generators_of_gpus_where_there_are_none(procs):
    with procs.activate():
        with pytest.raises(RemoteException):
            inspect(builtins.get_rng_state_cuda_remote())
        with pytest.raises(RemoteException):
            inspect(builtins.initial_seed_cuda_remote())
        for call in (builtins.manual_seed_cuda_remote, builtins.manual_seed_all_cuda_remote):
            assert call(3) is None
        assert builtins.get_rng_state_all_cuda_remote() == []
        builtins.set_rng_state_all_cuda_remote([])
        mt.get_active_mesh().check()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_generators_of_gpus(mesh):
    builtins.manual_seed_cuda_remote(7)
    state = builtins.get_rng_state_cuda_remote()
    first = drawn(torch.rand(4, device="cuda"))
    builtins.set_rng_state_cuda_remote(state)
    assert drawn(torch.rand(4, device="cuda")) == first
    states = builtins.get_rng_state_all_cuda_remote()
    second = drawn(torch.rand(4, device="cuda"))
    builtins.set_rng_state_all_cuda_remote(states)
    assert len(states) == torch.cuda.device_count() and drawn(torch.rand(4, device="cuda")) == second
    builtins.manual_seed_all_cuda_remote(7)
    assert drawn(torch.rand(4, device="cuda")) == first
    assert drawn(builtins.initial_seed_cuda_remote()) == [7, 7]
    saved = random.get_state()
    second = drawn(torch.rand(4, device="cuda"))
    random.set_state(saved)
    assert drawn(torch.rand(4, device="cuda")) == second
    builtins.seed_all_cuda_remote()
    builtins.seed_cuda_remote()
    first, second = drawn(torch.rand(4, device="cuda"))
    assert first != second


def _collect():
    """Keeps the lines of the logger on this rank."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            # The name of the actor comes first.
            lines.append((record.levelname, record.getMessage().partition("] ")[2]))

    logger = logging.getLogger("monarch.tensor.remote")
    logger.handlers = [Keep()]
    logger.propagate = False
    logger.kept = lines


def test_lines_are_logged_on_the_workers(mesh):
    lines = remote(lambda: logging.getLogger("monarch.tensor.remote").kept)
    remote(_collect)()
    builtins.log_remote("step %d of %s", 3, "ten")
    builtins.log_remote("left out", level=logging.INFO)
    builtins.set_logging_level_remote("INFO")
    builtins.log_remote("shown", level=logging.INFO)
    builtins.set_logging_level_remote(logging.CRITICAL)
    builtins.log_remote("left out", level=logging.ERROR)
    assert list(lines.call().get().values()) == [[("WARNING", "step 3 of ten"), ("INFO", "shown")]] * 2
    builtins.set_logging_level_remote(logging.NOTSET)


def test_invalid_level_fails_on_the_workers(procs):
    with procs.activate() as mesh:
        builtins.set_logging_level_remote("NO_LEVEL")
        with pytest.raises(RemoteException, match="NO_LEVEL"):
            mesh.check()


# Timers


def test_timers_of_the_workers(mesh):
    timer.execution_timer_reset()
    for _ in range(2):
        timer.execution_timer_start("step")
        torch.rand(8).sum()
        timer.execution_timer_stop("step")
    timer.execution_timer_start("other", use_cpu=True)
    assert inspect(timer.get_execution_timer_latency_ms("step"), gpus=1) >= 0
    average = timer.get_execution_timer_average_ms("step")
    assert average.dtype == torch.float64 and inspect(average) >= 0
    for summary in timer.get_execution_timer_summary.call().get().values():
        assert list(summary) == ["step"] and summary["step"]["count"] == 2
        assert summary["step"]["min_ms"] <= summary["step"]["average_ms"] <= summary["step"]["max_ms"] <= summary["step"]["total_ms"]
    timer.execution_timer_stop("other", use_cpu=True)
    timer.execution_timer_start(name=None, use_cpu=True)
    timer.execution_timer_stop(use_cpu=True)
    assert inspect(timer.get_execution_timer_average_ms(None)) == inspect(timer.get_execution_timer_latency_ms("default"))
    for name in ("step", "default"):
        timer.execution_timer_reset(name)
    assert [list(s) for s in timer.get_execution_timer_summary.call().get().values()] == [["other"]] * 2


def test_timer_that_does_not_run_is_named(procs):
    with procs.activate() as mesh:
        timer.execution_timer_reset()
        with pytest.raises(RemoteException, match="has no measurement"):
            inspect(timer.get_execution_timer_average_ms("never"))
        timer.execution_timer_stop("never")
        with pytest.raises(RemoteException, match="is not running"):
            mesh.check()


def test_device_timer_is_not_stopped_by_cpu(monkeypatch):
    ExecutionTimer.reset()
    with monkeypatch.context() as m:
        m.setattr(timer, "_now", lambda use_cpu: object())
        ExecutionTimer.start()
    with pytest.raises(ValueError, match="'default' was started without use_cpu"):
        ExecutionTimer.stop(use_cpu=True)
    ExecutionTimer.reset()


def test_timers_of_this_process():
    ExecutionTimer.reset()
    with ExecutionTimer.time(use_cpu=True), pytest.raises(ValueError, match="'default' is running"):
        ExecutionTimer.start()
    with pytest.raises(RuntimeError, match="inside"), ExecutionTimer.time("broken", use_cpu=True):
        raise RuntimeError("inside")
    assert ExecutionTimer.get_latency() == ExecutionTimer.get_average() >= 0
    assert {name: s["count"] for name, s in ExecutionTimer.summary().items()} == {"default": 1, "broken": 1}
    with pytest.raises(ValueError, match="'default' is not running"):
        ExecutionTimer.stop()
    for ask in (ExecutionTimer.get_latency, ExecutionTimer.get_average):
        with pytest.raises(KeyError, match="has no measurement"):
            ask("never")
    ExecutionTimer.reset("default")
    assert list(ExecutionTimer.summary()) == ["broken"]
    ExecutionTimer.reset()
    assert ExecutionTimer.summary() == {}


def masked(**options):
    """The output of a checkpointed dropout and the gradient of what it multiplies: equal, if both passes draw the same mask."""
    weight = torch.ones(64, requires_grad=True)
    drop = torch.nn.functional.dropout
    out = checkpoint(lambda x: drop(x * weight, 0.5), torch.ones(64, requires_grad=True), **options)
    out.sum().backward()
    return inspect(out.detach(), gpus=1), inspect(weight.grad, gpus=1)


def test_recomputation_draws_equal_numbers(mesh):
    manual_seed(3)
    torch.nn.functional.dropout(torch.ones(64), 0.5), torch.rand(1)
    expected = inspect(torch.rand(1)).item()
    manual_seed(3)
    out, grad = masked(use_reentrant=False, context_fn=random.checkpoint_contexts)
    assert out.equal(grad) and 0.0 in out
    # Numbers that are drawn afterwards are not drawn again.
    torch.rand(1)
    assert inspect(torch.rand(1)).item() == expected


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_with_other_numbers_is_refused(mesh, reentrant):
    with pytest.raises(TensorMeshError, match="context_fn=monarch.tensor.random.checkpoint_contexts"):
        masked(use_reentrant=reentrant)
    out, grad = masked(use_reentrant=reentrant, preserve_rng_state=False)
    assert not out.equal(grad)
