"""The docstrings of the names that users meet first have an example and all sections; and faults of a docstring are found."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import docstrings

WHOLE = '''def f(n: int, *, wait: bool = False) -> int:
    """Does it.

    Args:
        n: the number.
        wait: whether to wait.

    Returns:
        The result.

    Raises:
        ValueError: `n` is negative.

    ```python
    assert True
    ```
    """
'''


def problems(text: str) -> list[str]:
    node = ast.parse(text).body[0]
    assert isinstance(node, docstrings.Documented)
    return docstrings.problems("f", node)


@pytest.mark.parametrize("name", docstrings.FIRST)
def test_docstring_of_a_first_name_is_complete(name: str) -> None:
    assert docstrings.problems(name, docstrings.definition(name)) == []


@pytest.mark.parametrize(
    ("part", "instead", "found"),
    [
        ("n: the", "m: the", ["does not state n"]),
        ("Args:", "Arguments:", ["has no Args: n, wait"]),
        ("Returns:", "Result:", ["has no Returns"]),
        ("Raises:", "Errors:", ["has no Raises"]),
        ("```python", "```text", ["has no example that runs"]),
        ("```python", "```python no-run", ["has no example that runs"]),
    ],
)
def test_missing_part_of_a_docstring_is_found(part: str, instead: str, found: list[str]) -> None:
    assert problems(WHOLE) == []
    assert problems(WHOLE.replace(part, instead)) == found


def test_class_states_arguments_of_its_constructor() -> None:
    made = "    def __init__(self, a: int) -> None: ...\n"
    text = f'class C:\n    """It.\n\n    Args:\n        {{}}: it.\n\n    ```python\n    x = 1\n    ```\n    """\n\n{made}'
    assert problems(text.format("a")) == []
    assert problems(text.format("b")) == ["does not state a"]


def test_examples_have_the_names_of_their_definitions(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('class C:\n    def g(self) -> None:\n        """It.\n\n        ```python\n        x = 1\n        ```\n        """\n')
    ((name, line, code),) = docstrings.examples(path)
    assert (name, line, code.strip()) == ("C.g", 2, "x = 1")
