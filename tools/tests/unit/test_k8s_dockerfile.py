"""The parsed Dockerfiles of the images, and refused instructions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.k8s import dockerfile, image_build
from tools.project import JOBS

IMAGES = JOBS / "images"


def _read(tmp_path: Path, text: str) -> dockerfile.Dockerfile:
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    return dockerfile.read(path)


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.Dockerfile")), ids=lambda path: path.stem)
def test_our_dockerfiles_pin_their_base_without_root(path: Path) -> None:
    found = dockerfile.read(path)
    _, _, tag = found.base.partition(":")
    assert any(letter.isdigit() for letter in tag)
    assert int(found.image.user.partition(":")[0]) > 0
    assert [bind for step in found.steps for bind in step.binds] == [("dist", "/wheels")]
    assert found.image.command and found.ports


def test_slim_image_as_read() -> None:
    found = dockerfile.read(IMAGES / "slim.Dockerfile")
    assert " ".join(found.image.command) == f"monarch worker --listen tcp://*:{found.ports[0]}"
    assert found.steps[0].command.startswith("apt-get update && apt-get install --yes")
    assert (found.image.env, found.image.workdir, found.image.entrypoint) == (("PYTHONUNBUFFERED=1",), "/tmp", ())


def test_lines_comments_arguments_and_quotes(tmp_path: Path) -> None:
    text = "# c\nARG V=1\nFROM base:${V}\nRUN a \\\n    # within\n    && b\nENV A='x y' B=2\nENTRYPOINT [\"e\"]\n"
    found = _read(tmp_path, text)
    assert (found.base, found.steps) == ("base:1", (dockerfile.Step("a && b", ()),))
    assert (found.image.env, found.image.entrypoint) == (("A=x y", "B=2"), ("e",))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("COPY a b", "no such instruction"),
        ("FROM other:1", "not at this place"),
        ("RUN --network=none a", "only bind mounts"),
        ('RUN ["a"]', "only bind mounts"),
        ("ENV A 1", "no such instruction"),
        ("CMD a b", "Expecting value"),
        ('CMD "a"', "a list of words"),
        ("USER 1000\nRUN a", "not at this place: RUN a"),
    ],
)
def test_unknown_instruction_is_named_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        _read(tmp_path, f"FROM base:1\n\n{line}\n")
    assert f"Dockerfile:{2 + len(line.splitlines())}: " in str(caught.value)


def test_only_slim_debian_bases_have_a_substitute(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stands in for the base 'rocm/pytorch"):
        image_build.base(dockerfile.read(IMAGES / "rocm.Dockerfile"))
    with pytest.raises(ValueError, match="no FROM"):
        _read(tmp_path, "# nothing\n")


def test_missing_folder_is_named_before_a_step(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no folder 'dist' is given to: RUN pip"):
        image_build.run_step(tmp_path, dockerfile.Step("pip", (("dist", "/wheels"),)), {}, ())
    assert list(tmp_path.iterdir()) == []


def test_kept_image_depends_on_steps_before_the_checkout(tmp_path: Path) -> None:
    first = "FROM python:3.12-slim-bookworm\nRUN a\n"
    last = "RUN --mount=type=bind,source=dist,target=/wheels b\n"
    kept = [
        image_build.prepared(_read(tmp_path, text))
        for text in (first, first + last, first.replace("a", "c"), first.replace("3.12", "3.13"))
    ]
    assert kept[0].recipe == kept[1].recipe == kept[3].recipe != kept[2].recipe
    assert image_build.prepared(dockerfile.read(IMAGES / "operator.Dockerfile")).name == "image-base"
