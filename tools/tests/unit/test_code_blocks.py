"""Python blocks of a page become one script with the line numbers of the page."""

from __future__ import annotations

from tools.code_blocks import blocks, script

PAGE = """# Title
```python
a = 1
```
text
```console
$ not python
```
```python no-run
raise SystemExit(1)
```
````markdown
```python
inner = "not a block of this page"
```
````
```python
b = a + 1
"""


def test_blocks_in_order_on_their_own_lines() -> None:
    lines = script(PAGE).splitlines()
    assert [(number, line) for number, line in enumerate(lines, 1) if line] == [(3, "a = 1"), (18, "b = a + 1")]


def test_blocks_are_found_and_unindented() -> None:
    assert blocks(PAGE) == ["a = 1", "b = a + 1"]
    assert blocks("  ```python\n  if a:\n      b\n  ```\n") == ["if a:\n    b"]


def test_page_without_python_has_no_script() -> None:
    assert script("no code\n```console\n$ x\n```\n") == ""


def test_indented_block_is_moved_to_the_margin() -> None:
    assert script("  ```python\n  a = 1\n  ```\n") == "\na = 1\n"
