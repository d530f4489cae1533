"""Value meshes: access by rank, coordinates and point; slices; lazy decoding."""

from __future__ import annotations

import copy
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._core.call.value_mesh import Parts, ValueMesh
from monarch._core.shape.shape import Extent, Point, Shape, Slice

SHAPE = Shape(["a", "b"], Slice.new_row_major([2, 3]))
STRIDED = Shape(["a", "b"], Slice(offset=2, sizes=[2, 2], strides=[10, 2]))
LINE = Shape(["n"], Slice.new_row_major([4]))
quick = settings(deadline=None, max_examples=100)


def letters() -> ValueMesh[str]:
    return ValueMesh(SHAPE, list("abcdef"))


class Decoder:
    """Counts its decodings; a part that starts with `!` cannot be decoded."""

    def __init__(self, wrap: Any = lambda text: [text]) -> None:
        self.seen: list[bytes] = []
        self.wrap = wrap

    def __call__(self, part: bytes) -> Any:
        self.seen.append(part)
        if part.startswith(b"!"):
            raise LookupError(part.decode())
        return self.wrap(part.decode())


def fresh(*texts: str) -> list[bytes]:
    return [bytes(bytearray(text.encode())) for text in texts]


class TestAccess:
    def test_iteration(self) -> None:
        extent = Extent(["a", "b"], [2, 3])
        pairs = [(Point(i, extent), letter) for i, letter in enumerate("abcdef")]
        assert list(letters()) == list(letters().items()) == pairs
        assert letters().values() == list("abcdef")
        assert len(letters()) == 6

    def test_get(self) -> None:
        assert [letters().get(i) for i in range(6)] == list("abcdef")
        for bad in (6, -1, 2**70):
            with pytest.raises(ValueError, match=rf"^index {bad} out of range \(len=6\)$"):
                letters().get(bad)
        with pytest.raises(TypeError):
            letters().get("a")  # type: ignore[arg-type]

    def test_item(self) -> None:
        assert letters().item(a=1, b=2) == "f"
        with pytest.raises(KeyError, match="'b'"):
            letters().item(a=1)
        with pytest.raises(KeyError, match=r"item has extra dimensions: \['c'\]"):
            letters().item(a=1, b=2, c=3)
        for bad in (3, -1):
            with pytest.raises(IndexError):
                letters().item(a=1, b=bad)
        with pytest.raises(TypeError):
            letters().item(a=1, b="x")  # type: ignore[arg-type]

    def test_subscript(self) -> None:
        ours = letters()
        assert [ours[i] for i in range(6)] == list("abcdef")
        assert all(ours[point] == value for point, value in ours)
        for bad in (6, -1, Point(8, Extent(["a", "b"], [3, 3]))):
            with pytest.raises(IndexError):
                ours[bad]
        for other in (Extent(["a"], [2]), Extent(["a", "b", "c"], [2, 3, 1])):
            with pytest.raises(KeyError):
                ours[Point(0, other)]
        with pytest.raises(TypeError):
            ours["a"]  # type: ignore[index]

    def test_no_dimensions(self) -> None:
        one = ValueMesh(Shape.unity(), ["v"])
        assert (one.item(), one.get(0), one[Point(0, Extent([], []))], one.values(), len(one)) == ("v", "v", "v", ["v"], 1)
        assert [(dict(point), value) for point, value in one] == [({}, "v")]
        assert one.flatten("r").item(r=0) == "v"

    def test_empty(self) -> None:
        none = ValueMesh(Shape(["a"], Slice.new_row_major([0])), [])
        assert (none.values(), list(none), len(none)) == ([], [], 0)
        assert repr(none) == "ValueMesh({a: 0}):\n  ()"

    def test_strided_shape(self) -> None:
        ours = ValueMesh(STRIDED, list("abcd"))
        assert ours.item(a=1, b=1) == "d"
        assert [point.rank for point, _ in ours] == [0, 1, 2, 3]
        assert ours.slice(a=1).values() == ["c", "d"]
        assert ours.slice(b=1).item(a=0) == "b"
        with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
            ours.flatten("r")

    def test_repr(self) -> None:
        assert repr(ValueMesh(LINE, [1, 1, 2, 2])) == (
            "ValueMesh({n: 4}):\n  (({'n': 0/4}, 1), ({'n': 1/4}, 1), ({'n': 2/4}, 2), ({'n': 3/4}, 2))"
        )
        assert repr(letters()).splitlines()[:2] == ["ValueMesh({a: 2, b: 3}):", "  (({'a': 0/2, 'b': 0/3}, 'a'),"]
        assert repr(ValueMesh(Shape.unity(), [1])) == "ValueMesh({}):\n  (({}, 1),)"

    def test_wrong_number_of_values(self) -> None:
        for values in ([1], list(range(7)), []):
            with pytest.raises(ValueError, match=rf"expected\s+6.*contains\s+{len(values)}"):
                ValueMesh(SHAPE, values)

    def test_values_are_copied_from_the_list(self) -> None:
        given = [1, 2, 3, 4]
        ours = ValueMesh(LINE, given)
        given[0] = 9
        assert ours.values() == [1, 2, 3, 4]

    def test_subscripted_class_is_the_class(self) -> None:
        assert ValueMesh[int] is ValueMesh

    def test_no_other_attributes(self) -> None:
        for name in ("x", "values", "extent"):
            with pytest.raises(AttributeError):
                setattr(letters(), name, 1)

    def test_pickle(self) -> None:
        sliced = letters().slice(b=slice(0, 3, 2))
        assert sliced.__reduce__() == (ValueMesh, (sliced._shape, ["a", "c", "d", "f"]))
        for again in (pickle.loads(pickle.dumps(sliced)), copy.copy(sliced)):
            assert again.values() == ["a", "c", "d", "f"]
            assert again._shape == sliced._shape


class TestFromIndexed:
    def test_any_order_and_last_wins(self) -> None:
        ours = ValueMesh.from_indexed(LINE, [(3, "d"), (1, "x"), (0, "a"), (2, "c"), (1, "b")])
        assert ours.values() == ["a", "b", "c", "d"]

    def test_positions_not_ranks_of_a_larger_space(self) -> None:
        assert ValueMesh.from_indexed(STRIDED, [(i, i) for i in range(4)]).values() == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("pairs", "count"), [([], 0), ([(0, 1), (0, 2)], 1), ([(0, 0), (3, 3)], 2), ([(i, i) for i in range(5)], 5), ([(9, 0)], 10)]
    )
    def test_gaps(self, pairs: list[tuple[int, int]], count: int) -> None:
        with pytest.raises(ValueError, match=rf"expected\s+4.*contains\s+{count}"):
            ValueMesh.from_indexed(LINE, pairs)

    def test_negative(self) -> None:
        with pytest.raises(OverflowError):
            ValueMesh.from_indexed(LINE, [(-1, 0)])


class TestShapes:
    @quick
    @given(st.data())
    def test_slices_agree_with_numpy(self, data: st.DataObject) -> None:
        sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        labels = ["x", "y", "z"][: len(sizes)]
        values = np.arange(int(np.prod(sizes))).reshape(sizes) * 10
        dense = Slice.new_row_major(sizes)
        shape = Shape(labels, Slice(offset=data.draw(st.integers(0, 4)), sizes=sizes, strides=[s * 2 for s in dense.strides]))
        ours = ValueMesh(shape, values.flatten().tolist())
        for _ in range(2):
            forward = [st.slices(n).filter(lambda s: (s.step or 1) > 0) for n in values.shape]
            keys = [data.draw(st.integers(0, n - 1) | some if n else some) for n, some in zip(values.shape, forward, strict=True)]
            ours, values = ours.slice(**dict(zip(labels, keys, strict=True))), values[tuple(keys)]
            labels = [label for label, key in zip(labels, keys, strict=True) if isinstance(key, slice)]
            assert ours.values() == [int(v) for v in values.flat]
            assert ours.extent == Extent(labels, values.shape)
            for i, (point, value) in enumerate(ours):
                assert point == Point(i, ours.extent)
                assert value == values[tuple(point.values())] == ours.item(**point) == ours[point] == ours.get(i)

    def test_split_flatten_rename(self) -> None:
        ours = letters()
        assert ours.split(b=("c", "d"), d=3).item(a=1, c=0, d=2) == "f"
        assert ours.flatten("r").item(r=4) == "e"
        assert ours.rename(a="z").item(z=1, b=0) == "d"
        assert ours.flatten("rank").slice(rank=slice(1, None)).values() == list("bcdef")
        assert isinstance(ours.flatten("r"), ValueMesh)


class TestLazy:
    def test_decodes_on_first_access_and_once(self) -> None:
        decode = Decoder()
        ours = ValueMesh(LINE, Parts(fresh("p", "q", "r", "s"), decode))
        assert decode.seen == []
        assert ours.get(2) == ["r"]
        assert ours.get(2) is ours.item(n=2)
        assert decode.seen == [b"r"]
        assert ours.values() == [["p"], ["q"], ["r"], ["s"]]
        assert sorted(decode.seen) == [b"p", b"q", b"r", b"s"]

    def test_slicing_decodes_nothing_and_shares_values(self) -> None:
        decode = Decoder()
        ours = ValueMesh(SHAPE, Parts(fresh(*"abcdef"), decode))
        part = ours.slice(a=1, b=slice(0, 3, 2))
        flat = ours.flatten("r").rename(r="s").split(s=("t", "u"), u=2)
        assert (len(part), len(flat), decode.seen) == (2, 6, [])
        assert part.values() == [["d"], ["f"]]
        assert part.get(0) is ours.get(3) is flat.get(3)
        assert decode.seen == [b"d", b"f"]

    def test_equal_parts_are_stored_once_with_private_values(self) -> None:
        decode = Decoder()
        ours = ValueMesh(LINE, Parts(fresh("p", "p", "p", "q"), decode))
        assert len({id(part) for part in ours._cells._raw}) == 2
        first, second, third, _ = ours.values()
        assert first == second == third == ["p"]
        first.append("mine")
        assert ours.values() == [["p", "mine"], ["p"], ["p"], ["q"]]

    @pytest.mark.parametrize("scalar", [None, True, 70000, 1.5, "text", b"x" * 10000])
    def test_runs_of_scalars_decode_once(self, scalar: object) -> None:
        decode = Decoder(lambda _: scalar)
        ours = ValueMesh(LINE, Parts(fresh("p", "p", "q", "p"), decode))
        assert ours.get(1) == scalar
        assert ours.values() == [scalar] * 4
        assert decode.seen == [b"p", b"q", b"p"]

    def test_tuples_are_not_scalars(self) -> None:
        ours = ValueMesh(LINE, Parts(fresh("p", "p", "p", "p"), Decoder(lambda text: ([text],))))
        ours.get(0)[0].append("mine")
        assert ours.get(1) == (["p"],)

    def test_error_raises_on_that_access_only(self) -> None:
        decode = Decoder()
        ours = ValueMesh(LINE, Parts(fresh("p", "!q", "!q", "s"), decode))
        assert (ours.get(0), ours.get(3)) == (["p"], ["s"])
        errors = []
        depths = []
        for _ in range(3):
            with pytest.raises(LookupError, match="!q") as caught:
                ours.item(n=1)
            errors.append(caught.value)
            depths.append(len(caught.traceback))
        assert errors[0] is errors[1] is errors[2]
        assert depths[0] == depths[1] == depths[2]
        assert decode.seen == [b"p", b"s", b"!q"]
        with pytest.raises(LookupError) as other:
            ours.get(2)
        assert other.value is not errors[0]
        walk = iter(ours)
        assert next(walk)[1] == ["p"]
        with pytest.raises(LookupError):
            next(walk)
        with pytest.raises(LookupError):
            ours.values()
        assert ours.slice(n=slice(0, 4, 3)).values() == [["p"], ["s"]]

    def test_repr_shows_what_does_not_decode(self) -> None:
        ours = ValueMesh(LINE, Parts(fresh("p", "!q", "r", "s"), Decoder()))
        assert "LookupError('!q')" in repr(ours)

    def test_interrupts_are_not_kept(self) -> None:
        pending: list[BaseException] = [KeyboardInterrupt()]

        def decode(part: bytes) -> bytes:
            if pending:
                raise pending.pop()
            return part

        ours = ValueMesh(Shape.unity(), Parts([b"p"], decode))
        with pytest.raises(KeyboardInterrupt):
            ours.item()
        assert ours.item() == b"p"

    def test_parts_are_let_go_once_decoded(self) -> None:
        class Part(bytearray):
            pass

        part = Part(b"p")
        gone = weakref.ref(part)
        ours = ValueMesh(Shape.unity(), Parts([part], lambda raw: [bytes(raw)]))
        del part
        assert gone() is not None
        assert ours.item() == [b"p"]
        assert gone() is None

    def test_racing_threads_see_one_value(self) -> None:
        both = threading.Barrier(2)

        def decode(part: bytes) -> list[bytes]:
            both.wait()
            return [part]

        ours = ValueMesh(Shape.unity(), Parts([b"p"], decode))
        seen: list[list[bytes]] = []
        threads = [threading.Thread(target=lambda: seen.append(ours.item())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen[0] is seen[1] is ours.item()

    def test_wrong_number_of_parts(self) -> None:
        with pytest.raises(ValueError, match=r"expected\s+4.*contains\s+1"):
            ValueMesh(LINE, Parts([b"p"], Decoder()))

    def test_pickles_as_values(self) -> None:
        ours = ValueMesh(LINE, Parts(fresh("p", "q", "r", "s"), Decoder()))
        again = pickle.loads(pickle.dumps(ours))
        assert again.values() == [["p"], ["q"], ["r"], ["s"]]
