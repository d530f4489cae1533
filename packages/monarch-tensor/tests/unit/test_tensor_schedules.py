"""Orders of pipelines, over many sizes: each is complete, can be run, and keeps few activations."""

import itertools
from functools import cache

import pytest

from monarch.tensor.pipelining.schedules import SCHEDULES, Action, in_one_order, length, peaks
from monarch.tensor.pipelining.schedules import schedule as uncached

MESHES, CHUNKS, MICROBATCHES = range(1, 5), range(1, 4), (*range(1, 10), 12)

schedule = cache(uncached)


def cases(name):
    """Sizes that the schedule has: meshes, stages, microbatches."""
    for meshes, chunks, microbatches in itertools.product(MESHES, CHUNKS, MICROBATCHES):
        several = chunks > 1
        if not (several and (name == "1f1b" or (name == "interleaved" and microbatches % meshes))):
            yield meshes, meshes * chunks, microbatches


@pytest.mark.parametrize("name", SCHEDULES)
def test_mesh_runs_each_action_of_its_stages_once(name):
    for meshes, stages, microbatches in cases(name):
        order = schedule(name, meshes, stages, microbatches)
        assert len(order) == meshes
        for mesh, actions in enumerate(order):
            every = itertools.product(("forward", "backward"), range(mesh, stages, meshes), range(microbatches))
            assert sorted(actions) == sorted(itertools.starmap(Action, every))


@pytest.mark.parametrize("name", SCHEDULES)
def test_inputs_precede_and_each_meshs_order_stays(name):
    for meshes, stages, microbatches in cases(name):
        order = schedule(name, meshes, stages, microbatches)
        done = set()
        issued = in_one_order(order, stages)
        for action in issued:
            assert done.issuperset(action.needs(stages)), (action, meshes, stages, microbatches)
            done.add(action)
        assert [[a for a in issued if a.stage % meshes == mesh] for mesh in range(meshes)] == order


@pytest.mark.parametrize("name", SCHEDULES)
def test_live_activations_of_a_stage(name):
    for meshes, stages, microbatches in cases(name):
        found = peaks(schedule(name, meshes, stages, microbatches), stages)
        for stage, peak in enumerate(found):
            if name == "gpipe":
                assert peak == microbatches
            elif name == "interleaved" and stages > meshes:
                assert peak <= min(2 * meshes, microbatches)
            elif name == "dora-dfs":
                assert peak <= min(stages - stage, microbatches)
            else:
                assert peak == min(stages - stage, microbatches)


@pytest.mark.parametrize("name", SCHEDULES)
def test_microbatches_of_a_stage_go_in_their_order(name):
    for meshes, stages, microbatches in cases(name):
        for actions in schedule(name, meshes, stages, microbatches):
            for kind, stage in itertools.product(("forward", "backward"), {a.stage for a in actions}):
                assert [a.microbatch for a in actions if (a.kind, a.stage) == (kind, stage)] == list(range(microbatches))


def test_mesh_idles_only_to_fill_and_drain():
    for name in ("gpipe", "1f1b", "interleaved"):
        for meshes, stages, microbatches in cases(name):
            if stages > meshes and microbatches % meshes:
                continue  # a round that is not full leaves gaps
            work = 3 * microbatches * (stages // meshes)
            assert length(schedule(name, meshes, stages, microbatches), stages) == work + 3 * (meshes - 1)
    for meshes, microbatches in itertools.product(MESHES, MICROBATCHES):
        order = schedule("dora-dfs", meshes, meshes, microbatches)
        assert length(order, meshes) == 3 * microbatches + 3 * (meshes - 1)


def test_order_of_three_microbatches_is_as_published():
    text = {"forward": "f", "backward": "b"}
    order = schedule("1F1B", 2, 2, 3)
    assert [" ".join(f"{text[a.kind]}{a.microbatch}" for a in actions) for actions in order] == ["f0 f1 b0 f2 b1 b2", "f0 b0 f1 b1 f2 b2"]
    assert schedule("dora-dfs", 2, 2, 3) == order


def test_impossible_order_is_refused():
    order = [[Action("backward", 0, 0), Action("forward", 0, 0)], [Action("forward", 1, 0), Action("backward", 1, 0)]]
    with pytest.raises(ValueError, match="the meshes wait for each other"):
        in_one_order(order, 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("zigzag", 2, 2, 2), "no schedule 'zigzag', only 'dora-dfs', 'gpipe', '1f1b', 'interleaved'"),
        (("gpipe", 2, 3, 2), "3 stages do not fit 2 meshes"),
        (("gpipe", 2, 0, 2), "0 stages do not fit 2 meshes"),
        (("gpipe", 0, 2, 2), "2 stages do not fit 0 meshes"),
        (("1f1b", 2, 4, 2), "4 stages do not fit 2 meshes: '1f1b' has one stage for each mesh"),
        (("interleaved", 2, 4, 3), "3 microbatches do not fit 2 meshes"),
        (("dora-dfs", 2, 4, 0), "at least one microbatch, not for 0"),
    ],
)
def test_sizes_that_do_not_fit(arguments, text):
    with pytest.raises(ValueError, match=text):
        schedule(*arguments)
