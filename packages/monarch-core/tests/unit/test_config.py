"""The table of settings and the layers of values over it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monarch.config
from monarch._core.config import config, setting
from monarch._core.config.address import ChannelTransport
from monarch._core.config.config import Configuration, Configured
from monarch._core.config.duration import format_duration
from monarch._core.config.known_settings import KNOWN, declare
from monarch._core.config.setting import DROPPED, Encoding
from monarch.config import (
    clear_runtime_config,
    configure,
    configured,
    get_global_config,
    get_runtime_config,
    parametrize_config,
    parametrize_config_pointwise,
    reload_config_from_env,
    reset_config_to_defaults,
)

declare()
IGNORED = [one for one in KNOWN.values() if one.ignored and not one.silent]


@pytest.fixture(autouse=True)
def pristine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process configuration as in a fresh process without any of its variables."""
    for one in KNOWN.values():
        for variable in one.variables:
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(config._process, "_warned", set())
    reset_config_to_defaults()
    yield
    monkeypatch.undo()
    reset_config_to_defaults()
    reload_config_from_env()


def records(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
    return [record.getMessage() for record in caplog.records if record.name == "monarch.config"]


# configure.


def test_configure_and_read_back() -> None:
    configure(process_exit_timeout="90s", stop_actor_timeout="300s", cleanup_timeout="1w", exit_grace="500ms", tail_log_lines=7)
    stored = {"process_exit_timeout": "1m 30s", "stop_actor_timeout": "5m", "cleanup_timeout": "7days", "exit_grace": "500ms"}
    assert get_runtime_config() == {**stored, "tail_log_lines": 7}
    configure(tail_log_lines=8)
    assert get_runtime_config() == {**stored, "tail_log_lines": 8}
    assert get_global_config().items() >= get_runtime_config().items()
    clear_runtime_config()
    assert get_runtime_config() == {} and get_global_config()["cleanup_timeout"] == "3s"


def test_getters_give_copies() -> None:
    get_global_config()["tail_log_lines"] = get_runtime_config()["tail_log_lines"] = 99
    assert get_global_config()["tail_log_lines"] == 20 and get_runtime_config() == {}


@pytest.mark.parametrize("name", ["x", *DROPPED])
def test_unknown_key(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        configure(**{name: 1})
    assert str(caught.value) == f"invalid configuration key: `{name}`"


def test_old_names_of_the_tls_keys() -> None:
    configure(hyperactor_tls_cert="/c", hyperactor_tls_key="/k", tls_ca="/a")
    assert get_runtime_config() == {"tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a"}


@pytest.mark.parametrize("bad", [{"x": 1}, {"tail_log_lines": "x"}, {"cleanup_timeout": "x"}, {"default_transport": "junk"}])
def test_configuration_is_applied_completely_or_not(bad: dict[str, object]) -> None:
    configure(stop_actor_timeout="4s")
    changes: list[object] = []
    forget = config.on_change(changes.append)
    with pytest.raises((TypeError, ValueError)):
        configure(**{"process_exit_timeout": "9s", **bad, "exit_grace": "9s"})
    with pytest.raises((TypeError, ValueError)), configured(**{"process_exit_timeout": "9s", **bad}):
        pytest.fail("entered")
    forget()
    assert get_runtime_config() == {"stop_actor_timeout": "4s"} and changes == []


# Accepted and ignored.


@pytest.mark.parametrize("one", IGNORED, ids=lambda one: one.name)
def test_ignored_keys_warn_once(one: setting.Setting) -> None:
    configuration = Configuration({})
    with pytest.warns(UserWarning) as caught:
        configuration.merge("runtime", {one.name: one.default})
    assert [str(warning.message) for warning in caught] == [f"configuration key `{one.name}` has no effect: {one.about}"]
    configuration.merge("runtime", {one.name: one.default})
    assert configuration.layer("runtime") == {one.name: one.default}


def test_warning_points_at_the_caller() -> None:
    with pytest.warns(UserWarning, match="message_ttl_default") as caught:
        configure(message_ttl_default=3)
    with pytest.warns(UserWarning, match="max_cast_fanout") as other, configured(max_cast_fanout=3):
        assert get_global_config()["max_cast_fanout"] == 3
    assert {warning.filename for warning in (*caught, *other)} == {__file__}
    assert get_runtime_config() == {"message_ttl_default": 3}


def test_silent_key() -> None:
    assert [one.name for one in KNOWN.values() if one.silent] == ["enable_log_forwarding"]
    configure(enable_log_forwarding=True)
    assert get_global_config()["enable_log_forwarding"] is True


def test_wrongly_typed_ignored_key_does_not_warn() -> None:
    with pytest.raises(TypeError):
        configure(message_ttl_default="x")


# Precedence.


def test_precedence(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> object:
        return get_global_config()["process_exit_timeout"]

    assert now() == "10s"
    config.apply_pushed({"process_exit_timeout": "1s"})
    assert now() == "1s"
    configure(process_exit_timeout="2s")
    assert now() == "2s"
    monkeypatch.setenv("HYPERACTOR_PROCESS_EXIT_TIMEOUT", "3s")
    assert now() == "2s"
    reload_config_from_env()
    assert now() == "3s"
    with config.overridden(process_exit_timeout="4s") as effective:
        assert now() == effective["process_exit_timeout"] == "4s"
    assert now() == "3s" and records(caplog) == []
    with configured(process_exit_timeout="5s") as effective:
        assert now() == effective["process_exit_timeout"] == "3s"
        assert get_runtime_config() == {"process_exit_timeout": "5s"}
    assert len(records(caplog)) == 1
    monkeypatch.delenv("HYPERACTOR_PROCESS_EXIT_TIMEOUT")
    reload_config_from_env()
    assert now() == "2s"
    clear_runtime_config()
    assert now() == "1s"
    config.apply_pushed({})
    assert now() == "10s"


def test_environment_that_overrides_configure_is_named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_TAIL_LOG_LINES", "5")
    monkeypatch.setenv("HYPERACTOR_MESH_TAIL_LOG_LINES", "6")
    reload_config_from_env()
    configure(tail_log_lines=5, exit_grace="1s")
    assert records(caplog) == []
    configure(tail_log_lines=7, cleanup_timeout="1s")
    assert records(caplog) == ["configuration key `tail_log_lines` keeps 5: variable MONARCH_TAIL_LOG_LINES is set"]
    assert get_global_config()["tail_log_lines"] == 5 and get_runtime_config()["tail_log_lines"] == 7


def test_reset_forgets_everything_until_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_TAIL_LOG_LINES", "5")
    reload_config_from_env()
    configure(exit_grace="1s")
    config.apply_pushed({"cleanup_timeout": "1s"})
    reset_config_to_defaults()
    assert get_global_config() == {name: one.default for name, one in KNOWN.items()}
    assert get_runtime_config() == {}
    reload_config_from_env()
    assert get_global_config()["tail_log_lines"] == 5


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("HYPERACTOR_PROCESS_EXIT_TIMEOUT", "junk"),
        ("HYPERACTOR_PREFIX_WITH_RANK", "2"),
        ("MONARCH_TAIL_LOG_LINES", "-1"),
        ("MONARCH_TAIL_LOG_LINES", "many"),
        ("MONARCH_RDMA_QPS_PER_CQ", "0"),
        ("MONARCH_SPAWN_METHOD", "fork"),
        ("MONARCH_DEFAULT_TRANSPORT", "junk"),
        ("MONARCH_DEFAULT_ENCODING", "Yaml"),
        ("MONARCH_MESSAGE_LATENCY_SAMPLING_RATE", "often"),
    ],
)
def test_bad_variables_are_logged_and_ignored(variable: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    configuration = Configuration({variable: text})
    assert configuration.view() == {name: one.default for name, one in KNOWN.items()}
    (message,) = records(caplog)
    assert message.startswith(f"environment variable {variable} is ignored: ")


@pytest.mark.parametrize("variable", ["MONARCH_TAIL_LOG_LINES", "MONARCH_LOG", "HYPERACTOR_PREFIX_WITH_RANK"])
def test_empty_variables_count_as_not_set(variable: str, caplog: pytest.LogCaptureFixture) -> None:
    assert Configuration({variable: ""}).view() == {name: one.default for name, one in KNOWN.items()}
    assert records(caplog) == []


def test_variable_without_effect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    configuration = Configuration({"MONARCH_MESSAGE_TTL_DEFAULT": "3", "MONARCH_ENABLE_LOG_FORWARDING": "1"})
    assert (configuration.view()["message_ttl_default"], configuration.view()["enable_log_forwarding"]) == (3, True)
    configuration.reload()
    expected = (
        "environment variable MONARCH_MESSAGE_TTL_DEFAULT has no effect: delivery ends with the loss of the destination, not with age"
    )
    assert records(caplog) == [expected]


def test_proc_does_not_repeat_warnings_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    proc = Configuration({"MONARCH_MESSAGE_TTL_DEFAULT": "3", "MONARCH_TAIL_LOG_LINES": "x"})
    proc.apply_pushed({"tail_log_lines": 4})
    assert (proc.view()["message_ttl_default"], proc.view()["tail_log_lines"]) == (3, 4)
    assert records(caplog) == []


# configured and its decorators.


def test_configured_restores_the_previous_layer() -> None:
    configure(tail_log_lines=1)
    with configured(tail_log_lines=2, exit_grace="1s") as outer:
        assert (outer["tail_log_lines"], outer["exit_grace"]) == (2, "1s")
        with configured(tail_log_lines=3):
            configure(cleanup_timeout="9s")
            assert get_runtime_config() == {"tail_log_lines": 3, "exit_grace": "1s", "cleanup_timeout": "9s"}
        assert get_runtime_config() == {"tail_log_lines": 2, "exit_grace": "1s"}
    assert get_runtime_config() == {"tail_log_lines": 1}


def test_configured_restores_after_an_exception() -> None:
    with pytest.raises(KeyError), configured(tail_log_lines=2):
        raise KeyError
    assert get_runtime_config() == {}


def test_configured_holds_in_all_threads() -> None:
    seen: list[object] = []
    with configured(tail_log_lines=2):
        thread = threading.Thread(target=lambda: seen.append(get_global_config()["tail_log_lines"]))
        thread.start()
        thread.join()
    assert seen == [2]


def test_configured_decorates_functions() -> None:
    @configured(tail_log_lines=2)
    def plain(extra: int) -> object:
        return extra, get_global_config()["tail_log_lines"]

    @configured(tail_log_lines=3)
    async def coroutine(extra: int) -> object:
        return extra, get_global_config()["tail_log_lines"]

    assert plain(1) == (1, 2) and plain(1) == (1, 2) and plain.__name__ == "plain"
    assert asyncio.run(coroutine(1)) == (1, 3)
    assert get_runtime_config() == {}


def test_configured_is_lazy_and_reusable() -> None:
    manager = configured(tail_log_lines=2)
    assert isinstance(manager, Configured) and get_runtime_config() == {}
    for _ in range(2):
        with manager, manager:
            assert get_runtime_config() == {"tail_log_lines": 2}
        assert get_runtime_config() == {}


seen_cases: list[tuple[object, ...]] = []


@pytest.mark.parametrize("letter", "ab")
@parametrize_config(tail_log_lines=[1, 2], prefix_with_rank={True, False})
def test_parametrize_runs_the_product(letter: str, request: pytest.FixtureRequest) -> None:
    effective = get_global_config()
    seen_cases.append((letter, effective["tail_log_lines"], effective["prefix_with_rank"]))
    identity = f"tail_log_lines={effective['tail_log_lines']}-prefix_with_rank={effective['prefix_with_rank']}"
    assert request.node.name == f"test_parametrize_runs_the_product[{identity}-{letter}]"


def test_parametrize_ran_every_case() -> None:
    assert sorted(seen_cases) == [(letter, lines, rank) for letter in "ab" for lines in (1, 2) for rank in (False, True)]


@parametrize_config_pointwise(tail_log_lines=[1, 2], exit_grace=("1s", "2s"))
def test_parametrize_pointwise_runs_pairs() -> None:
    effective = get_global_config()
    assert effective["exit_grace"] == f"{effective['tail_log_lines']}s"
    assert effective["tail_log_lines"] != 20


@parametrize_config(tail_log_lines=[1])
@parametrize_config(exit_grace=["7s"])
def test_parametrize_nests() -> None:
    assert get_runtime_config() == {"tail_log_lines": 1, "exit_grace": "7s"}


class TestMethods:
    @parametrize_config(tail_log_lines=[1, 2])
    def test_parametrize_methods(self, tmp_path: object) -> None:
        assert tmp_path and get_runtime_config()["tail_log_lines"] in (1, 2)


@pytest.mark.asyncio
@parametrize_config(tail_log_lines=[1, 2])
async def test_parametrize_async() -> None:
    async def elsewhere() -> object:
        return get_runtime_config()["tail_log_lines"]

    assert await asyncio.create_task(elsewhere()) in (1, 2)


def test_parametrize_refuses_nothing_and_unequal_lengths() -> None:
    for decorator in (parametrize_config, parametrize_config_pointwise):
        with pytest.raises(ValueError, match=f"{decorator.__name__} needs at least one"):
            decorator()
    with pytest.raises(ValueError, match="same number of values"):
        parametrize_config_pointwise(tail_log_lines=[1, 2], exit_grace=["1s"])


# The settings that the runtime reads.


def test_values_and_seconds() -> None:
    configure(process_exit_timeout="1m 500ms", mesh_orphan_timeout=None)
    assert config.value("process_exit_timeout") == "1m 500ms"
    assert config.seconds("process_exit_timeout") == 60.5
    assert config.seconds("mesh_orphan_timeout") is None
    with pytest.raises(KeyError):
        config.value("x")


@pytest.mark.parametrize(
    ("ready", "idle", "expected"),
    [("2m", None, 120.0), ("2m", "3m", 180.0), ("2m", "30s", 120.0), ("0s", None, None), ("0s", "3m", None), ("2m", "0s", None)],
)
def test_spawn_ready(ready: str, idle: str | None, expected: float | None) -> None:
    configure(host_spawn_ready_timeout=ready, mesh_proc_spawn_max_idle=idle)
    assert config.spawn_ready_seconds() == expected


def test_host_loss() -> None:
    assert config.host_loss_seconds() == 3.0
    configure(supervision_watchdog_timeout="2m")
    assert config.host_loss_seconds() == 120.0
    configure(supervision_watchdog_timeout=None, host_loss_timeout="1s")
    assert config.host_loss_seconds() == 1.0


def test_pushed_values_are_plain_and_not_local() -> None:
    assert config.pushed_values() == {}
    configure(tls_key="/k", log_dir="/l", log_filter="debug", default_transport="tls", tail_log_lines=20, exit_grace="90s")
    assert config.pushed_values() == {"default_transport": "tls", "exit_grace": "1m 30s"}
    assert [one.name for one in KNOWN.values() if one.local] == ["log_dir", "log_filter", "tls_cert", "tls_key", "tls_ca", "trust_all"]


def test_pushed_values_carry_the_environment() -> None:
    client = Configuration({"HYPERACTOR_MESH_ORPHAN_TIMEOUT": "none", "MONARCH_LOG": "debug"})
    assert client.pushed_values() == {"mesh_orphan_timeout": None}


def test_apply_pushed_is_all_or_nothing() -> None:
    proc = Configuration({})
    proc.apply_pushed({"tail_log_lines": 3})
    with pytest.raises(TypeError):
        proc.apply_pushed({"exit_grace": "9s", "cleanup_timeout": 1})
    with pytest.raises(ValueError, match="expected int"):
        proc.apply_pushed({"exit_grace": "9s", "tail_log_lines": "3.5"})
    assert proc.layer("pushed") == {"tail_log_lines": 3}
    proc.apply_pushed({"from_a_later_version": 1, "tls_key": "/k", "exit_grace": "9s"})
    assert proc.layer("pushed") == {"exit_grace": "9s"}


VALUES = {
    "bool": st.booleans(),
    "int": st.integers(1, 2**64 - 1),
    "float": st.floats(allow_nan=False),
    "str": st.text(min_size=1),
    "duration": st.integers(1, 10**20).map(format_duration),
    "transport": st.sampled_from(["unix", "tcp", "tls://h:1", "ipc://@a", "tcp://a:1@tcp://*:2", ChannelTransport.Local]),
    "encoding": st.sampled_from(list(Encoding.members().values())),
}


def settings_values() -> st.SearchStrategy[dict[str, object]]:
    entries = {}
    for one in KNOWN.values():
        values = st.sampled_from(one.choices) if one.choices else VALUES[one.kind]
        entries[one.name] = st.none() | values if one.nullable else values
    return st.fixed_dictionaries({}, optional=entries)


@given(settings_values())
@pytest.mark.filterwarnings("ignore:configuration key:UserWarning")
def test_proc_has_the_clients_view(values: dict[str, object]) -> None:
    client, proc = Configuration({}), Configuration({})
    client.merge("runtime", values)
    proc.apply_pushed(client.pushed_values())
    for name, one in KNOWN.items():
        assert proc.view()[name] == (one.default if one.local else client.view()[name])
    assert client.layer("runtime").keys() == values.keys()


@given(settings_values())
@pytest.mark.filterwarnings("ignore:configuration key:UserWarning")
def test_view_of_a_configuration_can_be_set(values: dict[str, object]) -> None:
    first, second = Configuration({}), Configuration({})
    first.merge("runtime", values)
    second.merge("runtime", first.view())
    assert second.view() == first.view()


def test_on_change() -> None:
    changes: list[dict[str, object]] = []
    forget = config.on_change(changes.append)
    configure(tail_log_lines=1, exit_grace="1s")
    configure(tail_log_lines=1)
    with configured(exit_grace="2s"):
        pass
    clear_runtime_config()
    forget()
    configure(tail_log_lines=5)
    assert changes == [
        {"tail_log_lines": 1, "exit_grace": "1s"},
        {"exit_grace": "2s"},
        {"exit_grace": "1s"},
        {"tail_log_lines": 20, "exit_grace": "500ms"},
    ]


def test_on_change_may_read_and_configure() -> None:
    def follow(changed: dict[str, object]) -> None:
        if "tail_log_lines" in changed:
            configure(rdma_max_chunk_size_mb=config.value("tail_log_lines"))

    forget = config.on_change(follow)
    configure(tail_log_lines=3)
    forget()
    assert config.value("rdma_max_chunk_size_mb") == 3


PAIRS = [
    ("tail_log_lines", "rdma_max_chunk_size_mb"),
    ("rdma_qps_per_cq", "rdma_qps_per_peer"),
    ("rdma_runtime_worker_threads", "rdma_tcp_fallback_parallelism"),
]


def test_threads_lose_nothing_and_see_no_half() -> None:
    configuration = Configuration({})
    for pair in PAIRS:
        configuration.merge("runtime", dict.fromkeys(pair, 1))
    start, done = threading.Barrier(len(PAIRS) + 1), threading.Event()
    torn: list[object] = []

    def write(pair: tuple[str, str]) -> None:
        start.wait()
        for number in range(2, 201):
            configuration.merge("runtime", dict.fromkeys(pair, number))

    def read() -> None:
        start.wait()
        while not done.is_set():
            view = configuration.view()
            torn.extend(pair for pair in PAIRS if view[pair[0]] != view[pair[1]])

    writers = [threading.Thread(target=write, args=(pair,)) for pair in PAIRS]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert torn == []
    assert configuration.layer("runtime") == {name: 200 for pair in PAIRS for name in pair}


# The public module.


def test_public_names() -> None:
    assert sorted(monarch.config.__all__) == [
        "ChannelTransport",
        "Encoding",
        "clear_runtime_config",
        "configure",
        "configured",
        "get_global_config",
        "get_runtime_config",
        "parametrize_config",
        "parametrize_config_pointwise",
        "reload_config_from_env",
        "reset_config_to_defaults",
    ]
    settings = set(monarch.config.__all__) - {"ChannelTransport"}
    assert all(getattr(monarch.config, name) is getattr(config, name) for name in settings)
    assert [repr(member) for member in Encoding.members().values()] == ["Encoding.Bincode", "Encoding.Json", "Encoding.Multipart"]
