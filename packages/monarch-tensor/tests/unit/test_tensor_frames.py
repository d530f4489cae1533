"""Lines of the program that issue a command."""

import sys
from types import CodeType, SimpleNamespace

from monarch.tensor._protocol import frames
from monarch.tensor._protocol.frames import Frame, current_site, frames_of


def emit():
    return current_site()


def caller():
    return emit()


def line_of(function, text):
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_innermost_line_comes_first():
    found = frames_of(caller())
    assert found[0] == Frame(__file__, line_of(caller, "emit()"), "caller")
    assert found[1].function == "test_innermost_line_comes_first"
    assert len(found) == frames.KEPT


def test_lines_of_torch_and_monarch_are_omitted():
    module = SimpleNamespace(__name__="torch.nn.modules.linear")
    names = {"__name__": module.__name__, "emit": emit}
    exec(compile("def forward():\n    return emit()\n", "linear.py", "exec"), names)
    found = frames_of(names["forward"]())
    assert [f.function for f in found][0] == "test_lines_of_torch_and_monarch_are_omitted"


def test_deep_recursion_costs_only_the_kept_depth():
    def deeper(n):
        return emit() if n == 0 else deeper(n - 1)

    assert len(frames_of(deeper(200))) == frames.KEPT
    assert sys.getrecursionlimit() > 200


def test_site_without_program_lines_is_empty():
    assert frames_of(()) == ()


def test_cache_of_generated_code_is_bounded(monkeypatch):
    monkeypatch.setattr(frames, "_kept", [emit.__code__] * 65537)
    monkeypatch.setattr(frames, "_is_program", dict.fromkeys(range(65537), False))
    site = caller()
    assert len(frames._kept) == len(frames._is_program) < 100
    assert isinstance(site[0], CodeType)
