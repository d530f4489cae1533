"""Code of the documentation is run, and its errors are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_docs
from tools.check_docs import check, documents, main


def page(folder: Path, *lines: str) -> Path:
    path = folder / "page.md"
    path.write_text("\n".join(["text", "```python", *lines, "```", ""]))
    return path


def test_page_that_works_has_no_error(tmp_path: Path) -> None:
    assert check(page(tmp_path, "import os", "assert os.listdir()")) is None
    (tmp_path / "plain.md").write_text("# nothing to run\n")
    assert check(tmp_path / "plain.md") is None


def test_traceback_points_into_the_page(tmp_path: Path) -> None:
    assert "line 4" in (check(page(tmp_path, "a = 1", "raise ValueError(a)")) or "")


@pytest.mark.parametrize(
    "line", ["import sys; sys.exit(3)", "import sys; print('x', file=sys.stderr)", "import warnings; warnings.warn('x')"]
)
def test_output_of_a_page_fails_it(tmp_path: Path, line: str) -> None:
    assert check(page(tmp_path, line)) is not None


def test_examples_have_a_main_and_run_quickly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = tmp_path / "example.py"
    example.write_text("print('x')\n")
    assert check(example) == "an example must define main()"
    example.write_text("import sys\ndef main():\n    assert sys.argv[1:] == ['--quick']\nmain()\n")
    assert main([str(example)]) == 0
    assert "1 files, 0 failed" in capsys.readouterr().out


def test_example_of_each_docstring_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_docs, "PACKAGES", tmp_path)
    module = tmp_path / "module.py"
    example = '    """It.\n\n    ```python\n    {}\n    ```\n    """\n'
    module.write_text(f"def f():\n{example.format('x = 1')}\ndef g():\n{example.format('assert not globals().get(chr(120))')}")
    assert check(module) is None
    module.write_text(f"def f():\n{example.format('x = 1')}\nclass C:\n{example.format('print(x)')}")
    found = check(module) or ""
    assert found.startswith("the example of C, line 9: exit code 1") and "NameError" in found


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((["--help"], 0), ([str(tmp_path / "nothing.md")], 2)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == code
    assert "no such file: " in capsys.readouterr().err


def test_front_page_is_among_the_documents() -> None:
    assert "README.md" in [path.name for path in documents()]
