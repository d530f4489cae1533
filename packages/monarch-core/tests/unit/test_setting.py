"""The table of settings: defaults, variables, and the accepted values of each kind."""

from __future__ import annotations

import json
from importlib.metadata import entry_points

import pytest

from monarch._core.config.address import BindSpec, ChannelTransport
from monarch._core.config.config import Configuration
from monarch._core.config.known_settings import GROUP, KNOWN, declare
from monarch._core.config.setting import SETTINGS, Encoding, Setting

declare()


def check(key: str, value: object) -> object:
    return KNOWN[key].check(value)


CONTRACT_DEFAULTS = {
    "default_transport": BindSpec(ChannelTransport.Unix),
    "cleanup_timeout": "3s",
    "stop_grace_period": "1s",
    "stop_actor_timeout": "10s",
    "process_exit_timeout": "10s",
    "host_spawn_ready_timeout": "2m",
    "mesh_proc_spawn_max_idle": None,
    "mesh_attach_config_timeout": "1m",
    "mesh_orphan_timeout": "10s",
    "host_loss_timeout": "3s",
    "supervision_watchdog_timeout": None,
    "channel_reconnect_timeout": "10s",
    "exit_grace": "500ms",
    "spawn_method": "auto",
    "enable_file_capture": False,
    "log_dir": "",
    "log_filter": "warn",
    "file_log_level": "",
    "flight_recorder": False,
    "flight_recorder_events": 16384,
    "tail_log_lines": 20,
    "prefix_with_rank": True,
    "tls_cert": "",
    "tls_key": "",
    "tls_ca": "",
    "enable_otel_tracing": True,
    "enable_otel_metrics": True,
    "otel_metric_export_interval": "1s",
    "process_memory_metric_interval": "5m",
    "mesh_admin_addr": "127.0.0.1:1729",
    "pyspy_bin": "",
    "rdma_allow_tcp_fallback": True,
    "rdma_cq_poller_per_device": True,
    "rdma_disable_ibverbs": False,
    "rdma_host_odp": False,
    "rdma_ibverbs_target": "",
    "rdma_max_chunk_size_mb": 64,
    "rdma_max_nics_per_buffer": None,
    "rdma_min_stripe_size_kb": 512,
    "rdma_peer_device_affinity": "",
    "rdma_qp_init_timeout": "30s",
    "rdma_qps_per_cq": 64,
    "rdma_qps_per_peer": 4,
    "rdma_runtime_worker_threads": 4,
    "rdma_tcp_fallback_parallelism": 1,
    "rdma_cq_busy_poll_window": None,
    "codec_max_frame_length": 10 * 1024**3,
    "default_encoding": Encoding.Multipart,
    "message_latency_sampling_rate": 0.01,
    "tokio_worker_threads": None,
    "perfetto_trace_mode": "User",
    "mesh_admin_pyspy_max_profile_duration": "5m",
}


def test_defaults() -> None:
    effective = Configuration({}).view()
    assert {name: effective[name] for name in CONTRACT_DEFAULTS} == CONTRACT_DEFAULTS
    declared = [one.name for entry in entry_points(group=GROUP) for one in entry.load()]
    assert sorted(effective) == sorted(KNOWN) == sorted([*SETTINGS, *declared])
    # Every other setting has an effect that 0.7 does not have, or has no effect.
    ours = {"fs_backend", "fs_store_bytes", "fs_store_dir", "preload", "skypilot_python", "trust_all"}
    assert set(effective) - set(CONTRACT_DEFAULTS) - ours <= {one.name for one in KNOWN.values() if one.ignored}


@pytest.mark.parametrize("one", KNOWN.values(), ids=lambda one: one.name)
def test_defaults_are_valid_and_normal(one: Setting) -> None:
    checked = one.check(one.default)
    assert checked == one.default and type(checked) is type(one.default)
    assert one.variables[0] == f"MONARCH_{one.name.upper()}"
    assert one.about


def test_variables_are_unique() -> None:
    variables = [variable for one in KNOWN.values() for variable in one.variables]
    assert len(variables) == len(set(variables))


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("HYPERACTOR_MESH_DEFAULT_TRANSPORT", "tcp://127.0.0.1:80", "default_transport", BindSpec("tcp:127.0.0.1:80")),
        ("HYPERACTOR_CLEANUP_TIMEOUT", "90s", "cleanup_timeout", "1m 30s"),
        ("HYPERACTOR_REMOTE_STOP_GRACE_PERIOD", "2s", "stop_grace_period", "2s"),
        ("HYPERACTOR_STOP_ACTOR_TIMEOUT", "2s", "stop_actor_timeout", "2s"),
        ("HYPERACTOR_PROCESS_EXIT_TIMEOUT", "2s", "process_exit_timeout", "2s"),
        ("HYPERACTOR_HOST_SPAWN_READY_TIMEOUT", "0s", "host_spawn_ready_timeout", "0s"),
        ("HYPERACTOR_MESH_PROC_SPAWN_MAX_IDLE", "2s", "mesh_proc_spawn_max_idle", "2s"),
        ("HYPERACTOR_MESH_ATTACH_CONFIG_TIMEOUT", "2s", "mesh_attach_config_timeout", "2s"),
        ("HYPERACTOR_MESH_ORPHAN_TIMEOUT", "None", "mesh_orphan_timeout", None),
        ("MONARCH_HOST_LOSS_TIMEOUT", "2s", "host_loss_timeout", "2s"),
        ("HYPERACTOR_MESH_SUPERVISION_WATCHDOG_TIMEOUT", "2s", "supervision_watchdog_timeout", "2s"),
        ("HYPERACTOR_CHANNEL_RECONNECT_TIMEOUT", "2s", "channel_reconnect_timeout", "2s"),
        ("MONARCH_SPAWN_METHOD", "exec", "spawn_method", "exec"),
        ("HYPERACTOR_MESH_ENABLE_FILE_CAPTURE", "1", "enable_file_capture", True),
        ("MONARCH_LOG", "debug,net=trace", "log_filter", "debug,net=trace"),
        ("MONARCH_FILE_LOG", "debug", "file_log_level", "debug"),
        ("HYPERACTOR_MESH_TAIL_LOG_LINES", "4", "tail_log_lines", 4),
        ("HYPERACTOR_PREFIX_WITH_RANK", "False", "prefix_with_rank", False),
        ("HYPERACTOR_TLS_CA", "/ca.pem", "tls_ca", "/ca.pem"),
        ("ENABLE_OTEL_TRACING", "0", "enable_otel_tracing", False),
        ("ENABLE_OTEL_METRICS", "false", "enable_otel_metrics", False),
        ("OTEL_METRIC_EXPORT_INTERVAL", "2s", "otel_metric_export_interval", "2s"),
        ("HYPERACTOR_PROCESS_MEMORY_METRIC_INTERVAL", "2s", "process_memory_metric_interval", "2s"),
        ("HYPERACTOR_MESH_ADMIN_ADDR", "[::]:99", "mesh_admin_addr", "[::]:99"),
        ("PYSPY_BIN", "/py-spy", "pyspy_bin", "/py-spy"),
        ("MONARCH_RDMA_MAX_NICS_PER_BUFFER", "3", "rdma_max_nics_per_buffer", 3),
        ("MONARCH_MESSAGE_LATENCY_SAMPLING_RATE", "0.5", "message_latency_sampling_rate", 0.5),
        ("MONARCH_DEFAULT_ENCODING", "Json", "default_encoding", Encoding.Json),
    ],
)
def test_variables(variable: str, text: str, key: str, value: object) -> None:
    assert Configuration({variable: text}).view()[key] == value
    for other in KNOWN[key].variables[: KNOWN[key].variables.index(variable)]:
        first = str(KNOWN[key].default) or "first"
        assert Configuration({variable: text, other: first}).view()[key] == KNOWN[key].from_text(first)


def test_some_keys_take_their_own_variable_only() -> None:
    assert all(one.variables == (f"MONARCH_{one.name.upper()}",) for one in KNOWN.values() if one.ignored or one.name.startswith("rdma_"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("process_exit_timeout", 5),
        ("process_exit_timeout", 5.0),
        ("process_exit_timeout", None),
        ("tail_log_lines", "x"),
        ("tail_log_lines", -1),
        ("tail_log_lines", 1.0),
        ("tail_log_lines", None),
        ("tail_log_lines", 2**64),
        ("prefix_with_rank", 1),
        ("prefix_with_rank", "true"),
        ("prefix_with_rank", None),
        ("log_dir", 1),
        ("log_dir", None),
        ("spawn_method", None),
        ("default_transport", 1),
        ("default_transport", None),
        ("message_latency_sampling_rate", "x"),
        ("default_encoding", "Json"),
        ("default_encoding", 1),
        ("rdma_qp_init_timeout", 0),
        ("rdma_max_nics_per_buffer", "x"),
        ("message_ttl_default", "x"),
    ],
)
def test_wrong_type(key: str, value: object) -> None:
    with pytest.raises(TypeError) as caught:
        check(key, value)
    assert key == "default_transport" or f"for configuration key `{key}`" in str(caught.value)


@pytest.mark.parametrize("text", ["", "abc", "10", "-1s", "30S", "1s 5"])
def test_bad_duration(text: str) -> None:
    with pytest.raises(TypeError, match="invalid value .* for configuration key `process_exit_timeout` .*Invalid duration format"):
        check("process_exit_timeout", text)


NONZERO = [
    "flight_recorder_events",
    "host_loss_timeout",
    "rdma_max_nics_per_buffer",
    "rdma_min_stripe_size_kb",
    "rdma_qps_per_cq",
    "rdma_qps_per_peer",
    "sequencer_max_locked_keys",
    "max_cast_fanout",
    "tokio_worker_threads",
]


def test_zero() -> None:
    assert {one.name for one in KNOWN.values() if one.nonzero} == set(NONZERO)
    for name in NONZERO:
        with pytest.raises(ValueError, match=f"`{name}` .zero is not allowed"):
            check(name, "0s" if KNOWN[name].kind == "duration" else 0)
    assert check("tail_log_lines", 0) == 0
    assert check("stop_grace_period", "0ms") == check("mesh_orphan_timeout", "0") == "0s"


def test_choices() -> None:
    assert check("spawn_method", "exec") == "exec"
    with pytest.raises(ValueError, match="expected one of auto, exec"):
        check("spawn_method", "fork")


def test_transport() -> None:
    for given_value in (ChannelTransport.Tls, "tls", BindSpec("tls")):
        assert check("default_transport", given_value) == BindSpec(ChannelTransport.Tls)
    assert check("default_transport", "metatls://h:1") == BindSpec("metatls://h:1")
    with pytest.raises(ValueError, match="invalid bind spec: junk"):
        check("default_transport", "junk")


def test_none_where_it_is_allowed() -> None:
    nullable = {one.name for one in KNOWN.values() if one.nullable}
    assert nullable == {
        "mesh_orphan_timeout",
        "mesh_proc_spawn_max_idle",
        "supervision_watchdog_timeout",
        "rdma_max_nics_per_buffer",
        "rdma_cq_busy_poll_window",
        "tokio_worker_threads",
    }
    for name in nullable:
        assert check(name, None) is KNOWN[name].from_text("none") is None


def test_numbers_of_other_types() -> None:
    numpy = pytest.importorskip("numpy")
    assert json.dumps([check("tail_log_lines", numpy.int32(3)), check("tail_log_lines", True)]) == "[3, 1]"
    assert json.dumps(check("message_latency_sampling_rate", numpy.float32(0.5))) == "0.5"
    assert json.dumps(check("message_latency_sampling_rate", 1)) == "1.0"
