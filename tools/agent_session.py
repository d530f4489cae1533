"""Records sessions of a scripted agent that finds and repairs faults, for the page docs/diagnose-agent.md.

    python -m tools.agent_session           prints the page
    python -m tools.agent_session --write   writes it

Each session is real: a program with a fault runs as a process, the agent is a client of `monarch mcp` and calls the tool `diagnose`, the
command after `next:` runs, the patch is applied to the file of the program, and the program runs again until the tool finds nothing. The
agent has one patch for each program; all that it reads of the job are answers. It needs `monarch-telemetry[http,mcp]`.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tools.project import ROOT

PAGE = ROOT / "docs" / "diagnose-agent.md"
_COMMAND = "from monarch.extension.cli import main; main()"
# The seconds in which a fault has to be found, on a machine with much other work.
_LATE = 90.0
_PROGRAMS = ROOT / "tools" / "agent_programs"


class Scene(NamedTuple):
    """A program with a fault, the words by which the agent recognises it, and the repair: lines to replace."""

    name: str
    words: str
    repair: tuple[tuple[str, str], ...]


SCENES = (
    Scene(
        "cycle",
        r"a cycle of 2",
        (
            ("        return self.trainer.position.call_one().get() + 1\n", "        return position + 1\n"),
            ("    def batch(self) -> int:\n", "    def batch(self, position: int) -> int:\n"),
            ("self.loader.batch.call_one().get()", "self.loader.batch.call_one(self.at).get()"),
        ),
    ),
    Scene(
        "lock",
        r"holds a lock in ",
        (
            (
                "            with self.lock:\n                self.wanted.wait()\n",
                "            self.wanted.wait()\n            with self.lock:\n",
            ),
        ),
    ),
    Scene(
        "consumer",
        r"messages wait and their number grows",
        (("        sink.push.broadcast(batch)\n", "        sink.push.call_one(batch).get()\n"),),
    ),
)


def page(scenes: tuple[Scene, ...] = SCENES) -> str:
    """The page, of sessions that run now."""
    return "\n\n".join([_HEAD, *(session(one) for one in scenes)]) + "\n"


_HEAD = """<!-- Written by `python -m tools.agent_session --write`; edit that module. -->

# A coding agent repairs a job

Three recorded sessions of a scripted agent. The agent has the tool `diagnose` of [`monarch mcp`](agents.md), the file of the program, and a
shell. In each session the agent runs the program, calls `diagnose`, runs the command after `next:`, changes the program, and runs it
again until `diagnose` finds nothing. [diagnose.md](diagnose.md) explains the answers. Numbers are those of one run."""


def session(scene: Scene) -> str:
    """The transcript of one session, as a section of the page."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, f"{scene.name}.py")
        source = (_PROGRAMS / program.name).read_text()
        program.write_text(source)
        title = re.match(r'"""(.+?)\."""', source)
        parts = [f"## {title[1] if title else scene.name}"]
        with running(program) as (job, url):
            answer = asked(url, lambda text: re.search(scene.words, text) is not None)
            command = next_command(answer)
            shown = subprocess.run(
                [sys.executable, "-c", _COMMAND, *command.split()[1:], str(job)], capture_output=True, text=True, timeout=_LATE, check=False
            ).stdout
            place = named_place(answer, program.name)
            parts += [
                f"The agent runs the program, and calls `diagnose`:\n\n{block(causes(answer))}",
                f"It confirms the cause by the next step, `{command} PID`. Of its output:\n\n{block(lines_about(shown, place))}",
            ]
        repaired = source
        for old, new in scene.repair:
            if old not in repaired:
                raise ValueError(f"{program.name} has no line {old!r}")
            repaired = repaired.replace(old, new)
        program.write_text(repaired)
        parts.append(f"It changes the program:\n\n{block(patch(source, repaired), 'diff')}")
        with running(program) as (_, url):
            answer = asked(url, lambda text: text.startswith("nothing is wrong"))
            parts.append(f"It runs the program again, and calls `diagnose`:\n\n{block(causes(answer))}")
        return "\n\n".join(parts).replace(folder, "/project")


@contextmanager
def running(program: Path) -> Generator[tuple[int, str], None, None]:
    """The pid of a program that runs, and the URL of its API."""
    with subprocess.Popen([sys.executable, str(program)], cwd=program.parent, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None
            url = next((line.split()[1] for line in job.stdout if line.startswith("url: ")), None)
            if url is None:
                raise RuntimeError(f"{program.name} has ended: code {job.wait()}")
            yield job.pid, url
        finally:
            job.send_signal(signal.SIGKILL)


def asked(url: str, is_wanted: Callable[[str], bool]) -> str:
    """The first answer of `diagnose` that is wanted, of a new client; a fault needs some seconds until it can be seen."""
    import anyio
    from mcp import ClientSession, StdioServerParameters, stdio_client

    server = StdioServerParameters(command=sys.executable, args=["-c", _COMMAND, "mcp", "--addr", url], env=dict(os.environ))

    async def ask() -> str:
        text = ""
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            until = time.monotonic() + _LATE
            while time.monotonic() < until:
                answer: Any = await client.call_tool("diagnose", {})
                text = str(answer.content[0].text)
                if is_wanted(text):
                    return text
                await anyio.sleep(0.5)
        raise TimeoutError(f"no such diagnosis within {_LATE:g} s; the last one:\n{text}")

    return anyio.run(ask)


def causes(answer: str) -> str:
    """The answer without the list of canned diagnoses."""
    return answer.partition("\ncanned diagnoses")[0].rstrip()


def next_command(answer: str) -> str:
    """The command after `next:` of the first cause."""
    found = re.search(r"next: (.+)", answer)
    if found is None:
        raise ValueError(f"no next command:\n{answer}")
    return found[1].strip()


def named_place(answer: str, file: str) -> str:
    """`FILE:LINE` of the program in the first cause."""
    found = re.search(rf"{re.escape(file)}:\d+", answer)
    if found is None:
        raise ValueError(f"no line of {file}:\n{answer}")
    return found[0]


def lines_about(shown: str, place: str) -> str:
    """The lines of stacks with a place, and the line above each."""
    file, _, number = place.partition(":")
    lines = shown.splitlines()
    found = [index for index, line in enumerate(lines) if re.search(rf"{re.escape(file)}\D{{1,12}}{number}\b", line)]
    if not found:
        raise ValueError(f"{place} is not in the output of the next command:\n{shown}")
    return lines[found[0]].strip()


def patch(before: str, after: str) -> str:
    """The changed lines of a program, with a line around them."""
    return "\n".join(
        line.rstrip("\n")
        for line in list(difflib.unified_diff(before.splitlines(True), after.splitlines(True), n=1))[2:]
        if not line.startswith("@@")
    )


def block(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def structure(text: str) -> Iterator[str]:
    """The parts that are equal in all recordings: titles, steps, patches, the kind of each cause and its next command."""
    kinds = [re.compile(one.words) for one in SCENES]
    for line in text.splitlines():
        if re.match(r"#|[+-]|The agent|It ", line):
            yield line
        elif line.startswith("1  "):
            yield next((f"1  {kind.pattern}" for kind in kinds if kind.search(line)), line)
        elif (found := re.search(r"next: .*|^nothing is wrong", line)) is not None:
            yield found[0]


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    text = page()
    if arguments:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
