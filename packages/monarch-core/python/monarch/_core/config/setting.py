"""The table of core's settings, with types, defaults, variables and meaning.

The code that layers values (`config`) and the page in the docs (`tools.gen_settings`) both read this table, so both state the same.
Adding a setting is adding a line. Other wheels declare theirs with the same class (`known_settings`).
"""

from __future__ import annotations

from monarch._core.config.address import BindSpec, ChannelTransport, Choice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar


class Encoding(Choice, members=("Bincode", "Json", "Multipart")):
    """Message encodings of 0.7, kept for imports; there is only one encoding here."""

    __slots__ = ()
    Bincode: ClassVar[Encoding]
    Json: ClassVar[Encoding]
    Multipart: ClassVar[Encoding]


_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
_EXPECTED = {
    "bool": "bool",
    "int": "int from 0 to 2**64 - 1",
    "float": "float",
    "str": "str",
    "duration": "str such as '1m 30s'",
    "encoding": "Encoding",
}


class Setting:
    """One key: its name, type, default, and its meaning in one sentence.

    `kind` is `bool`, `int`, `float`, `str`, `duration`, `transport` or `encoding`; `choices` narrows a `str`, `unit` is that of a number.
    `variables` are the environment variables that set it, in order of precedence: `MONARCH_<NAME>`, then those of the argument `variable`.
    `local` settings stay in the process they were set in. `ignored` settings are checked, stored and have no effect; `silent` ones give no
    warning. `about` is the meaning, or for ignored settings the reason.
    """

    __slots__ = ("about", "choices", "default", "group", "kind", "local", "name", "nonzero", "nullable", "silent", "unit", "variables")

    def __init__(
        self,
        name: str,
        kind: str,
        default: object,
        about: str,
        *,
        group: str = "core",
        variable: tuple[str, ...] = (),
        nonzero: bool = False,
        nullable: bool = False,
        local: bool = False,
        silent: bool = False,
        choices: tuple[str, ...] = (),
        unit: str = "",
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.about = about
        self.group = group
        self.variables = (f"MONARCH_{name.upper()}", *variable)
        self.nonzero = nonzero
        self.nullable = nullable
        self.local = local
        self.silent = silent
        self.choices = choices
        self.unit = unit

    @property
    def ignored(self) -> bool:
        """Whether the setting has no effect."""
        return self.group == "ignored"

    def check(self, value: object) -> object:
        """The value as it is stored and read back.

        Raises `TypeError` for a wrong type and a malformed duration, `ValueError` for zero where it is forbidden, for a text that is
        no choice and for an invalid address.
        """
        if value is None and self.nullable:
            return None
        if self.kind == "transport":
            return BindSpec(value)  # pyright: ignore[reportArgumentType]
        checked = self._typed(value)
        if self.nonzero and checked in (0, "0s"):
            raise ValueError(self._refusal(value, "zero is not allowed"))
        if self.choices and checked not in self.choices:
            raise ValueError(self._refusal(value, f"expected one of {', '.join(self.choices)}"))
        return checked

    def from_text(self, text: str) -> object:
        """The value of the text of a variable or a message. Raises like `check`."""
        if self.nullable and text.lower() == "none":
            return None
        value: object = text
        try:
            if self.kind == "bool":
                value = _BOOLEANS[text.strip().lower()]
            elif self.kind == "int":
                value = int(text)
            elif self.kind == "float":
                value = float(text)
            elif self.kind == "encoding":
                value = Encoding.members()[text]
        except (KeyError, ValueError):
            raise ValueError(self._refusal(text, f"expected {self._expected()}")) from None
        return self.check(value)

    def to_text(self, value: object) -> object:
        """The inverse of `from_text`, except that plain values stay unchanged."""
        if isinstance(value, BindSpec):
            return str(value)
        return value.name if isinstance(value, Choice) else value

    def _typed(self, value: object) -> object:
        kind = self.kind
        if kind == "bool" and isinstance(value, bool) or kind == "str" and isinstance(value, str):
            return value
        if kind == "encoding" and isinstance(value, Encoding):
            return value
        if kind == "int" and hasattr(value, "__index__"):
            number = int(value)  # pyright: ignore
            if 0 <= number < 1 << 64:
                return number
        if kind == "float" and not isinstance(value, str) and (hasattr(value, "__float__") or hasattr(value, "__index__")):
            return float(value)  # pyright: ignore
        if kind == "duration" and isinstance(value, str):
            from monarch._core.config.duration import format_duration, parse_duration

            try:
                return format_duration(parse_duration(value))
            except ValueError as error:
                raise TypeError(self._refusal(value, str(error))) from None
        raise TypeError(self._refusal(value, f"expected {self._expected()}, got {type(value).__name__}"))

    def _expected(self) -> str:
        if self.kind == "bool":
            return "bool, in text one of 1 0 true false"
        return _EXPECTED[self.kind] + (" or None" if self.nullable else "")

    def _refusal(self, value: object, reason: str) -> str:
        shown = repr(value)
        return f"invalid value `{shown if len(shown) <= 80 else shown[:77] + '...'}` for configuration key `{self.name}` ({reason})"


def _kept() -> list[Setting]:
    h, hm = "HYPERACTOR_", "HYPERACTOR_MESH_"
    return [
        Setting(
            "default_transport",
            "transport",
            BindSpec(ChannelTransport.Unix),
            "Where agents started by this client listen: a `ChannelTransport`, a URL or a `BindSpec`; reads back as `BindSpec`.",
            variable=(f"{hm}DEFAULT_TRANSPORT",),
        ),
        Setting("cleanup_timeout", "duration", "3s", "Bound of `__cleanup__`.", variable=(f"{h}CLEANUP_TIMEOUT",)),
        Setting(
            "stop_grace_period",
            "duration",
            "1s",
            "Longest wait for one message while a stopping actor drains.",
            variable=(f"{h}REMOTE_STOP_GRACE_PERIOD",),
        ),
        Setting("stop_actor_timeout", "duration", "10s", "Bound of the whole drain of an actor.", variable=(f"{h}STOP_ACTOR_TIMEOUT",)),
        Setting(
            "process_exit_timeout",
            "duration",
            "10s",
            "How long a proc may take to end by itself; then it gets SIGKILL.",
            variable=(f"{h}PROCESS_EXIT_TIMEOUT",),
        ),
        Setting(
            "host_spawn_ready_timeout",
            "duration",
            "2m",
            "How long one proc may take from its start until it is ready; `0s` is no limit. The missing procs are logged every 10 s.",
            variable=(f"{h}HOST_SPAWN_READY_TIMEOUT",),
        ),
        Setting(
            "mesh_proc_spawn_max_idle",
            "duration",
            None,
            "If set, the larger of this and `host_spawn_ready_timeout` holds.",
            variable=(f"{hm}PROC_SPAWN_MAX_IDLE", f"{hm}MESH_PROC_SPAWN_MAX_IDLE"),
            nullable=True,
        ),
        Setting(
            "mesh_attach_config_timeout",
            "duration",
            "1m",
            "Within this time all hosts must have joined and taken the configuration.",
            variable=(f"{hm}ATTACH_CONFIG_TIMEOUT",),
        ),
        Setting(
            "mesh_orphan_timeout",
            "duration",
            "10s",
            "Lease: how long hosts keep the work of an owner that vanished; `None` is for ever.",
            variable=(f"{hm}ORPHAN_TIMEOUT",),
            nullable=True,
        ),
        Setting(
            "host_loss_timeout",
            "duration",
            "3s",
            "A silent host is lost within this time: after nine tenths of it without a heartbeat of its own or an indirect heartbeat. "
            "A silence of up to two thirds of it loses nothing.",
            nonzero=True,
        ),
        Setting(
            "supervision_watchdog_timeout",
            "duration",
            None,
            "If set, replaces `host_loss_timeout`.",
            variable=(f"{hm}SUPERVISION_WATCHDOG_TIMEOUT",),
            nullable=True,
        ),
        Setting(
            "channel_reconnect_timeout",
            "duration",
            "10s",
            "How long a broken link may take to come back while third hosts still see the other end.",
            variable=(f"{h}CHANNEL_RECONNECT_TIMEOUT",),
        ),
        Setting("exit_grace", "duration", "500ms", "Bound of the drain at interpreter exit."),
        Setting(
            "spawn_method",
            "str",
            "auto",
            "`auto`: procs are forked from the zygote where possible; `exec`: always a new interpreter.",
            choices=("auto", "exec"),
        ),
        Setting(
            "preload",
            "str",
            "",
            "Modules that each host imports once for all procs, separated by commas or spaces (preload.md).",
        ),
        Setting(
            "enable_file_capture",
            "bool",
            False,
            "Also write the output of each proc to files below `log_dir`, as it was printed (logs.md).",
            variable=(f"{hm}ENABLE_FILE_CAPTURE",),
        ),
        Setting(
            "log_dir",
            "str",
            "",
            "Directory for log files, with one of mode 0700 in it for each job; empty: below the temporary directory.",
            local=True,
        ),
        Setting(
            "log_filter",
            "str",
            "warn",
            "The events of the runtime's own log that go to stderr: a level, or `target=level,...`.",
            variable=("MONARCH_LOG",),
            local=True,
        ),
        Setting(
            "file_log_level",
            "str",
            "",
            "The same log as JSON lines in `log_dir`: a level, or `target=level,...`; empty: not at all (logs.md).",
            variable=("MONARCH_FILE_LOG",),
        ),
        Setting(
            "flight_recorder",
            "bool",
            False,
            "Processes record their events in shared memory; the last of a killed proc are in `MeshFailure.recent_events` (events.md).",
        ),
        Setting(
            "flight_recorder_events",
            "int",
            16384,
            "Events that a process keeps when they are recorded, 128 bytes each: rounded up to a power of two, 256 to 4,194,304.",
            nonzero=True,
        ),
        Setting("tail_log_lines", "int", 20, "Last lines of output kept for reports.", variable=(f"{hm}TAIL_LOG_LINES",)),
        Setting(
            "prefix_with_rank",
            "bool",
            True,
            "Put `[{rank}] ` before each line of a proc's output.",
            variable=(f"{h}PREFIX_WITH_RANK",),
        ),
        *(
            Setting(
                f"tls_{part}",
                "str",
                "",
                f"{about}, in place of the per-job CA. The 0.7 name `hyperactor_tls_{part}` is accepted.",
                variable=(f"{h}TLS_{part.upper()}",),
                local=True,
            )
            for part, about in (("cert", "Site certificate"), ("key", "Key of the site certificate"), ("ca", "Site CA"))
        ),
        Setting(
            "trust_all",
            "bool",
            False,
            "Plain TCP, as `insecure=True`, where no other credentials are given: worker and client set it to run programs of "
            "torchmonarch 0.7 unchanged, in a network where every machine may run code. Warns at each use.",
            local=True,
        ),
    ]


def _telemetry() -> list[Setting]:
    group = "telemetry"
    return [
        Setting("enable_otel_tracing", "bool", True, "Export traces by OpenTelemetry.", group=group, variable=("ENABLE_OTEL_TRACING",)),
        Setting("enable_otel_metrics", "bool", True, "Export metrics by OpenTelemetry.", group=group, variable=("ENABLE_OTEL_METRICS",)),
        Setting(
            "otel_metric_export_interval",
            "duration",
            "1s",
            "Time between two exports of metrics.",
            group=group,
            variable=("OTEL_METRIC_EXPORT_INTERVAL",),
        ),
        Setting(
            "process_memory_metric_interval",
            "duration",
            "5m",
            "Time between two measurements of process memory.",
            group=group,
            variable=("HYPERACTOR_PROCESS_MEMORY_METRIC_INTERVAL",),
        ),
        Setting(
            "mesh_admin_addr",
            "str",
            "127.0.0.1:1729",
            "Where the admin API listens.",
            group=group,
            variable=("HYPERACTOR_MESH_ADMIN_ADDR",),
        ),
        Setting("pyspy_bin", "str", "", "Path of py-spy; empty: found on `PATH`.", group=group, variable=("PYSPY_BIN",)),
    ]


_DURATION = "duration"

# Reason, then the keys it applies to: name, default, kind if it does not follow from the default.
_IGNORED: tuple[tuple[str, tuple[tuple[object, ...], ...]], ...] = (
    (
        "no frame limit, one encoding, framing is internal",
        (
            ("codec_max_frame_length", 10 << 30),
            ("default_encoding", Encoding.Multipart, "encoding"),
            ("split_max_buffer_size", 5),
            ("split_max_buffer_age", "50ms", _DURATION),
            ("small_write_threshold", 256),
        ),
    ),
    (
        "delivery ends with the loss of the destination, not with age",
        (
            ("message_delivery_timeout", "30s", _DURATION),
            ("message_ack_time_interval", "500ms", _DURATION),
            ("message_ack_every_n_messages", 1000),
            ("message_ttl_default", 64),
            ("pending_actor_delivery_timeout", "30s", _DURATION),
            ("forwarder_flush_timeout", "5s", _DURATION),
        ),
    ),
    (
        "order cannot be switched off; the tree tunes itself",
        (
            ("enable_dest_actor_reordering_buffer", True),
            ("sequencer_max_locked_keys", 128),
            ("max_cast_dimension_size", 16),
            ("max_cast_fanout", 16),
        ),
    ),
    (
        "derived from `host_loss_timeout`; system settings",
        (
            ("server_heartbeat_interval", "1s", _DURATION),
            ("channel_tcp_keepalive_idle", "1m", _DURATION),
            ("channel_net_rx_buffer_full_check_interval", "5s", _DURATION),
            ("channel_tcp_congestion", ""),
        ),
    ),
    (
        "nothing is polled; `__init__` may take its time",
        (
            ("actor_spawn_max_idle", "30s", _DURATION),
            ("get_actor_state_max_idle", "30s", _DURATION),
            ("get_proc_state_max_idle", "1m", _DURATION),
            ("proc_stop_max_idle", "30s", _DURATION),
        ),
    ),
    ("messages always go through a queue of the actor", (("actor_queue_dispatch", False),)),
    ("always on", (("mesh_bootstrap_enable_pdeathsig", True),)),
    ("always parallel", (("mesh_terminate_concurrency", 16),)),
    ("use `process_exit_timeout`", (("mesh_terminate_timeout", "10s", _DURATION),)),
    ("use `BootstrapCommand`", (("proc_launcher_kind", ""),)),
    ("use `spawn_method`", (("use_direct_spawn", False),)),
    ("bounded by bytes", (("terminated_snapshot_retention", 100),)),
    ("one I/O thread", (("tokio_worker_threads", None, "int"),)),
    ("no Python on the I/O thread", (("enable_unawaited_python_task_traceback", False),)),
    ("telemetry decides", (("message_latency_sampling_rate", 0.01),)),
    (
        "forwarding is always available; use `logging_option`, `enable_file_capture`",
        (("enable_log_forwarding", False), ("read_log_buffer", 100), ("force_file_log", False)),
    ),
    (
        "replaced by monarch-telemetry",
        (
            ("enable_recorder_tracing", True),
            ("enable_sqlite_tracing", False),
            ("scuba_log_enter_exit", False),
            ("perfetto_trace_mode", "User"),
            ("monarch_log_suffix", ""),
        ),
    ),
    (
        "internals of a former admin server",
        (
            ("mesh_admin_resolve_actor_timeout", "200ms", _DURATION),
            ("mesh_admin_max_concurrent_resolves", 2),
            ("mesh_admin_single_host_timeout", "3s", _DURATION),
            ("mesh_admin_query_child_timeout", "100ms", _DURATION),
            ("mesh_admin_config_dump_bridge_timeout", "5s", _DURATION),
            ("mesh_admin_tree_timeout", "10s", _DURATION),
            ("mesh_admin_pyspy_timeout", "10s", _DURATION),
            ("mesh_admin_pyspy_bridge_timeout", "13s", _DURATION),
            ("mesh_admin_pyspy_client_timeout", "20s", _DURATION),
            ("mesh_admin_pyspy_max_profile_duration", "5m", _DURATION),
        ),
    ),
)
_IGNORED_NONZERO = ("sequencer_max_locked_keys", "max_cast_fanout", "tokio_worker_threads")


def _ignored() -> list[Setting]:
    settings: list[Setting] = []
    for reason, rows in _IGNORED:
        for name, default, *kind in rows:
            settings.append(
                Setting(
                    str(name),
                    str(kind[0]) if kind else type(default).__name__,
                    default,
                    reason,
                    group="ignored",
                    nonzero=name in _IGNORED_NONZERO,
                    nullable=default is None,
                    silent=name == "enable_log_forwarding",
                )
            )
    return settings


SETTINGS: dict[str, Setting] = {setting.name: setting for setting in (*_kept(), *_telemetry(), *_ignored())}

# Other spellings that `configure` takes.
SPELLINGS = {f"hyperactor_tls_{part}": f"tls_{part}" for part in ("cert", "key", "ca")}

# Keys that older programs may still name; they are as invalid as any unknown key.
DROPPED = ("remote_alloc_bind_to_inaddr_any", "remote_alloc_bootstrap_addr", "remote_alloc_allowed_port_range")
