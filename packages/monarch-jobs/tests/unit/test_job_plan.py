"""Plans are text: equal specs have equal ones, and nothing secret is in them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from monarch.job import AttachJob, LocalJob, Plan, ProcessJob


def test_prints_text_and_files() -> None:
    plan = Plan("x", "#!/bin/sh\nrun\n", {"a.json": "{}\n", "b": "1"})
    assert str(plan) == "#!/bin/sh\nrun\n--- a.json ---\n{}\n--- b ---\n1\n"
    assert plan == pickle.loads(pickle.dumps(plan))
    assert plan != Plan("x", "#!/bin/sh\nrun\n")
    with pytest.raises(TypeError):
        plan.files["c"] = ""  # type: ignore[index]
    with pytest.raises(AttributeError):
        plan.text = ""  # type: ignore[misc]


PROCESS = """\
env A=...
env TOKEN=...
trainers[0]: monarch worker --listen ipc://DIRECTORY/0.sock
trainers[1]: monarch worker --listen ipc://DIRECTORY/1.sock
a b[0]: monarch worker --listen ipc://DIRECTORY/2.sock
"""


def test_snapshots(folder: Path) -> None:
    process = ProcessJob({"trainers": 2, "a b": 1}, {"TOKEN": "hunter2", "A": "b"})
    assert str(process.plan()) == PROCESS
    assert process.plan().redacted
    assert not ProcessJob({"a": 1}).plan().redacted
    assert str(LocalJob(("a", "b")).plan()) == "mesh a: the machine of the client\nmesh b: the machine of the client\n"
    assert str(AttachJob({"a": ["tcp://h:1", "ipc:///x"]}).plan()) == "a[0]: tcp://h:1\na[1]: ipc:///x\n"
    # A plan changes nothing, and neither does a constructor.
    assert os.listdir(folder) == []
    assert not os.path.exists(os.environ["MONARCH_HOME"])


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ProcessJob({}), ValueError, "at least one mesh"),
        (lambda: ProcessJob({"a": 0}), ValueError, "mesh 'a' needs at least one host, not 0"),
        (lambda: ProcessJob({"a": -1}), ValueError, "at least one host"),
        (lambda: ProcessJob({"a": True}), TypeError, "an int, not bool"),
        (lambda: ProcessJob({"a": "2"}), TypeError, "an int, not str"),  # type: ignore[dict-item]
        (lambda: ProcessJob({"": 1}), ValueError, "empty"),
        (lambda: ProcessJob({3: 1}), TypeError, "text, not int"),  # type: ignore[dict-item]
        (lambda: ProcessJob({"query_engine": 1}), ValueError, "every JobState has that"),
        (lambda: ProcessJob({"__class__": 1}), ValueError, "every JobState has that"),
        (lambda: ProcessJob({"a": 1}, {"A=B": ""}), ValueError, "cannot be set in an environment"),
        (lambda: ProcessJob({"a": 1}, {"A": 1}), ValueError, "string"),  # type: ignore[dict-item]
        (lambda: LocalJob(()), ValueError, "at least one mesh"),
        (lambda: LocalJob("hosts"), TypeError, "several names"),
        (lambda: LocalJob(("a", "a")), ValueError, "one name"),
        (lambda: AttachJob({"a": []}), ValueError, "at least one host"),
        (lambda: AttachJob({"a": "tcp://x:1"}), TypeError, "not one text"),  # type: ignore[dict-item]
        (lambda: AttachJob({"a": ["nowhere"]}), ValueError, "nowhere"),
        (lambda: AttachJob({"a": ["-oProxyCommand=x"]}), ValueError, "names no host"),
    ],
)
def test_constructors_refuse_invalid_arguments(make, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()
