"""The tree of readers: who reads from whom, after any sequence of joins and ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma.weights.reader_tree import ReaderTree

SOURCE = 0


def joined(tree, *procs, host=1, places=(2, 2), refused=()):
    return [tree.join((proc, 1), "all", host, places, refused) for proc in procs]


def test_readers_get_two_each():
    tree = ReaderTree(1)
    found = joined(tree, *range(10, 20))
    assert [None if at is None else at[0][0] for at in found] == [None, None, 10, 11, 10, 11, 12, 13, 14, 15]


def test_readers_of_other_boxes_have_their_own_tree():
    tree = ReaderTree(1)
    assert joined(tree, 10, 11, 12) == [None, None, ((10, 1), 1)]
    assert tree.join((13, 1), "some", 1, (2, 2)) is None


def test_one_reader_of_a_host_reads_from_afar():
    tree = ReaderTree(1)
    assert joined(tree, 10, host=2) == [None]
    assert joined(tree, 11, 12, 13, host=2) == [((10, 1), 2), ((10, 1), 2), ((11, 1), 2)]
    assert joined(tree, 20, host=3) == [None]
    assert joined(tree, 30, host=4)[0] is not None


def test_reader_without_memory_of_its_own_serves_none():
    tree = ReaderTree(1)
    assert joined(tree, 10, 11, 12, places=(1, 0)) == [None, None, None]


def test_readers_of_an_ended_one_join_elsewhere():
    tree = ReaderTree(1)
    joined(tree, *range(10, 16), places=(1, 1))
    tree.leave_all(12)
    # The readers of 13 lie below it.
    assert joined(tree, 13, places=(1, 1), refused={(12, 1)}) == [((11, 1), 1)]


STEPS = st.lists(st.tuples(st.sampled_from(["join", "leave"]), st.integers(1, 9), st.integers(1, 3), st.integers(0, 3)), max_size=40)


@given(STEPS, st.integers(1, 3))
def test_every_reader_reaches_the_source(steps, direct):
    tree, above, places = ReaderTree(1), {}, {}
    for what, proc, host, own in steps:
        if what == "join":
            found = tree.join((proc, 1), "all", host, (direct, places.setdefault(proc, own)))
            above[proc] = SOURCE if found is None else found[0][0]
        else:
            tree.leave_all(proc)
            above.pop(proc, None)
            places.pop(proc, None)
            above = {child: SOURCE if parent == proc else parent for child, parent in above.items()}
        for proc_, at in above.items():
            seen = {proc_}
            while at != SOURCE:
                assert at not in seen
                seen.add(at)
                at = above[at]
        for parent, most in places.items():
            assert sum(at == parent for at in above.values()) <= most
