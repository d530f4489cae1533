"""Secrets in texts: a corpus of masked and unmasked texts, JSON, and texts that are hard for the patterns."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.extension.masking import MASK, Masking, is_secret

PLAIN = Masking()
# None of these is a real secret. Each is put together here, so that scanners of repositories find none.
PW = "hun" + "ter2-x"
GH, HF, AWS = "gh" + "p_" + "a1B2" * 9, "h" + "f_" + "aBcD" * 8, "AK" + "IA" + "ABCDEFGH" * 2
JWT = "ey" + "JhbGciOi.ey" + "JzdWIiOi.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIB\nabc=\n-----END RSA PRIVATE " + "KEY-----"
KEY_LINE = "aB3+" * 16

SECRETS = [
    (f"HF_TOKEN={HF}", "HF_TOKEN=***"),
    (f"export WANDB_API_KEY='{PW}' && run", "export WANDB_API_KEY='***' && run"),
    (f"AWS_SECRET_ACCESS_KEY={PW} AWS_REGION=eu", "AWS_SECRET_ACCESS_KEY=*** AWS_REGION=eu"),
    (f"login(user='me', password='{PW}', tries=3)", "login(user='me', password='***', tries=3)"),
    (f"login(user=me, password={PW}, tries=3)", "login(user=me, password=***, tries=3)"),
    (f"dbPassword: {PW}", "dbPassword: ***"),
    (f'{{"clientSecret": "{PW}\\"quoted", "a": 1}}', '{"clientSecret": "***", "a": 1}'),
    (f"{{'api-key': b'{PW}', 'a': 1}}", "{'api-key': b'***', 'a': 1}"),
    (f'"{{\\"token\\": \\"{PW}\\", \\"a\\": 1}}"', '"{\\"token\\": \\"***\\", \\"a\\": 1}"'),
    (f"password={PW},with,commas next", "password=*** next"),
    (f"run --api-key {PW} --rank 3", "run --api-key *** --rank 3"),
    (f"run --auth-token={PW} --rank 3", "run --auth-token=*** --rank 3"),
    (f"['run', '--password', '{PW}', '3']", "['run', '--password', '***', '3']"),
    (f"GET https://me:{PW}@example.com/x?a=1", "GET https://me:***@example.com/x?a=1"),
    (f"postgresql+psycopg://me:{PW}@db:5432/x", "postgresql+psycopg://me:***@db:5432/x"),
    (f"redis://:{PW}@db", "redis://:***@db"),
    (f"git clone https://{GH}@example.com/x.git", "git clone https://***@example.com/x.git"),
    (f"https://example.com/x?access_token={PW}&page=2", "https://example.com/x?access_token=***&page=2"),
    (f"https://s3.example.com/x?X-Amz-Signature={PW}&b=1", "https://s3.example.com/x?X-Amz-Signature=***&b=1"),
    (f"url=https://example.com/?token={PW}", "url=https://example.com/?token=***"),
    (f"Authorization: Bearer {PW}", "Authorization: ***"),
    (f"{{'Authorization': 'Basic {PW}'}}", "{'Authorization': '***'}"),
    (f"sent with bearer {PW}abc", "sent with bearer ***"),
    (f"Cookie: session={PW}; theme=dark", "Cookie: ***"),
    (f"found {GH} in history", "found *** in history"),
    (f"key {AWS} was refused", "key *** was refused"),
    (f"jwt was {JWT}.", "jwt was ***."),
    (f"a {PEM} b", "a *** PRIVATE KEY *** b"),
    (PEM[:60], "*** PRIVATE KEY ***"),
    (KEY_LINE, "***"),
    ("environ({'HOME': '/root', 'A': \"it's\"})", "environ({'HOME': '***', 'A': \"***\"})"),
    ("environ({'HOME': '/ro", "environ({'HOME': '***'"),
    (f"token: {PW}\npassword: {PW}\n", "token: ***\npassword: ***\n"),
    ("password=12345", "password=***"),
]
KEPT = [
    "step 12 loss 3.25 tokens/s: 81234 max_tokens=4096 num_tokens: 12 token_count=5",
    "eos_token='</s>' pad_token=<pad> bos_token: <s> token=5",
    "tokenizer=llama tokenizer_file=/x/tokenizer.json",
    "token_file=/run/token password_file: /run/pw secret_name=db",
    "https://example.com/a/b?page=2#x ssh://git@example.com/x.git",
    "mail me@example.com, see https://example.com/@me",
    "key=value keys=3 key: rank monkey=banana cache_key=abc",
    "the signature of f(x) changed; authored by me; author: me",
    "password=None token=null secret=",
    "Basic configuration of bearer tokens",
    "sha256 " + "0123456789abcdef" * 4,
    "0123456789abcdef" * 4,
    "PATH=/usr/bin NCCL_DEBUG=INFO",
    "",
]
TEXTS = st.text(max_size=200) | st.lists(
    st.sampled_from([*(text for text, _ in SECRETS), *KEPT, "\n", " ", "'", '"', "\\", "=", ":", ",", "}", "token", "password="]),
    max_size=6,
).map("".join)


@pytest.mark.parametrize(("text", "masked"), SECRETS)
def test_secrets_are_masked(text: str, masked: str) -> None:
    assert PLAIN.text(text) == masked
    assert PLAIN.text(masked) == masked


@pytest.mark.parametrize("text", KEPT)
def test_harmless_texts_stay(text: str) -> None:
    assert PLAIN.text(text) == text


def test_names_of_secrets() -> None:
    for name in "HF_TOKEN githubToken API_KEY apiKey x-api-key DB_PASSWORD_2 secret AWS_SESSION_TOKEN aws_credentials Set-Cookie".split():
        assert is_secret(name), name
    for (
        name
    ) in "tokens max_tokens token_id key cache_key SECRET_NAME secret_version password_file author rank eos_token token_type".split():
        assert not is_secret(name), name
    assert not is_secret("") and not is_secret("__")
    assert (PLAIN.named("HF_TOKEN", "x"), PLAIN.named("HF_TOKEN", ""), PLAIN.named("HOME", f"a://b:{PW}@c")) == (MASK, "", "a://b:***@c")


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_masking_twice_is_masking_once(text: str) -> None:
    once = PLAIN.text(text)
    assert PLAIN.text(once) == once


def test_values_of_secret_variables_are_masked_everywhere() -> None:
    masking = Masking.of_environment({"HF_TOKEN": f"{PW}", "DB_PASSWORD": f"{PW}-longer", "HOME": "/root", "SHORT_TOKEN": "abc"})
    assert masking.text(f"got {PW}-longer and {PW} in /root, abc") == "got *** and *** in /root, abc"
    assert masking.json(json.dumps({"a": [f"x{PW}"]})) == '{"a": ["x***"]}'


def test_working_directory_of_a_shell_is_shown() -> None:
    masking = Masking.of_environment({"PWD": "/srv/project", "OLDPWD": "/srv/other", "DB_PWD": PW})
    assert masking.text(f"/srv/project/train.py, /srv/other, {PW}") == "/srv/project/train.py, /srv/other, ***"
    assert masking.text(f"UID=sa;PWD={PW}") == "UID=sa;PWD=***"


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ({"password": 5, "n": 1}, {"password": MASK, "n": 1}),
        ({"credentials": {"user": "a", "list": [1]}}, {"credentials": MASK}),
        ({"a": [{"b": {"apiKey": PW}}]}, {"a": [{"b": {"apiKey": MASK}}]}),
        ({"env": {"HOME": "/x", "N": 1}, "environment": "prod"}, {"env": {"HOME": MASK, "N": MASK}, "environment": "prod"}),
        ({"args": f"--token {PW}"}, {"args": f"--token {MASK}"}),
        ([f"https://me:{PW}@h"], [f"https://me:{MASK}@h"]),
        ({"token": 17, "next_token": "the", "token_count": 3, "password": None}, None),
        ({"big": 2**64 - 1, "f": 0.1}, None),
    ],
)
def test_json_is_masked_as_json(value: Any, masked: Any) -> None:
    text = json.dumps(value)
    got = PLAIN.json(text)
    assert json.loads(got) == (value if masked is None else masked)
    assert masked is not None or got == text


def test_malformed_json_is_masked_as_text() -> None:
    assert PLAIN.json(f'{{"token": "{PW}", ') == '{"token": "***", '
    assert MASK in PLAIN.json('{"a":' * 5000 + f'"token={PW}"')
    assert PLAIN.json('{"token":  "***",  "spaces": 1}') == '{"token":  "***",  "spaces": 1}'


def test_option_of_a_command_line_hides_its_value() -> None:
    argv = ["train.py", "--password", PW, "--max-tokens", "5", "--api-key", "--flag"]
    assert json.loads(PLAIN.json(json.dumps({"argv": argv}))) == {"argv": [*argv[:2], MASK, *argv[3:]]}


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_text_that_is_changed_is_suspect(text: str) -> None:
    assert PLAIN.text(text) == text or re.search(PLAIN.suspects, text)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "part",
    [
        "token",
        "token ",
        "token=",
        "a-",
        "password='",
        'token="\\',
        "environ({",
        "-----BEGIN PRIVATE KEY-----",
        "a://",
        "://b:",
        "ey" + "J.ey" + "J",
        "aB3",
        "--token ",
        "\\",
    ],
)
def test_long_hostile_texts_are_masked_in_linear_time(part: str) -> None:
    PLAIN.text(part * (400_000 // len(part)))
