"""Records of failures: what they hide, and what is read back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ExitReason
from monarch.extension.masking import Masking
from monarch.spmd import RankFailure, SPMDError
from monarch.spmd.record import Mask, masked, read, write

FAILURE = RankFailure(1, "gpus=1", "host-7", 12, "exception", ExitReason("exit_code", code=1), 1, 5.0, "ValueError: x", "Traceback", ("a",))


def written(folder: Path, env: dict[str, str]) -> Path:
    return write(
        folder,
        command=["torchrun", "--nproc-per-node=2", "a.py"],
        env=env,
        workdir="/work",
        hosts=3,
        per_host=2,
        run_id="r",
        attempt=0,
        failures=[FAILURE],
        stacks="",
    )


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "GITHUB_PAT",
        "PGPASS",
        "MYSQL_PWD",
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "DB_PASSWORD",
        "auth_header",
        "SESSION_COOKIE",
    ],
)
def test_values_that_look_like_secrets_are_hidden(name: str) -> None:
    assert masked({name: "hunter2", "LR": "0.1"}) == {name: "***", "LR": "0.1"}


def test_passwords_in_urls_are_hidden() -> None:
    assert masked({"PROXY": "http://me:hunter2@proxy:80/x"}) == {"PROXY": "http://***@proxy:80/x"}


COMMAND = [
    "train.py",
    *("--token", "option-1", "--api-key=option-2", "-password", "option-3", "--db_password=option-4", "--auth-token", "option-5"),
    *("token=option-6", "db.password=option-7", "++api_key=option-8", "--credentials", "option-9"),
    *("--header", "Authorization: Bearer option-10", "http://host/x?lr=1&api_key=option-11&sig=option-12"),
]


@pytest.mark.parametrize("value", [f"option-{n}" for n in range(1, 13)])
def test_secrets_of_the_command_are_hidden_everywhere(value: str) -> None:
    mask = Mask({}, COMMAND)
    assert not any(word.endswith(value) for word in mask.words(COMMAND))
    line = f"ValueError: bad {' '.join(COMMAND)}"
    assert not any(word.endswith(value) for word in mask.text(line).replace("&", " ").split()), mask.text(line)


def test_values_of_other_options_stay() -> None:
    command = ["--max-tokens=4096", "--token-dim", "512", "--tokenizer", "llama", "--keys=a", "monkey=1", "--author", "a name", "-k", "5"]
    assert Mask({}, command).words(command) == command


@pytest.mark.parametrize(
    "text",
    [
        "refused key h" + "f_" + "aBcD" * 8,
        "jwt was ey" + "JhbGciOi.ey" + "JzdWIiOi.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIBaBcD\n-----END RSA PRIVATE " + "KEY-----",
        "environ({'HOME': 'aBcD'})",
        "connect(user='me', password='aBcD')",
        "clientSecret: aBcD",
    ],
)
def test_record_hides_what_captures_hide(folder: Path, text: str) -> None:
    assert Masking().text(text) == Mask({}).text(text) and "aBcD" not in Mask({}).text(text)
    failure = FAILURE._replace(message=text, traceback=f"line\n{text}", output=(text,))
    path = write(
        folder,
        command=["a.py", text],
        env={"NOTE": text, "clientSecret": "aBcD"},
        workdir=None,
        hosts=1,
        per_host=2,
        run_id="r",
        attempt=0,
        failures=[failure],
        stacks=text,
    )
    assert "aBcD" not in path.read_text()


def test_multiline_secret_is_hidden_by_line() -> None:
    key = 'line of "key" 1\nline of key 2\n'
    mask = Mask({"SIGNING_KEY": key})
    for text in (key, repr(key), str({"key": key}), "line of key 2"):
        assert "line" not in mask.text(text), mask.text(text)


def test_written_record_is_read_back(folder: Path) -> None:
    path = written(folder / "runs", {"LR": "0.1", "HF_TOKEN": "hunter2", "PL_GLOBAL_SEED": "7"})
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert "hunter2" not in path.read_text()
    found = json.loads(path.read_text())
    assert found["seeds"] == {"PL_GLOBAL_SEED": "7"} and found["world"]["size"] == 6
    assert found["failures"][0]["message"] == "ValueError: x" and found["versions"]["python"]
    replay = read(path)
    assert replay.command == ["torchrun", "--nproc-per-node=2", "a.py"]
    # A value that was hidden comes from the environment of the replay.
    assert replay.env == {"LR": "0.1", "PL_GLOBAL_SEED": "7"}
    assert (replay.hosts, replay.per_host, replay.workdir) == (3, 2, "/work")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "is no record of a failure"),
        ("[]", "a field is missing"),
        ('{"schema": 9}', "has schema 9; this version reads schema 1"),
        ('{"schema": 1, "command": "a.py"}', "a field is missing, or of another type"),
    ],
)
def test_files_that_are_no_records_are_named(folder: Path, text: Any, words: str) -> None:
    path = folder / "failure.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SPMDError, match=words) as raised:
        read(path)
    assert str(path) in str(raised.value)
