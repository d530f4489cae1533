"""Errors that other wheels declare: their hints are found by code, and a broken table is left out and named."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from monarch._core.errors.table import ERROR_TABLE
from monarch._core.errors.text import hint_of
from monarch.actor import MonarchError
from monarch.extension import error_text
from tools import installed_wheel

DECLARED = """
from monarch.actor import MonarchError
from monarch.extension import ErrorRow, error_text

class WordError(MonarchError):
    def __init__(self, word):
        super().__init__(error_text("parrot_word", word=word), code="parrot_word")
        self.word = word

ROWS = (
    ErrorRow("parrot_word", WordError, "a word is not known", "parrot does not know {word}", "teach it"),
    ErrorRow("parrot_mute", WordError, "it says nothing", "parrot is mute"),
)
"""
START = """
import pickle
from monarch.actor import MonarchError
from monarch.extension import error_text
from parrot_errors import *
"""


def run(code: str, folder: Path, source: str = DECLARED) -> subprocess.CompletedProcess[str]:
    """Runs in a fresh process: rows that are loaded stay."""
    site = installed_wheel.install(folder, "parrot", {"monarch.errors": {"parrot": "parrot_errors:ROWS"}}, {"parrot_errors": source})
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    argv = [sys.executable, "-W", "error", "-c", START + textwrap.dedent(code)]
    return subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)


def test_error_has_its_rows_text_and_hint(tmp_path: Path) -> None:
    code = """
        error = WordError("hello")
        assert str(error) == "parrot does not know hello\\n  hint: teach it"
        assert (error.code, error.hint) == ("parrot_word", "teach it")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.code, again.hint, again.word) == (WordError, str(error), "parrot_word", "teach it", "hello")
        assert MonarchError("x", code="parrot_mute").hint is None and error_text("parrot_mute") == "parrot is mute"
        assert MonarchError("x", code="parrot_word", hint="another").hint == "another"
    """
    done = run(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_of_core_load_no_rows(tmp_path: Path) -> None:
    code = """
        import sys
        MonarchError("x"), MonarchError("x", code="request_failed")
        assert "monarch._core.config.entry_points" not in sys.modules
    """
    assert run(code, tmp_path).stderr == ""


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("ROWS = ['word']", "TypeError: 'word' is not an ErrorRow"),
        (DECLARED.replace("parrot_mute", "parrot_word"), "ValueError: the code `parrot_word` is declared twice"),
        (DECLARED.replace("parrot_mute", "host_lost"), "ValueError: the code `host_lost` belongs to monarch-core"),
        (
            DECLARED.replace("WordError, ", "ValueError, "),
            "`parrot_word`: <class 'ValueError'> is not a subclass of MonarchError",
        ),
        (DECLARED.replace("know {word}", "know {}"), "TypeError: `parrot_word`: the field '' of the template has no name"),
        (DECLARED.replace("know {word}", "know {word"), "TypeError: `parrot_word`: the template 'parrot does not know {word' is malformed"),
        (DECLARED.replace("'it says nothing'", "''").replace('"it says nothing"', '""'), "`parrot_mute`: expected a code of letters"),
    ],
)
def test_broken_table_is_named_and_left_out(source: str, text: str, tmp_path: Path) -> None:
    code = """
        error = MonarchError("no word", code="parrot_word")
        assert (str(error), error.code, error.hint) == ("no word", "parrot_word", None)
        MonarchError("no word", code="parrot_word")
        try:
            error_text("parrot_word", word="x")
        except KeyError as e:
            assert "no wheel declares an error with the code 'parrot_word'" in str(e)
        else:
            raise AssertionError
    """
    done = run(code, tmp_path, source)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("left out: parrot 1.0: entry point 'parrot' of monarch.errors (parrot_errors:ROWS)") == 1
    assert text in done.stderr and "Traceback" in done.stderr


def test_failing_table_is_named_and_left_out(tmp_path: Path) -> None:
    code = "assert MonarchError('x', code='parrot_word').hint is None"
    source = "import sys\nif 'again' in sys.__dict__: raise OSError('no dictionary')\nsys.again = True\n"
    done = run("import sys; del sys.modules['parrot_errors']\n" + code, tmp_path, source)
    assert done.returncode == 0 and "OSError: no dictionary" in done.stderr and "parrot 1.0" in done.stderr


def test_error_text_of_core_has_its_hint() -> None:
    assert error_text("procs_not_started", k=1, n=2).startswith("1 of 2 procs did not start\n  hint: run the command by hand")
    with pytest.raises(KeyError, match="why"):
        error_text("request_failed", name="rows", proc="<4>")


@pytest.mark.parametrize("wheel", ["rdma", "job"])
def test_codes_of_our_wheels_are_declared(wheel: str) -> None:
    from importlib import import_module

    from monarch._core.errors.known_rows import row_of

    classes = [one for one in vars(import_module(f"monarch.{wheel}.errors")).values() if isinstance(one, type)]
    codes = {one._default_code for one in classes if issubclass(one, MonarchError)} - {row.code for row in ERROR_TABLE}
    assert codes and all(row_of(code) is not None for code in codes)


def test_error_without_a_free_descriptor_has_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDescriptors:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "monarch._core.errors.known_rows":
                raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.delitem(sys.modules, "monarch._core.errors.known_rows", raising=False)
    monkeypatch.delattr("monarch._core.errors.known_rows", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoDescriptors(), *sys.meta_path])
    assert hint_of("code_of_no_wheel") is None
