"""Notes with the path to the object that could not be pickled or unpickled."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
import types

import pytest

from monarch._core.pickle import actor_class, pickling

LARGE = pickling.OUT_OF_BAND


def call(*args, **kwargs):
    return (args, kwargs)


def module_function():
    return "module"


class Model:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Slotted:
    __slots__ = ("part",)

    def __init__(self, part):
        self.part = part


class Selective(Model):
    def __getstate__(self):
        return {"kept": self.kept}


class Sequence(list):
    pass


lock = threading.Lock()
holder = Model(model={"lock": lock, "fine": 1})


def uses_lock():
    return lock


@pytest.mark.parametrize(
    ("message", "note"),
    [
        (call(holder), "in argument 0 -> .model -> ['lock']"),
        (call(1, x=[0, lock]), "in argument 'x' -> [1]"),
        (call(lock), "in argument 0"),
        (call((1, Slotted(lock))), "in argument 0 -> [1] -> .part"),
        (call(Selective(dropped=lock, kept=Model(inner=lock))), "in argument 0 -> .kept -> .inner"),
        (call(Sequence([1, lock])), "in argument 0 -> [1]"),
        (call(functools.partial(print, lock)), "in argument 0 -> its state -> [1] -> [0]"),
        ([1, lock], "in list object -> [1]"),
        (call({(1, Slotted(lock)): 1}), "in argument 0 -> key "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_note_gives_the_path(message, note):
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object") as caught:
        pickling.dumps(message)
    (found,) = caught.value.__notes__
    assert found == note or (note.endswith("key ") and found.startswith(note))


def test_note_for_closures_and_methods():
    inner = threading.Lock()
    with pytest.raises(TypeError) as caught:
        pickling.dumps(call(lambda: inner))
    assert caught.value.__notes__ == ["in argument 0 -> closure variable inner"]
    with pytest.raises(TypeError) as caught:
        pickling.dumps(call(holder.__reduce_ex__))
    assert caught.value.__notes__[0].startswith("in argument 0 -> .__self__ -> .model")

    class Local:
        def method(self):
            return inner

    with pytest.raises(TypeError) as caught:
        actor_class.dumps_class(Local)
    assert caught.value.__notes__ == ["in type object -> .method -> closure variable inner"]


def test_note_for_globals_of_code_by_value(monkeypatch):
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    module.__dict__["shared"] = lock
    exec("def function(): return shared", module.__dict__)
    with pytest.raises(TypeError) as caught:
        pickling.dumps(call(module.function))
    assert caught.value.__notes__ == ["in argument 0 -> global shared"]


class Refuses:
    def __reduce__(self):
        raise ValueError("refused")


def test_errors_of_users_code_are_the_original():
    with pytest.raises(ValueError, match="refused") as caught:
        pickling.dumps(call([Refuses()]))
    assert caught.value.__notes__ == ["in argument 0 -> [0]"]


def test_structure_that_is_too_deep():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        pickling.dumps(call(deep))


def test_search_gives_up():
    wide = [Model(n=n) for n in range(5000)]
    with pytest.raises(TypeError) as caught:
        pickling.dumps(call([*wide, lock]))
    assert caught.value.__notes__ == ["in argument 0"]


class Fragile:
    def __setstate__(self, state):
        raise ValueError("fragile")

    def __reduce__(self):
        return (Fragile, (), {"a": 1})


class Strict:
    def __init__(self, value=None):
        if value == 3:
            raise ValueError("three")

    def __reduce__(self):
        return (Strict, (3,))


class NewStrict(int):
    def __new__(cls, *args):
        if args:
            raise ValueError("new")
        return int.__new__(cls)

    def __getnewargs__(self):
        return (1,)


@pytest.mark.parametrize("kind", [Fragile, Strict, NewStrict])
def test_note_names_what_was_unpickled(kind):
    data, buffers = pickling.dumps(call([kind()]))
    with pytest.raises(ValueError, match=r"fragile|three|new") as caught:
        pickling.loads(data, buffers)
    assert caught.value.__notes__ == [f"while unpickling {__name__}.{kind.__name__}"]


def test_note_names_what_is_missing(monkeypatch):
    data, _ = pickling.dumps(call(module_function))
    monkeypatch.delattr(sys.modules[__name__], "module_function")
    with pytest.raises(AttributeError) as caught:
        pickling.loads(data)
    assert caught.value.__notes__ == [f"while unpickling {__name__}.module_function"]


def test_truncated_message():
    data, _ = pickling.dumps(call("some text"))
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        pickling.loads(data[:-5])


def test_buffers_that_are_missing():
    data, _ = pickling.dumps(call(b"x" * LARGE))
    with pytest.raises(pickle.UnpicklingError):
        pickling.loads(data)
