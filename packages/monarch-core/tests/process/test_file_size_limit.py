"""Large arguments and answers under a limit of file sizes (`ulimit -f`), which applies to shared memory too."""

from __future__ import annotations

import pytest
from fresh_script import run

SCRIPT = """
import resource
limit = 1 << 20
def limited():
    # Python ignores the signal; a program that embeds Python may not.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
class Answers(Actor):
    @endpoint
    def twice(self, data):
        return data + data
size = 5 * limit
data = os.urandom(size)
"""


@pytest.mark.parametrize("where", ["client", "procs", "both"])
def test_large_parts_go_over_the_link(where: str) -> None:
    code = f"""
if {where != "procs"}:
    limited()
procs = this_host().spawn_procs({{"gpus": 2}}, bootstrap=limited if {where != "client"} else None)
answers = procs.spawn("answers", Answers)
for _ in range(2):
    assert all(found == data + data for _, found in answers.twice.call(data).get().items())
answers.twice.broadcast(bytearray(size))
# From proc to proc.
class Asks(Actor):
    @endpoint
    def ask(self, other, n):
        return len(other.slice(gpus=n).twice.call_one(data).get())
assert procs.spawn("asks", Asks).slice(gpus=0).ask.call_one(answers, 1).get() == 2 * size
procs.stop().get()
"""
    run(SCRIPT + code).assert_clean()
