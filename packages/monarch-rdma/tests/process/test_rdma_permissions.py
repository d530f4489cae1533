"""What the kernel permits: Yama, by its own rule or by what stands for it, and locked memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_actors import __file__ as here
from yama import without_the_right_to_trace

from monarch.rdma._machine.probe import direct_copies

FOLDER = str(Path(here).parent)
SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")

# Every process reads the buffers of all others, and prints the transport of each.
CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from yama import enforce
if sys.argv[2]:
    enforce(int(sys.argv[2]))
from memory_actors import Owner, Reader, pattern
from monarch.actor import this_host, this_proc
from monarch.rdma._machine.probe import direct_copies

print(direct_copies())
sides = []
for i, procs in enumerate([this_proc(), this_host().spawn_procs(), this_host().spawn_procs()]):
    sides.append((procs.spawn(f"owner{i}", Owner), procs.spawn(f"reader{i}", Reader)))
for i, (owner, _) in enumerate(sides):
    for j, (_, reader) in enumerate(sides):
        if i != j:
            buffer = owner.share.call_one(100_000, seed=i).get()
            assert reader.read.call_one(buffer).get() == pattern(100_000, i)
            print(i, j, reader.path.call_one(buffer).get())
"""
PAIRS = [(i, j) for i in range(3) for j in range(3) if i != j]


def start(scope: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE, FOLDER, scope],
        capture_output=True,
        text=True,
        preexec_fn=without_the_right_to_trace if os.geteuid() == 0 else None,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def expect(scope: int, lines: list[str]) -> None:
    reason, *paths = lines
    if scope == 1:
        assert (reason, paths) == ("", [f"{i} {j} cma" for i, j in PAIRS])
    else:
        assert reason.startswith(f"kernel.yama.ptrace_scope is {scope}: ")
        assert paths == [f"{i} {j} shm-staged" for i, j in PAIRS]


@pytest.fixture(params=[1, 2])
def scope_of_this_machine(request: pytest.FixtureRequest) -> Iterator[int]:
    """For the whole machine, which gets its own back."""
    if not SCOPE.exists():
        pytest.skip("this kernel has no Yama; the rule is tested by what stands for it")
    before = SCOPE.read_text()
    if int(before) > 2 or not os.access(SCOPE, os.W_OK):
        pytest.skip(f"kernel.yama.ptrace_scope is {before.strip()} and cannot be changed")
    SCOPE.write_text(f"{request.param}\n")
    yield request.param
    SCOPE.write_text(before)


def test_with_yama(scope_of_this_machine):
    expect(scope_of_this_machine, start(""))


@pytest.mark.parametrize("scope", [1, 2, 3])
def test_substitute_for_yama_decides_copies(scope):
    if SCOPE.exists():
        pytest.skip("this kernel has Yama itself")
    if os.geteuid() != 0:
        pytest.skip("mounting a file where Yama has it needs root")
    expect(scope, start(str(scope)))


def test_probe_explains_yama_scopes(tmp_path):
    file = tmp_path / "ptrace_scope"
    for text, words in (("0", ""), ("1", ""), ("3", "nobody may"), ("nonsense", "")):
        file.write_text(f"{text}\n")
        found = direct_copies(str(file))
        assert words in found and bool(words) == bool(found)


def test_no_memory_may_be_locked():
    """Paths of one host lock none, and report how much may be."""
    code = """
import resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
from memory_actors import Owner, Reader, pattern
from monarch.actor import this_host
from monarch.rdma import probe
from monarch.rdma._doctor import lines
reader = this_host().spawn_procs().spawn("reader", Reader)
for arena in (False, True):
    owner = this_host().spawn_procs().spawn("owner", Owner, arena)
    buffer = owner.share.call_one(3_000_000).get()
    assert reader.read.call_one(buffer).get() == pattern(3_000_000)
    print(reader.path.call_one(buffer).get())
print(next(lines())[1])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, FOLDER], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    direct, arena, said = done.stdout.splitlines()
    assert direct in ("cma", "shm-staged") and arena == "shm"
    assert said.endswith("locked memory 0 KiB")
