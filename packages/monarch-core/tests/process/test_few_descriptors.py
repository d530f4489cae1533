"""A client that may have very few descriptors: it starts or says that it cannot, and its exit adds nothing to that."""

from __future__ import annotations

import re

import pytest
from fresh import run

SCRIPT = """
import resource
from monarch.actor import this_host
resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
this_host()
print("started")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""


@pytest.mark.parametrize("count", range(12, 20))
def test_client_with_few_descriptors_starts_or_says_why_not(count: int) -> None:
    done = run(SCRIPT.format(count=count), check=False)
    if done.returncode == 0:
        assert (done.stdout, done.stderr) == ("started\n", "")
    else:
        last = done.stderr.splitlines()[-1]
        assert (done.returncode, done.stdout) == (1, ""), done
        assert re.fullmatch(r"OSError: .*Too many open files.*", last), done.stderr
        assert "atexit" not in done.stderr and "_at_exit" not in done.stderr
