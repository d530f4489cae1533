"""Dumps of stacks that were taken and stored; `stacks()` of live.py takes them anew."""

from __future__ import annotations

from monarch.telemetry._tables.table import Column, Table, time

_DUMP = Column("dump_id", "text", "the dump (pyspy_dumps.dump_id)")
_THREAD = Column("thread_id", "u64", "the thread, as Python numbers it")

PYSPY_DUMPS = Table(
    "pyspy_dumps",
    (
        Column("dump_id", "text", "the dump"),
        time("timestamp_us", "when it was taken"),
        Column("pid", "i32", "the process"),
        Column("binary", "text", "the program that took it"),
        Column("proc_ref", "text", "the reference of the proc, as the admin API has it"),
        Column("capture_mode", "text", "how it was taken: by the process itself, or from outside, with native frames or without"),
        Column("warnings_json", "text", "what could not be read, as a JSON list of texts"),
    ),
    "Each dump of the stacks of a process",
    "SELECT dump_id, timestamp_us, proc_ref, pid FROM pyspy_dumps ORDER BY timestamp_us DESC LIMIT 20",
    "on demand",
)
PYSPY_STACK_TRACES = Table(
    "pyspy_stack_traces",
    (
        _DUMP,
        Column("pid", "i32", "the process"),
        _THREAD,
        Column("thread_name", "text", "the name of the thread", True),
        Column("os_thread_id", "u64", "the thread, as the operating system numbers it", True),
        Column("active", "bool", "whether it was running"),
        Column("owns_gil", "bool", "whether it held the GIL"),
    ),
    "Each thread of a dump",
    "SELECT d.proc_ref, t.thread_name FROM pyspy_stack_traces t JOIN pyspy_dumps d ON t.dump_id = d.dump_id WHERE t.owns_gil",
    "on demand",
)
PYSPY_FRAMES = Table(
    "pyspy_frames",
    (
        _DUMP,
        _THREAD,
        Column("frame_depth", "i32", "the place in the stack: 0 is the innermost call"),
        Column("name", "text", "the function"),
        Column("filename", "text", "the source file with its path"),
        Column("module", "text", "the module, or the library of a native frame", True),
        Column("short_filename", "text", "the source file without its path", True),
        Column("line", "i32", "the line of the file, 0 where it is not known"),
        Column("is_entry", "bool", "whether the interpreter was entered with this call"),
    ),
    "Each frame of the threads of a dump",
    "SELECT filename, line, name, count(*) AS threads FROM pyspy_frames WHERE frame_depth = 0"
    " GROUP BY filename, line, name ORDER BY threads DESC LIMIT 20",
    "on demand",
)
PYSPY_LOCAL_VARIABLES = Table(
    "pyspy_local_variables",
    (
        _DUMP,
        _THREAD,
        Column("frame_depth", "i32", "the frame (pyspy_frames.frame_depth)"),
        Column("name", "text", "the variable"),
        Column("addr", "u64", "the address of its value"),
        Column("arg", "bool", "whether it is an argument of the function"),
        Column("repr", "text", "its value as text, shortened", True),
    ),
    "Each local variable of the frames of a dump that was taken with locals",
    "SELECT f.name AS function, v.name, v.repr FROM pyspy_local_variables v JOIN pyspy_frames f"
    " ON v.dump_id = f.dump_id AND v.thread_id = f.thread_id AND v.frame_depth = f.frame_depth WHERE v.arg",
    "on demand",
)

TABLES = (PYSPY_DUMPS, PYSPY_STACK_TRACES, PYSPY_FRAMES, PYSPY_LOCAL_VARIABLES)
