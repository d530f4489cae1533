"""Payloads of classes that are sent by value: kept while no part changes, made again after any change."""

from __future__ import annotations

import enum
import functools
import gc
import logging
import sys
import threading
import types
import weakref
from collections import OrderedDict, namedtuple

import cloudpickle
import numpy as np
import pytest

from monarch._core.pickle import actor_class, class_cache, pickling
from monarch._core.pickle.fingerprint import Fingerprint, Mutable


class Color(enum.Enum):
    RED = 1


Pair = namedtuple("Pair", "a b")


class Kept(bytes):
    pass


def module_function():
    return "module"


def local_class():
    class Local:
        limit = 3

        def method(self):
            return sys.maxsize

    return Local


def test_class_by_reference():
    data = actor_class.dumps_class(Pair)
    assert data[:1] == b"\x80" and actor_class.loads_class(data) is Pair


def test_payload_of_an_unchanged_class_is_kept():
    kind = local_class()
    assert actor_class.dumps_class(kind) is actor_class.dumps_class(kind)
    assert actor_class.loads_class(actor_class.dumps_class(kind)) is kind


def test_equal_payloads_give_the_same_class_without_unpickling(monkeypatch):
    data = actor_class.dumps_class(local_class())
    found = actor_class.loads_class(data)
    monkeypatch.setattr(pickling, "_c_loads", None)
    assert actor_class.loads_class(bytes(bytearray(data))) is found


threshold = 1
config = {"a": 1}
listed = [1, 2]


def uses_global():
    return threshold


def make_with(**entries):
    return type("Made", (), {"__module__": "__main__", **entries})


def changes():
    def rebind_global(kind):
        global threshold
        threshold += 1

    def method():
        return threshold

    method.__module__ = "__main__"
    captured = 1

    def closure():
        return captured

    def rebind_cell(kind):
        nonlocal captured
        captured += 1

    def defaults(x=1, *, y=2):
        return x + y

    def edit_defaults(kind):
        kind.method.__defaults__ = (5,)

    def edit_keyword(kind):
        kind.method.__kwdefaults__["y"] = 3

    def edit_code(kind):
        kind.method.__code__ = (lambda: 7).__code__

    def edit_attribute(kind):
        kind.method.mark = 1

    def add(kind):
        kind.more = 1

    def rebind(kind):
        kind.limit = 2

    def remove(kind):
        del kind.limit

    def edit_base(kind):
        kind.__bases__[0].limit = 9

    def edit_list(kind):
        kind.listed.append(3)

    def edit_dict(kind):
        kind.config["b"] = 1

    def edit_inner(kind):
        kind.inner.x = 2

    base = make_with(limit=1)
    child = type("Child", (base,), {"__module__": "__main__"})
    return [
        (make_with(method=method), rebind_global),
        (make_with(method=closure), rebind_cell),
        (make_with(method=staticmethod(closure)), rebind_cell),
        (make_with(method=classmethod(closure)), rebind_cell),
        (make_with(method=property(closure)), rebind_cell),
        (make_with(method=functools.cached_property(closure)), rebind_cell),
        (make_with(method=lambda self: closure()), rebind_cell),
        (make_with(method=defaults), edit_defaults),
        (make_with(method=defaults), edit_keyword),
        (make_with(method=lambda: 1), edit_code),
        (make_with(method=lambda: 1), edit_attribute),
        (make_with(), add),
        (make_with(limit=1), rebind),
        (make_with(limit=1), remove),
        (child, edit_base),
        (make_with(listed=[1, 2]), edit_list),
        (make_with(config={"a": 1}), edit_dict),
        (make_with(inner=make_with(x=1)), edit_inner),
        (make_with(inner=make_with(x=1), many=(1, [2])), lambda kind: kind.many[1].append(1)),
    ]


@pytest.mark.parametrize("index", range(len(changes())))
def test_payload_follows_every_change(index):
    kind, change = changes()[index]
    before = actor_class.dumps_class(kind)
    assert actor_class.dumps_class(kind) is before
    change(kind)
    after = actor_class.dumps_class(kind)
    assert after is not before
    assert actor_class.dumps_class(kind) is after


@pytest.mark.parametrize(
    "value",
    [types.SimpleNamespace(), threading.Lock(), {1, 2}, object(), [].append, np.zeros(3), iter(())],
    ids=lambda value: type(value).__name__,
)
def test_mutable_values_have_no_fingerprint(value):
    with pytest.raises(Mutable):
        Fingerprint(make_with(value=value))
    with pytest.raises(Mutable):
        Fingerprint(make_with(value=(1, {"a": value})))


def test_uncacheable_classes_are_pickled_every_time():
    kind = make_with(value=types.SimpleNamespace(n=1))
    before = actor_class.dumps_class(kind)
    kind.value.n = 2
    assert actor_class.dumps_class(kind) != before


@pytest.mark.parametrize(
    "value",
    [
        logging.getLogger("x"),
        sys,
        len,
        Color.RED,
        list[int],
        int | None,
        OrderedDict,
        module_function,
        functools.lru_cache(lambda: 1),
        frozenset({1}),
        Ellipsis,
    ],
    ids=repr,
)
def test_constant_values_keep_their_fingerprint(value):
    assert Fingerprint(make_with(value=value)).unchanged()


def test_registration_by_value_is_noticed():
    kind = make_with(method=staticmethod(module_function))
    before = actor_class.dumps_class(kind)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        assert actor_class.dumps_class(kind) != before
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_abstract_classes():
    import abc

    class Abstract(abc.ABC):  # noqa: B024
        x = 1

    before = actor_class.dumps_class(Abstract)
    assert actor_class.dumps_class(Abstract) is before
    Abstract.register(Kept)
    assert actor_class.dumps_class(Abstract) is not before


def test_caches_are_bounded():
    kinds = [local_class() for _ in range(300)]
    for kind in kinds:
        actor_class.loads_class(actor_class.dumps_class(kind))
    assert len(class_cache._entries) <= 128 and len(class_cache._classes) <= 128


def test_class_is_released():
    kind = local_class()
    pickling.loads(*pickling.dumps((kind,)))
    class_cache._entries.clear()
    gone = weakref.ref(kind)
    del kind
    gc.collect()
    assert gone() is None
