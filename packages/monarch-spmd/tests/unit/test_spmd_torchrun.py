"""Command lines of torchrun: every option with values that it allows, and with others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.spmd.errors import LaunchArgumentError
from monarch.spmd.rank import Program
from monarch.spmd.torchrun import OPTIONS, LaunchSpec, Option, Streams, parse_torchrun


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        (["--nnodes=3"], {"min_hosts": 3, "max_hosts": 3, "has_hosts": True}),
        (["--nnodes", "2:4"], {"min_hosts": 2, "max_hosts": 4, "has_hosts": True}),
        (["--nproc-per-node=8"], {"per_host": 8}),
        (["--nproc_per_node=gpu"], {"per_host": "gpu"}),
        (["--nproc-per-node", "auto"], {"per_host": "auto"}),
        (["--max-restarts=3"], {"max_restarts": 3}),
        (["--role", "trainer"], {"role": "trainer"}),
        (["--rdzv-id=run-7"], {"run_id": "run-7"}),
        (["--master-addr=10.0.0.1", "--master_port=0"], {"master_addr": "10.0.0.1", "master_port": 0}),
        (["--local-addr=::1"], {"local_addr": "::1"}),
        (["--standalone"], {"standalone": True, "has_hosts": True}),
        (["-m"], {"kind": "module"}),
        (["--module"], {"kind": "module"}),
        (["--no-python"], {"kind": "command"}),
        (["--no_python"], {"kind": "command"}),
        (["--run-path"], {"kind": "path"}),
        (["--log-dir=/tmp/a b"], {"log_dir": "/tmp/a b"}),
        (["-r", "3"], {"redirects": {None: Streams.BOTH}}),
        (["-r3"], {"redirects": {None: Streams.BOTH}}),
        (["--redirects=0:1,11:2"], {"redirects": {0: Streams.OUT, 11: Streams.ERR}}),
        (["-t", "0"], {}),
        (["--tee=1:3"], {"tees": {1: Streams.BOTH}}),
        (["-mr", "1"], {"kind": "module", "redirects": {None: Streams.OUT}}),
        (["-mt=2"], {"kind": "module", "tees": {None: Streams.ERR}}),
        # A path has precedence over the other two.
        (["--run-path", "-m", "--no-python"], {"kind": "path"}),
        (["--virtual_local_rank"], {"virtual_local_rank": True}),
        (["--role", "-4"], {"role": "-4"}),
        (["--role", "-a b"], {"role": "-a b"}),
        (["--role=-r"], {"role": "-r"}),
        (["--local-ranks-filter=0,2"], {"shown": frozenset({0, 2})}),
        (["--rdzv-backend=c10d", "--rdzv_endpoint", "a:1"], {"needless": ("--rdzv-backend", "--rdzv_endpoint")}),
        (["--rdzv-conf=timeout=3", "--node-rank=1"], {"needless": ("--rdzv-conf", "--node-rank")}),
        (["--monitor-interval=.5", "--start-method=fork"], {"needless": ("--monitor-interval", "--start-method")}),
        (["--numa-binding=core-complex"], {"needless": ("--numa-binding",)}),
        (["--shutdown-timeout", "30"], {"shutdown_timeout": 30}),
        (["--shutdown_timeout=0"], {"shutdown_timeout": 0}),
        (["--logs-specs=mine", "--event-log-handler=null"], {"needless": ("--logs-specs", "--event-log-handler")}),
        (
            ["--signals-to-handle=SIGUSR1", "--log-line-prefix-template="],
            {"needless": ("--signals-to-handle", "--log-line-prefix-template")},
        ),
        (
            ["--duplicate-stdout-filters=a", "--duplicate_stderr_filters=b"],
            {"needless": ("--duplicate-stdout-filters", "--duplicate_stderr_filters")},
        ),
        # The last option counts, and a unique prefix is a valid name.
        (["--nnod=2", "--nnodes=5"], {"min_hosts": 5, "max_hosts": 5, "has_hosts": True}),
    ],
)
def test_option(args: list[str], fields: dict[str, object]) -> None:
    expected = LaunchSpec("train.py", ("--nnodes=9", "-x"), **fields)  # type: ignore[arg-type]
    assert parse_torchrun([*args, "train.py", "--nnodes=9", "-x"]) == expected


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "a launch names a program: torchrun [options] SCRIPT [arguments]"),
        (["--standalone"], "a launch names a program"),
        (["--nnodez=2", "a.py"], "--nnodez: no such option here\nhint: did you mean --nnodes?"),
        (["-x", "a.py"], "-x: no such option here"),
        (["--rdzv-e=1", "--rdzv=2", "a.py"], "--rdzv: may be --rdzv-id, --rdzv-backend, --rdzv-endpoint, --rdzv-conf"),
        (["--nnodes"], "--nnodes: a value is missing"),
        (["--standalone=yes", "a.py"], "--standalone: takes no value, and has 'yes'"),
        (["--nnodes=0", "a.py"], "--nnodes=0: expected N or MIN:MAX"),
        (["--nnodes=4:2", "a.py"], "--nnodes=4:2: expected N or MIN:MAX"),
        (["--nnodes=a", "a.py"], "--nnodes=a: expected N or MIN:MAX"),
        (["--nproc-per-node=0", "a.py"], "--nproc-per-node=0: expected a number from 1 on, gpu, cpu or auto"),
        (["--nproc_per_node", "tpu", "a.py"], "--nproc_per_node=tpu: expected a number"),
        (["--max-restarts=-1", "a.py"], "--max-restarts=-1: expected a number from 0 on"),
        (["--master-port=65536", "a.py"], "--master-port=65536: expected a number from 0 to 65535"),
        (["-r", "4", "a.py"], "-r=4: expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both)"),
        (["--tee=0:1,", "a.py"], "--tee=0:1,: expected 0 (none)"),
        (["-r=", "3", "a.py"], "-r=: expected 0 (none)"),
        (["-mx", "a.py"], "-mx: no such option here"),
        (["-m=1", "a.py"], "-m: takes no value, and has '1'"),
        (["--role", "--standalone", "a.py"], "--role: a value is missing\nhint: one that begins with a dash is given as --role=..."),
        (["-r", "--", "a.py"], "-r: a value is missing"),
        (["--log-dir", "--log-dir=a b", "a.py"], "--log-dir: a value is missing"),
        (["--numa-binding=all", "a.py"], "--numa-binding=all: expected node, socket, exclusive, core-complex"),
        (["--shutdown-timeout=1.5", "a.py"], "--shutdown-timeout=1.5: expected a number from 0 on"),
        (["--shutdown-timeout=-1", "a.py"], "--shutdown-timeout=-1: expected a number from 0 on"),
        (["--rdzv-conf=a=1,b", "a.py"], "--rdzv-conf=a=1,b: expected KEY=VALUE"),
        (["--tee=0:9", "a.py"], "--tee=0:9: expected 0 (none)"),
        (["--local-ranks-filter=0;1", "a.py"], "--local-ranks-filter=0;1: expected local ranks"),
        (["-m", "--no-python", "a.py"], "--module: does not go with --no-python"),
        (["--monitor-interval=nan", "a.py"], "--monitor-interval=nan: expected seconds"),
        (["--start-method=thread", "a.py"], "--start-method=thread: expected spawn, fork, forkserver"),
        (["--node-rank=x", "a.py"], "--node-rank=x: expected a number from 0 on"),
    ],
)
def test_invalid_option_value_is_refused(args: list[str], text: str) -> None:
    with pytest.raises(LaunchArgumentError) as caught:
        parse_torchrun(args)
    assert str(caught.value).startswith(text)


# By option, its invalid values: they are refused alike as a separate word, after `=` and in the variable.
REFUSED: dict[str, tuple[str, ...]] = {
    "nnodes": ("", " ", "0", "-1", "1.0", "x", "2:", ":2", "2:1", "0:1", "1:2:3", "1-2", "1e1", "9" * 20, "1" * 5000),
    "nproc-per-node": ("", "0", "-1", "1.5", "GPU", "gpus", "xpu", "1:2", "9" * 20),
    "max-restarts": ("", "-1", "1.5", "x", "inf", "9" * 20),
    "master-port": ("", "-1", "65536", "80.0", "x", "http"),
    "standalone": ("", "yes", "1.0"),
    "module": ("", "true"),
    "no-python": ("", "off"),
    "run-path": ("", "x"),
    "virtual-local-rank": ("", "x"),
    "redirects": ("", "4", "-1", "03", "x", "0:", ":0", "0:4", "0:1,", ",0:1", "0:1;1:1", "a:1", "0:1, 1:1", "1,2"),
    "tee": ("", "4", "-1", "33", "x", "0:", "0:4", "0:1,", "0:1 1:1"),
    "local-ranks-filter": ("x", "-1", "0,", ",", "0;1", "0:1", "0-3", "1.0"),
    "rdzv-conf": ("a", "a=", "=1", "a=1,", ",", "a=1,,b=2"),
    "node-rank": ("", "-1", "1.5", "x"),
    "monitor-interval": ("", "-1", "nan", "x", "1s"),
    "start-method": ("", "thread", "Spawn", "fork,spawn"),
    "numa-binding": ("", "all", "NODE"),
    "shutdown-timeout": ("", "-1", "1.5", "x", "30s", "9" * 20),
}
# Their values are texts of any kind.
TEXTS = {
    *("role", "rdzv-id", "master-addr", "local-addr", "log-dir", "rdzv-backend", "rdzv-endpoint", "event-log-handler", "logs-specs"),
    *("log-line-prefix-template", "duplicate-stdout-filters", "duplicate-stderr-filters", "signals-to-handle"),
}


def test_every_option_has_values_that_are_tried() -> None:
    assert {option.name for option in OPTIONS} == {*REFUSED, *TEXTS} and not TEXTS & set(REFUSED)


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.name in REFUSED], ids=lambda option: option.name)
def test_values_that_an_option_does_not_allow(option: Option) -> None:
    for value in REFUSED[option.name]:
        lines: list[tuple[str, list[str], dict[str, str]]] = [(f"--{option.name}", [f"--{option.name}={value}", "a.py"], {})]
        if not option.is_flag and not (value.startswith("-") and value[1:2] not in "0123456789."):
            lines.append((f"--{option.name}", [f"--{option.name}", value, "a.py"], {}))
        if option.letter and not option.is_flag and value:
            lines.append((f"-{option.letter}", [f"-{option.letter}{value}", "a.py"], {}))
        if option.has_variable:
            lines.append((option.variable, ["a.py"], {option.variable: value}))
        for written, words, environ in lines:
            with pytest.raises(LaunchArgumentError) as caught:
                parse_torchrun(words, environ=environ)
            error = caught.value
            assert error.option.startswith(written) and (option.is_flag or error.option == f"{written}={value}")
            assert len(str(error)) > len(f"{error.option}: ")


@pytest.mark.parametrize("name", sorted(TEXTS))
@given(value=st.text())
def test_texts_are_taken_as_they_are(name: str, value: str) -> None:
    assert parse_torchrun([f"--{name}={value}", "a.py"]).program == "a.py"


_WORDS = st.one_of(
    st.sampled_from([f"--{option.name}" for option in OPTIONS] + ["-m", "-r", "-t", "-mr", "--", "-", "--n", "-x"]),
    st.builds(
        "--{}={}".format,
        st.sampled_from([option.name for option in OPTIONS]),
        st.sampled_from(["0", "1", "-1", "a", "0:1", ""]) | st.text(),
    ),
    st.text(),
)


@given(
    words=st.lists(_WORDS, max_size=6),
    environ=st.dictionaries(st.sampled_from([option.variable for option in OPTIONS]), st.text(), max_size=2),
)
def test_arguments_are_a_launch_or_a_named_error(words: list[str], environ: dict[str, str]) -> None:
    try:
        spec = parse_torchrun(words, environ=environ)
    except LaunchArgumentError as error:
        assert str(error).startswith(error.option)
        return
    assert [spec.program, *spec.arguments] == words[len(words) - 1 - len(spec.arguments) :] or "--" in words
    assert 1 <= spec.min_hosts <= spec.max_hosts and spec.max_restarts >= 0 and (spec.shutdown_timeout or 0) >= 0


def test_variables_stand_for_options_that_are_not_given() -> None:
    environ = {"PET_NNODES": "2", "PET_ROLE": "a", "PET_STANDALONE": "1", "PET_NO_PYTHON": "0", "PET_UNKNOWN": "1", "NNODES": "7"}
    environ |= {"PET_nproc_per_node": "5", "PET_LOGS_SPECS": "x", "PET_NUMA_BINDING": "x"}
    spec = parse_torchrun(["--role=b", "a.py"], environ=environ)
    assert spec == LaunchSpec("a.py", min_hosts=2, max_hosts=2, has_hosts=True, role="b", standalone=True)
    with pytest.raises(LaunchArgumentError, match="PET_NNODES=x: expected N"):
        parse_torchrun(["a.py"], environ={"PET_NNODES": "x"})
    with pytest.raises(LaunchArgumentError, match="PET_STANDALONE=yes: expected 0 or 1"):
        parse_torchrun(["a.py"], environ={"PET_STANDALONE": "yes"})


def test_words_after_the_program_are_its_own() -> None:
    assert parse_torchrun(["--", "-odd.py", "--", "-m"]) == LaunchSpec("-odd.py", ("--", "-m"))
    assert parse_torchrun(["-", "x"]).program == "-"
    assert parse_torchrun(["-7", "-m"]) == LaunchSpec("-7", ("-m",))
    assert parse_torchrun(["-odd name.py", "x"]) == LaunchSpec("-odd name.py", ("x",))
    # The first dashes are torchrun's, those after them the program's.
    assert parse_torchrun(["a.py", "--", "--", "x"]) == LaunchSpec("a.py", ("--", "x"))
    assert parse_torchrun(["a.py", "x", "--", "y"]) == LaunchSpec("a.py", ("x", "--", "y"))


def test_commands_of_ranks() -> None:
    def argv(*words: str) -> list[str]:
        spec = parse_torchrun(words)
        return Program(spec.kind, spec.program, spec.arguments).argv("/py", "/start.py")

    assert argv("a.py", "--lr", "1") == ["/py", "-u", "/start.py", "script", "a.py", "--lr", "1"]
    assert argv("-m", "pkg.train", "x") == ["/py", "-u", "/start.py", "module", "pkg.train", "x"]
    assert argv("--run-path", "folder", "x") == ["/py", "-u", "/start.py", "path", "folder", "x"]
    assert argv("--no-python", "/bin/echo", "x") == ["/bin/echo", "x"]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("--rank=${local_rank}", "--rank=3"),
        ("$local_rank-$local_rank", "3-3"),
        ("$$local_rank $$ $", "$local_rank $ $"),
        (
            "${rank} $role_name ${restart_count} $LOCAL_RANK $local_ranks ${local_rank",
            "${rank} $role_name ${restart_count} $LOCAL_RANK $local_ranks ${local_rank",
        ),
    ],
)
def test_local_rank_in_words(word: str, found: str) -> None:
    assert Program("script", word, (word, "x")).on(3) == Program("script", found, (found, "x"), False)
    assert Program("command", word, (word, "x")).on(3) == Program("command", word, (found, "x"), False)
    unchanged = Program("script", word, (word, "x"), False)
    assert unchanged.on(3) is unchanged


@pytest.mark.parametrize(("per_host", "gpus", "ranks"), [("3", 0, 3), ("gpu", 2, 2), ("cpu", 2, 16), ("auto", 2, 2), ("auto", 0, 16)])
def test_ranks_of_a_host(per_host: str, gpus: int, ranks: int) -> None:
    assert parse_torchrun([f"--nproc-per-node={per_host}", "a.py"]).ranks_of(gpus, 16, "host-7") == ranks


def test_host_without_gpus_is_named() -> None:
    with pytest.raises(LaunchArgumentError, match="--nproc-per-node=gpu: host-7 has 0 GPUs"):
        parse_torchrun(["--nproc-per-node=gpu", "a.py"]).ranks_of(0, 16, "host-7")


def test_no_two_options_have_one_name() -> None:
    names = [option.name for option in OPTIONS] + [option.letter for option in OPTIONS if option.letter]
    assert len(set(names)) == len(names)
