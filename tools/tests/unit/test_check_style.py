"""The style checks find what they must, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_style import check
from tools.style import rust

SLASH = "/"


def rules(tmp_path: Path, name: str, text: str) -> list[tuple[str, int]]:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return [(problem.rule, problem.line) for problem in check(tmp_path, [Path(name)])]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import time\ntime.sleep(1)\n", 2),  # sleeps: data of this test
        ("import time as t\nt.sleep(1)\n", 2),
        ("from time import sleep\nsleep(1)\n", 2),
        ("from asyncio import sleep as doze\nasync def f():\n    await doze(1)\n", 3),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n", 3),  # sleeps: data of this test
        ('CODE = """\nimport time\ntime.sleep(9)\n"""\n', 3),  # sleeps: data of this test
    ],
)
def test_sleep_in_a_test_is_found(tmp_path: Path, text: str, line: int) -> None:
    assert rules(tmp_path, "tests/test_x.py", text) == [("sleep", line)]
    assert rules(tmp_path, "monarch/x.py", text) == []


def test_sleep_with_a_reason_is_accepted(tmp_path: Path) -> None:
    marked = "import time\ntime.sleep(1)  # sleeps: the kernel offers no event\n"
    assert rules(tmp_path, "tests/test_x.py", marked) == []
    assert rules(tmp_path, "tests/test_x.py", "clock.sleep(1)\nsleep(2)\n") == []
    assert rules(tmp_path, "tests/test_x.py", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n") == []
    assert rules(tmp_path, "tests/test_x.py", marked.replace(": the kernel offers no event", "")) == [("sleep", 2)]


@pytest.mark.parametrize("name", ["utils.py", "string_utils.rs", "common.py", "actor_manager.rs", "helpers.sh", "common/x.py"])
def test_meaningless_names_are_refused(tmp_path: Path, name: str) -> None:
    expected = [] if name == "common/x.py" else [("vague-name", 0)]
    assert rules(tmp_path, name, "") == expected


def test_namespace_has_no_init(tmp_path: Path) -> None:
    assert rules(tmp_path, "python/monarch/__init__.py", "") == [("namespace", 0)]
    assert rules(tmp_path, "python/monarch/actor/__init__.py", "") == []


def test_init_is_a_table_of_contents(tmp_path: Path) -> None:
    fine = '"""x"""\nfrom a import b\n__all__ = ["b"]\ndef __getattr__(name): ...\n'
    assert rules(tmp_path, "a/__init__.py", fine) == []
    assert rules(tmp_path, "a/__init__.py", fine + "def f(): ...\nclass C: ...\n") == [("contents-only", 5), ("contents-only", 6)]


def test_lib_rs_is_a_table_of_contents(tmp_path: Path) -> None:
    fine = "//! fn not_one() {}\npub mod a;\npub use a::B;\n#[pymodule]\nfn _native() {}\n#[cfg(test)]\nmod tests { fn t() {} }\n"
    assert rules(tmp_path, "lib.rs", fine) == []
    assert rules(tmp_path, "lib.rs", "mod a;\npub(crate) unsafe fn f() {}\nimpl A {}\n") == [("contents-only", 2), ("contents-only", 3)]
    assert rules(tmp_path, "a.rs", "fn f() {}\n") == []


def test_long_files_and_lines(tmp_path: Path) -> None:
    assert rules(tmp_path, "a.rs", "//\n" * 600) == []
    assert rules(tmp_path, "a.rs", "//\n" * 601) == [("file-length", 0)]
    assert rules(tmp_path, "a.py", "#" * 140 + "\n" + "#" * 141) == [("line-length", 2)]
    assert rules(tmp_path, "a.md", "#" * 500) == []


def test_folders_of_one_machine(tmp_path: Path) -> None:
    for folder in ("work/main", "home/ann", "root/.cargo"):
        assert rules(tmp_path, "a.md", f"see {SLASH}{folder}") == [("machine-path", 1)]
    for text in ("~/work/x", "frame/work/x", "$HOME/home/x", "{root}/work/x", "./root/a", "/usr/bin"):
        assert rules(tmp_path, "a.md", text) == [], text


def test_download_addresses(tmp_path: Path) -> None:
    scheme = "https:" + SLASH * 2
    for address in ("example.org/a/b-1.0.whl", "example.org/x.tar.gz", "registry.npm" + "js.org", "py" + "pi.org/simple"):
        assert rules(tmp_path, "a.md", f"[x]({scheme}{address})") == [("download-address", 1)], address
    assert rules(tmp_path, "a.md", f"{scheme}example.org/page.html") == []
    assert rules(tmp_path, "Cargo.lock", f"{scheme}py" + "pi.org/simple") == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a.unwrap();\n", [1]),
        ('a\n    .b()\n    .expect("x");\n', [3]),
        ("a.unwrap(); // proof: a is Some, checked above\n", []),
        ("// proof: the lock is never poisoned,\n// no holder panics\na\n    .lock()\n    .unwrap();\n", []),
        ("// proof: of the next line only\nb();\na.unwrap();\n", [3]),
        ("a.unwrap_or(1); a.unwrap_or_else(f); a.unwrap_or_default();\n", []),
        ('// a.unwrap()\nlet s = ".unwrap()"; let c = \'"\'; let d = r#"x".unwrap()"#;\n/* .unwrap() */\n', []),
        ("#[cfg(test)]\nmod tests {\n    fn f() { a.unwrap(); }\n}\nfn g<'a>(x: &'a T) { x.unwrap(); }\n", [5]),
        ("#[cfg(test)]\nmod tests;\nfn g() { x.unwrap(); }\n", [3]),
    ],
)
def test_unwraps_need_a_proof(tmp_path: Path, text: str, lines: list[int]) -> None:
    assert rules(tmp_path, "src/a.rs", text) == [("unwrap", line) for line in lines]
    assert rules(tmp_path, "tests/a.rs", text) == []


def test_placeholders_do_not_ship(tmp_path: Path) -> None:
    assert rules(tmp_path, "src/a.rs", "fn f() { todo!() }\n") == [("placeholder", 1)]


def test_sleeps_in_rust_tests(tmp_path: Path) -> None:
    call = "std::thread::sle" + "ep(d);"
    text = f"fn f() {{ {call} }}\n#[cfg(test)]\nmod tests {{\n    fn t() {{ {call} }}\n}}\n"
    assert rules(tmp_path, "src/a.rs", text) == [("sleep", 4)]
    assert rules(tmp_path, "tests/a.rs", text) == [("sleep", 1), ("sleep", 4)]
    assert rules(tmp_path, "tests/a.rs", f"{call} // sleeps: no event from this device\n") == []


def test_blanking_keeps_every_place() -> None:
    text = "a /* x\ny */ b \"q\\\"r\" 'c' '\\'' <'l> // z\n"
    blanked = rust.blank(text)
    assert len(blanked) == len(text)
    assert [len(line) for line in blanked.split("\n")] == [len(line) for line in text.split("\n")]
    assert blanked.split() == ["a", "b", "<'l>"]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("packages/monarch-x/python/monarch/x/__init__.py", "from monarch._core.config import config\n", [1]),
        ("packages/monarch-x/python/monarch/x/command.py", 'CODE = """\nfrom monarch._core.cli import main\n"""\n', [2]),
        ("packages/monarch-x/pyproject.toml", '[project.entry-points."monarch.cli"]\nx = "monarch._core.cli:main"\n', [2]),
        ("packages/monarch-x/python/monarch/x/command.py", "from monarch.extension import ask as ask\n", []),
        ("packages/monarch-core/pyproject.toml", 'monarch = "monarch._core.cli:main"\n', []),
        ("packages/monarch-x/tests/unit/test_x.py", "from monarch._core.config import config as config\n", []),
    ],
)
def test_only_core_names_its_private_modules(tmp_path: Path, name: str, text: str, found: list[int]) -> None:
    assert [line for rule, line in rules(tmp_path, name, text) if rule == "private-core"] == found


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("while not ready():\n    pass\n", [1]),  # polls: data of this test
        ("while not ready():\n    os.sched_yield()\n", [1]),  # polls: data of this test
        ("while ready() != 1:\n    time.sleep(0.01)  # sleeps: data of this test\n", [1]),  # polls: data of this test
        ('CODE = """\nx = 1\nwhile not ready():\n    pass\n"""\n', [3]),
        ('CODE = f"""\nwhile not {x}:\n    pass\n"""\n', [2]),
        ("while not ready():  # polls: the queue waits\n    pass\n", []),
        ("while True:\n    pass\n", []),
        ("while time.monotonic() < end:\n    pass\n", []),
        ("while not ready():\n    step()\n", []),
        ('"""Looks while it waits."""\n', []),
    ],
)
def test_loops_of_tests_that_only_wait(tmp_path: Path, text: str, lines: list[int]) -> None:
    assert rules(tmp_path, "tests/test_x.py", text) == [("poll", line) for line in lines]
    assert rules(tmp_path, "src/x.py", text) == []


@pytest.mark.parametrize(
    ("use", "decides"),
    [
        ('if "busy" in str(e): raise', True),
        ('if "busy" not in str(e).lower(): raise', True),
        ('if str(e) == "busy": raise', True),
        ('if str(e).startswith("busy"): raise', True),
        ('if re.search("busy", repr(e)): raise', True),
        ("if e.args[0] == 3: raise", True),
        ("if e.errno == 3: raise", False),
        ('log(f"busy: {str(e).partition(chr(10))[0]}")', False),
        ('if "busy" in str(other): raise', False),
    ],
)
def test_texts_of_caught_errors_decide_nothing(tmp_path: Path, use: str, decides: bool) -> None:
    text = f"try:\n    step()\nexcept OSError as e:\n    {use}\n"
    assert rules(tmp_path, "src/x.py", text) == [("error-text", 4)] * decides
    assert rules(tmp_path, "tests/test_x.py", text) == []


def test_equal_names_of_test_files_are_found(tmp_path: Path) -> None:
    paths = [Path(folder, name) for folder, name in (("a", "test_x.py"), ("b", "test_x.py"), ("b", "conftest.py"), ("a", "conftest.py"))]
    for path in paths:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("")
    assert [(str(problem.path), problem.rule) for problem in check(tmp_path, paths)] == [("b/test_x.py", "test-file-name")]
