"""Code that is sent by value, between fresh interpreters that share nothing but the message."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap

import pytest

SEND = """
import pickle as _pickle
import sys as _sys
from monarch._core.pickle import pickling as _pickling
def send(obj):
    data, buffers = _pickling.dumps(obj)
    _sys.stdout.buffer.write(_pickle.dumps((data, [bytes(part) for part in buffers])))
"""

RECEIVE = """
import linecache, pickle, sys, traceback
from monarch._core.pickle import pickling
data, buffers = pickle.load(sys.stdin.buffer)
args, kwargs = pickling.loads(data, buffers)
"""


def run(arguments, data=b"", **options):
    done = subprocess.run([sys.executable, "-W", "error", *arguments], input=data, capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture
def send(tmp_path):
    """Runs a script as `__main__` and returns its message; the script is gone when this returns."""

    def send(source):
        script = tmp_path / "script.py"
        script.write_text(SEND + textwrap.dedent(source))
        sent = run([str(script)])
        script.unlink()
        return sent

    return send


def receive(message, code):
    return run(["-c", RECEIVE + textwrap.dedent(code)], message).decode().split("\n")[:-1]


def test_class_of_main_with_its_globals(send):
    message = send("""
        import math
        FACTOR = 3
        def scale(x):
            return FACTOR * x
        class Base:
            def area(self):
                return scale(self.r) * math.floor(1.5)
        class Round(Base):
            kind = "round"
            def __init__(self, r):
                super().__init__()
                self.r = r
        send(((Round, Round(2)), {}))
    """)
    assert receive(
        message,
        """
        kind, made = args
        print(type(made) is kind, made.area(), kind(5).area(), kind.kind, kind.__module__)
        """,
    ) == ["True 6 15 round __main__"]


def test_functions_lambdas_enums_and_caches_of_main(send):
    message = send("""
        import enum, functools, typing
        class Color(enum.Enum):
            RED = 1
        T = typing.TypeVar("T")
        class Box(typing.Generic[T]):
            pass
        @functools.cache
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)
        def outer(x):
            def inner(y):
                return x + y + fib(10)
            return inner
        send(((outer(1), lambda: Color.RED, Color.RED, T, Box[int]), {"f": fib}))
    """)
    assert receive(
        message,
        """
        inner, function, red, t, box = args
        print(inner(2), function() is red, red.name, t.__name__, box.__origin__.__name__, kwargs["f"](20))
        """,
    ) == ["58 True RED T Box 6765"]


def test_source_travels_with_the_code(send):
    message = send("""
        def explode(x):
            y = x + 1  # a line
            raise ValueError(y)  # the culprit
        send(((explode,), {}))
    """)
    shown = receive(
        message,
        """
        import inspect
        linecache.checkcache()
        try:
            args[0](1)
        except ValueError:
            traceback.print_exc(file=sys.stdout)
        print(inspect.getsource(args[0]))
        """,
    )
    assert "    raise ValueError(y)  # the culprit" in shown
    assert "    y = x + 1  # a line" in shown


def test_formatted_traceback_shows_the_source(send):
    message = send("""
        class Worker:
            def step(self):
                return self.missing  # no such thing
        send(((Worker,), {}))
    """)
    shown = receive(
        message,
        """
        from monarch._core.pickle.remote_exception import format_exception
        try:
            args[0]().step()
        except AttributeError as exc:
            print(format_exception(exc))
        """,
    )
    assert shown[0] == "Traceback of where the remote call failed (most recent call last):"
    assert "    return self.missing  # no such thing" in shown


def test_source_is_sent_once_per_message(send):
    filler = "# " + os.urandom(3000).hex()
    one = send(f"{filler}\nsend(((lambda: 1,), {{}}))")
    many = send(f"{filler}\nsend((({'lambda: 1, ' * 20}), {{}}))")
    assert len(many) < len(one) + 6000


def test_source_of_a_cell(send):
    """A notebook works like this: the code's file exists only in `linecache`."""
    message = send("""
        import linecache
        cell = "def in_cell():\\n    return 1 / 0  # in the cell\\n"
        linecache.cache["<cell 7>"] = (len(cell), None, cell.splitlines(True), "<cell 7>")
        exec(compile(cell, "<cell 7>", "exec"))
        send(((in_cell,), {}))
    """)
    shown = receive(
        message,
        """
        try:
            args[0]()
        except ZeroDivisionError:
            traceback.print_exc(file=sys.stdout)
        """,
    )
    assert '  File "<cell 7>", line 2, in in_cell' in shown and "    return 1 / 0  # in the cell" in shown


def test_other_file_under_the_same_name(send, tmp_path):
    message = send("""
        def explode():
            raise ValueError  # as it was sent
        send(((explode,), {}))
    """)
    (tmp_path / "script.py").write_text("# something else\n" * 50)
    shown = receive(
        message,
        """
        try:
            args[0]()
        except ValueError:
            traceback.print_exc(file=sys.stdout)
        """,
    )
    assert "    raise ValueError  # as it was sent" in shown


def test_equal_file_is_left_to_linecache(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SEND + "send(((lambda: 1,), {}))\n")
    message = run([str(script)])
    (entry,) = receive(message, f"print(linecache.cache[{str(script)!r}][1] is None)")
    assert entry == "False"


def test_code_without_source(send):
    message = send("""
        exec(compile("def bare(): return 3", "<nothing>", "exec"))
        send(((bare,), {}))
    """)
    assert receive(message, "print(args[0](), '<nothing>' in linecache.cache)") == ["3 False"]


def test_class_comes_back_to_where_it_was_defined(tmp_path):
    """The sender's class stays the sender's, with its own globals, when an instance or an error returns."""
    script = tmp_path / "script.py"
    script.write_text(
        SEND
        + textwrap.dedent("""
            import subprocess
            COUNT = 1
            class Failed(Exception):
                def text(self):
                    return COUNT
            data, _ = _pickling.dumps(((Failed,), {}))
            code = '''
            import sys, pickle
            from monarch._core.pickle import pickling
            from monarch._core.pickle import remote_exception
            kind = pickling.loads(sys.stdin.buffer.read())[0][0]
            kind.seen_by_other = True
            first = remote_exception.pack_exception(kind("a", 1))
            kind.text.__globals__["COUNT"] = 10
            again = pickling.dumps((kind("b"), kind.text))
            assert kind("c").text() == 10
            sys.stdout.buffer.write(pickle.dumps((first, again[0])))
            '''.replace("\\n            ", "\\n")
            done = subprocess.run([_sys.executable, "-c", code], input=data, capture_output=True)
            assert done.returncode == 0, done.stderr.decode()
            first, again = _pickle.loads(done.stdout)
            from monarch._core.pickle.remote_exception import unpack_exception
            back = unpack_exception(first)
            COUNT = 2
            other = _pickling.loads(again)[0]
            print(type(back) is Failed, back.args, type(other) is Failed, back.text(), other.text(), hasattr(Failed, "seen_by_other"))
        """)
    )
    assert run([str(script)]).decode() == "True ('a', 1) True 2 2 False\n"


def test_spawning_the_same_class_again(send, tmp_path):
    script = tmp_path / "classes.py"
    script.write_text(
        "import pickle, sys\nfrom monarch._core.pickle import actor_class\n"
        "class Actor:\n    total = 0\n    def add(self):\n        Actor.total += 1\n        return Actor.total\n"
        "one = actor_class.dumps_class(Actor); two = actor_class.dumps_class(Actor)\nassert one is two\n"
        "Actor.total = 100\nthree = actor_class.dumps_class(Actor)\nassert three != one\n"
        "sys.stdout.buffer.write(pickle.dumps((one, three)))\n"
    )
    data = run([str(script)])
    code = """
import pickle, sys
from monarch._core.pickle import actor_class
one, three = pickle.load(sys.stdin.buffer)
kind = actor_class.loads_class(one)
assert kind().add() == 1
assert actor_class.loads_class(bytes(bytearray(one))) is kind and kind().add() == 2
assert actor_class.loads_class(three) is kind
assert kind().add() == 101
"""
    run(["-c", code], data)


def test_importing_the_pickler_is_light():
    code = """
import sys
before = set(sys.modules)
from monarch._core.pickle import buffer
from monarch._core.errors import errors
from monarch._core.pickle import pickling
assert pickling.loads(*pickling.dumps(((1, [b"x" * 300], object), {})))[0][0] == 1
heavy = {"cloudpickle", "pickle", "inspect", "dataclasses", "asyncio", "logging", "traceback", "linecache", "torch", "numpy"}
print(sorted(heavy & (set(sys.modules) - before)), sum(name.startswith("monarch._core.") and "_native" not in name for name in sys.modules))
"""
    # Beside the native module: the three modules, those for imports, references, reducers and texts of errors, and their packages.
    assert run(["-c", code]).decode() == "[] 10\n"


def test_message_survives_a_plain_pickle_of_its_parts(send):
    data, buffers = pickle.loads(send("send(((b'x' * 1000, lambda: 2), {}))"))
    assert buffers == [b"x" * 1000] and b"xxxx" not in data


def test_known_class_takes_new_state_after_a_change(tmp_path):
    """A receiver keeps its class, with the globals of its methods, as long as the sender's class does not change."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pickle, sys\nfrom monarch._core.pickle import pickling\n"
        "n = 1\nclass Kind:\n    def method(self):\n        return n\n"
        "first = pickling.dumps(((Kind,), {}))[0]; second = pickling.dumps(((Kind, 2), {}))[0]\n"
        "n = 5\nthird = pickling.dumps(((Kind,), {}))[0]\n"
        "sys.stdout.buffer.write(pickle.dumps((first, second, third)))\n"
    )
    code = """
import pickle, sys
from monarch._core.pickle import pickling
first, second, third = pickle.load(sys.stdin.buffer)
kind = pickling.loads(first)[0][0]
method = kind.method
assert pickling.loads(second)[0][0] is kind and kind.method is method and kind().method() == 1
assert pickling.loads(third)[0][0] is kind and kind().method() == 5
"""
    run(["-c", code], run([str(script)]))


def test_threads_decode_one_class_together_and_whole(send):
    message = send("""
        from monarch.actor import Actor, endpoint
        class Echo(Actor):
            @endpoint
            def echo(self, x):
                return x
        send(((Echo,), {}))
    """)
    out = receive(
        message,
        """
        import concurrent.futures, functools, threading
        import cloudpickle.cloudpickle as module
        begun, may_go_on = threading.Event(), threading.Event()
        setter = module._class_setstate
        def slow(cls, state):
            begun.set()
            may_go_on.wait(10)
            return setter(cls, state)
        # The class that was received is gone: another one is made.
        del args
        import gc
        gc.collect()
        module._class_setstate = slow
        def load():
            (cls,), _ = pickling.loads(data, buffers)
            return sorted(vars(cls).keys() & {"echo"})
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(load)
            begun.wait()
            second = pool.submit(load)
            print(concurrent.futures.wait([second], 0.3).not_done == {second})
            may_go_on.set()
            print(first.result(), second.result())
        """,
    )
    assert out == ["True", "['echo'] ['echo']"]
