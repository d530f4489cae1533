"""The message pickler: tiers, buffers, classes that are sent by value, notes on failures, tensors."""

from __future__ import annotations

import array
import copyreg
import enum
import functools
import logging
import pickle
import sys
import threading
import types
from collections import OrderedDict, namedtuple

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._core.pickle import pickling, reference, state

LARGE = pickling.OUT_OF_BAND


def parts(buffers):
    """The buffers that the runtime supplies for a message: `bytes` if read-only, else writable memory."""
    return [bytes(part) if isinstance(part, bytes) or part.readonly else bytearray(part) for part in buffers]


def through(obj):
    data, buffers = pickling.dumps(obj)
    return pickling.loads(data, parts(buffers))


def call(*args, **kwargs):
    return (args, kwargs)


# Round trips ----------------------------------------------------------------------------------------------------------------------

hashable = st.none() | st.booleans() | st.integers() | st.text() | st.binary(max_size=600) | st.floats(allow_nan=False)
values = st.recursive(
    hashable | st.binary(min_size=LARGE, max_size=2 * LARGE).map(bytearray),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner)
        | st.sets(hashable)
        | st.builds(complex, st.integers(), st.integers())
    ),
    max_leaves=25,
)


@given(st.lists(values).map(tuple), st.dictionaries(st.text(), values))
def test_anything_plain_round_trips(args, kwargs):
    assert through((args, kwargs)) == (args, kwargs)
    assert pickling.loads(pickling.dumps_in_band((args, kwargs))) == (args, kwargs)


@given(values)
def test_results_round_trip(value):
    back = through(value)
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        Ellipsis,
        NotImplemented,
        type(None),
        type(Ellipsis),
        range(3),
        OrderedDict(a=1),
        len,
        int,
        np.float32,
        np.float32(1.5),
        frozenset({1}),
        array.array("d", [1.0]),
        types.SimpleNamespace(a=1),
        logging.getLogger("some.logger"),
        sys,
        {}.keys(),
        functools.partial(int, base=2),
        "é\udc80",
        -(2**200),
    ],
    ids=repr,
)
def test_unusual_values_survive_pickling(value):
    back = through(call(value))[0][0]
    assert type(back) is type(value)
    assert isinstance(value, functools.partial | type({}.keys())) or back == value


class NeitherTrueNorFalse:
    def __bool__(self):
        raise ValueError("asked for its truth")

    def __eq__(self, other):
        return type(other) is NeitherTrueNorFalse


@pytest.mark.parametrize("value", [np.zeros(3), NeitherTrueNorFalse()], ids=["array", "object"])
def test_truth_value_of_a_pair_is_not_used(value):
    number, same = through((1, value))
    assert number == 1 and type(same) is type(value)


def test_input_is_left_alone():
    message = call(b"x" * LARGE, [b"y" * LARGE], key={"a": b"z" * LARGE})
    before = repr(message)
    through(message)
    assert repr(message) == before


# Buffers --------------------------------------------------------------------------------------------------------------------------


def test_bytes_travel_by_reference():
    one, two, three, four = (bytes([n]) * LARGE for n in range(4))
    message = call(one, [two, (three, {"deeper": one})], key={"a": four, "b": two})
    data, buffers = pickling.dumps(message)
    assert [id(part) for part in buffers] == [id(one), id(two), id(four)]
    assert len(data) < 2 * LARGE  # only deeper objects are in it
    back = pickling.loads(data, buffers)
    assert back == message
    # Identities inside the message are kept, and the objects are the supplied ones.
    assert back[0][0] is one and back[0][1][1][1]["deeper"] is one and back[1]["key"]["b"] is back[0][1][0]


def test_small_bytes_stay_in_the_stream():
    assert pickling.dumps(call(b"x" * (LARGE - 1)))[1] == []
    assert len(pickling.dumps(call(b"x" * LARGE))[1]) == 1
    assert pickling.dumps(b"x" * LARGE)[1] == [b"x" * LARGE]


def test_shared_lists_stay_shared():
    shared = [b"x" * LARGE]
    holder = types.SimpleNamespace(held=shared)
    (one, other, back), _ = through(call(shared, shared, holder))
    assert one is other is back.held


def test_cyclic_containers_survive_pickling():
    loop = [b"x" * LARGE]
    loop.append(loop)
    (back,), _ = through(call(loop))
    assert back[1] is back and back[0] == loop[0]


def test_too_many_items_are_not_searched():
    message = call([b"x" * LARGE] * 5000)
    assert through(message) == message


def test_bytearray_comes_back_writable_and_private():
    original = bytearray(b"x" * 1000)
    (back,), _ = through(call(original))
    back[0] = 0
    assert type(back) is bytearray and original[0] == ord("x")


def test_bytes_subclass_keeps_its_class():
    (back,), _ = through(call(Kept(b"x" * LARGE)))
    assert type(back) is Kept and back == b"x" * LARGE


class Kept(bytes):
    pass


@pytest.mark.parametrize(
    ("made", "apart"),
    [
        (np.arange(1000), 1),
        (np.arange(4), 0),
        (np.arange(1000).reshape(10, 100).T, 1),
        (np.arange(4000).reshape(40, 100)[::2, ::3], 0),
        (np.array(3.5), 0),
        (np.empty((0, 5)), 0),
        (np.array(["a", None], dtype=object), 0),
        (np.zeros(500, dtype=[("a", "i4"), ("b", "f8")]), 1),
    ],
    ids=lambda value: f"{value.shape}{value.dtype}" if isinstance(value, np.ndarray) else "",
)
def test_arrays(made, apart):
    data, buffers = pickling.dumps(call(made))
    assert len(buffers) == apart and all(type(part) is memoryview and part.contiguous and part.ndim == 1 for part in buffers)
    (back,), _ = pickling.loads(data, parts(buffers))
    np.testing.assert_array_equal(back, made)
    assert back.dtype == made.dtype and back.flags.writeable


def test_frozen_array_stays_frozen():
    made = np.arange(1000)
    made.flags.writeable = False
    data, buffers = pickling.dumps(call(made))
    assert buffers[0].readonly
    (back,), _ = pickling.loads(data, buffers)
    assert not back.flags.writeable and (back == made).all()


def test_buffers_of_both_kinds_keep_their_order():
    message = call(np.arange(100), b"x" * LARGE, [np.arange(200), b"y" * LARGE])
    (one, two, (three, four)), _ = through(message)
    assert (one == np.arange(100)).all() and (three == np.arange(200)).all()
    assert (two, four) == (b"x" * LARGE, b"y" * LARGE)


def test_buffers_of_a_message_that_goes_by_value():
    message = call(np.arange(100), b"x" * LARGE, lambda: 5)
    data, buffers = pickling.dumps(message)
    assert len(buffers) == 2
    (one, two, three), _ = pickling.loads(data, parts(buffers))
    assert (one == np.arange(100)).all() and two == b"x" * LARGE and three() == 5


def test_pickle_buffer_that_is_not_contiguous():
    message = call(pickle.PickleBuffer(memoryview(bytearray(2000))[::2]))
    with pytest.raises(pickle.PicklingError):
        pickling.dumps(message)


# By value or by reference ---------------------------------------------------------------------------------------------------------


def module_function():
    return "module"


class Color(enum.Enum):
    RED = 1


Pair = namedtuple("Pair", "a b")


def test_importable_things_go_by_reference():
    (function, kind, member, pair, method), _ = through(call(module_function, Color, Color.RED, Pair(1, 2), Pair(1, 2).count))
    assert function is module_function and kind is Color and member is Color.RED and pair == Pair(1, 2) and method(1) == 1
    assert "cloudpickle" not in str(pickling.dumps(call(module_function))[0])


def test_local_definitions_go_by_value():
    captured = 41

    def local(x):
        return captured + x

    back, kind = through(call(local, lambda: captured))[0]
    assert back is not local and back(1) == 42 and kind() == 41


def test_local_class_comes_back_as_itself():
    class Local:
        registry: list[int] = []

        def method(self):
            return sys.modules[__name__]

    method = Local.method
    (kind, instance), _ = through(call(Local, Local()))
    assert kind is Local and type(instance) is Local
    # Its methods are not replaced by copies with globals of their own.
    assert Local.method is method and Local().method() is sys.modules[__name__]


def test_name_that_means_something_else():
    def impostor():
        return "impostor"

    impostor.__qualname__ = "module_function"
    impostor.__module__ = __name__
    assert through(call(impostor))[0][0]() == "impostor"


def test_registered_modules_go_by_value():
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        assert reference.goes_by_value(module_function)
        back = through(call(module_function))[0][0]
        assert back is not module_function and back() == "module"
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert through(call(module_function))[0][0] is module_function


def test_registered_packages_cover_their_modules(monkeypatch):
    package, inner = types.ModuleType("some_package"), types.ModuleType("some_package.inner")
    monkeypatch.setitem(sys.modules, "some_package", package)
    monkeypatch.setitem(sys.modules, "some_package.inner", inner)
    cloudpickle.register_pickle_by_value(package)
    try:
        assert reference.module_by_value("some_package.inner") and not reference.module_by_value("some_packages")
    finally:
        cloudpickle.unregister_pickle_by_value(package)


@pytest.mark.parametrize(("name", "file"), [("some_notebook", "a/some_notebook.ipynb"), ("__mp_main__", "a/script.py")])
def test_modules_that_the_other_side_lacks(monkeypatch, name, file):
    module = types.ModuleType(name)
    module.__file__ = file
    monkeypatch.setitem(sys.modules, name, module)
    exec("def function(): return 7\nclass Kind:\n    pass", module.__dict__)
    data, _ = pickling.dumps(call(module.function, module.Kind()))
    cloudpickle.unregister_pickle_by_value(module)
    monkeypatch.delitem(sys.modules, name)
    (function, instance), _ = pickling.loads(data)
    assert function() == 7 and type(instance).__name__ == "Kind"


def test_cached_function_goes_by_value(monkeypatch):
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    module.__dict__["functools"] = functools
    exec("@functools.lru_cache(maxsize=7)\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)", module.__dict__)
    data, _ = pickling.dumps(call(module.fib))
    module.fib = None  # a reference would find this
    back = pickling.loads(data)[0][0]
    assert back(20) == 6765 and back.cache_parameters()["maxsize"] == 7


# In a message or not --------------------------------------------------------------------------------------------------------------


class Handle:
    seen: list[bool] = []

    def __reduce__(self):
        self.seen.append(state.in_message())
        return (Handle, ())


def test_handles_know_whether_they_are_in_a_message():
    Handle.seen.clear()
    pickling.dumps(call(Handle()))
    pickle.dumps(Handle())
    pickling.dumps(call(lambda: 0, Handle()))
    pickling.dumps_in_band(Handle())
    assert Handle.seen == [True, False, True, True] and not state.in_message()


def test_message_state_is_per_thread_despite_errors():
    seen = []

    class Inner:
        def __reduce__(self):
            thread = threading.Thread(target=lambda: seen.append(state.in_message()))
            thread.start()
            thread.join()
            seen.append(state.in_message())
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        pickling.dumps(call(Inner()))
    assert set(seen[::2]) == {False} and set(seen[1::2]) == {True}
    assert not state.in_message()


def test_reducers_of_copyreg_are_used():
    class Registered:
        pass

    copyreg.pickle(Registered, lambda obj: (str, ("reduced",)))
    try:
        assert through(call(Registered())) == call("reduced")
    finally:
        del copyreg.dispatch_table[Registered]
