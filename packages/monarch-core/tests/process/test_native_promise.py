"""Promises that native code sets: from its own threads, while Python code has the GIL."""

from __future__ import annotations

import subprocess

import pytest
from fresh import lines, run

# The excerpt of docs/extending-calls.md for a wheel with native code.
LIBRARY = """
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct monarch_promise {
    int (*set_result)(struct monarch_promise *, const uint8_t *, size_t);
    int (*set_exception)(struct monarch_promise *, const uint8_t *, size_t);
    void (*drop)(struct monarch_promise *);
};

struct work {
    struct monarch_promise *promise;
    const char *result, *error;
    int codes[2];
};

static void *set(void *argument) {
    struct work *w = argument;
    if (w->result) w->codes[0] = w->promise->set_result(w->promise, (const uint8_t *)w->result, strlen(w->result));
    if (w->error) w->codes[1] = w->promise->set_exception(w->promise, (const uint8_t *)w->error, strlen(w->error));
    w->promise->drop(w->promise);
    return 0;
}

/* Does it on a thread of its own and waits for that: with the GIL this ends only if the thread needs none. */
int run_thread(struct monarch_promise *promise, const char *result, const char *error) {
    struct work w = {promise, result, error, {0, 0}};
    pthread_t thread;
    if (pthread_create(&thread, 0, set, &w)) return -1;
    pthread_join(thread, 0);
    return w.codes[0] * 10 + w.codes[1];
}

int set_nothing(struct monarch_promise *promise) { return promise->set_result(promise, 0, 4); }
"""

SCRIPT = """
import asyncio, ctypes, gc, sys, threading
from monarch.extension import PromiseDropped, PromiseFailed, promise

library = ctypes.PyDLL(sys.argv[1])  # the GIL is held in its functions
run_thread = library.run_thread
run_thread.argtypes, run_thread.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p], ctypes.c_int
library.set_nothing.argtypes = [ctypes.c_void_p]
get, rename = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_SetName
get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
TAKEN = ctypes.create_string_buffer(b"monarch.promise.taken")

def take(capsule):
    pointer = get(capsule, b"monarch.promise.1")
    assert rename(capsule, ctypes.cast(TAKEN, ctypes.c_char_p)) == 0
    return pointer
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    (folder / "promise.c").write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-pthread", "-o", folder / "promise.so", folder / "promise.c"], check=True)
    return str(folder / "promise.so")


def test_native_thread_sets_a_promise_without_the_gil(library):
    done = run(
        SCRIPT
        + """
kept = promise("the rows")
future = kept.future
pointer = take(kept.native_handle())
assert not kept.is_set()
assert run_thread(pointer, b"1 2 3", None) == 0
assert kept.is_set() and future.get() == b"1 2 3"
# Bytes are decoded by the first reader, also on an event loop that waits already.
words = promise("the words")
pointer = take(words.native_handle(bytes.split))
async def wait():
    asyncio.get_running_loop().call_soon(run_thread, pointer, b"a b", None)
    return await words.future
print(asyncio.run(wait()), words.future.get())
""",
        library,
    )
    assert lines(done.stdout) == ["[b'a', b'b'] [b'a', b'b']"]


def test_native_error_is_raised_with_its_text(library):
    done = run(
        SCRIPT
        + """
failed = promise("the rows of host 3")
future = failed.future
assert run_thread(take(failed.native_handle()), None, "disk full: \\u00e9".encode()) == 0
del failed
for _ in range(2):
    try:
        future.get()
    except PromiseFailed as e:
        print(e, e.code)
# The first one counts.
twice = promise("the rows")
assert run_thread(take(twice.native_handle()), b"yes", b"no") == 1
print(twice.future.get())
# Without bytes it is not set.
nothing = promise("no rows")
pointer = take(nothing.native_handle())
print(library.set_nothing(pointer), nothing.is_set(), run_thread(pointer, b"", None), nothing.future.get())
""",
        library,
    )
    failed = "the rows of host 3 failed: disk full: \u00e9 promise_failed"
    assert lines(done.stdout) == [failed, failed, "b'yes'", "2 False 0 b''"]


def test_dropped_native_promise_fails_its_future(library):
    done = run(
        SCRIPT
        + """
def outcome(future):
    try:
        return future.get()
    except PromiseDropped as e:
        return str(e)

# By native code, and by Python code that has given the capsule to nobody; the promise itself may be gone by then.
futures = []
for take_it in (True, False):
    one = promise(f"rows {take_it}")
    futures.append(one.future)
    capsule = one.native_handle()
    del one
    gc.collect()
    assert not futures[-1]._done()
    if take_it:
        run_thread(take(capsule), None, None)
    del capsule
    print(outcome(futures[-1]))
# A capsule that was taken drops nothing.
kept = promise("kept")
capsule = kept.native_handle()
pointer = take(capsule)
del capsule
assert not kept.is_set()
run_thread(pointer, b"here", None)
print(outcome(kept.future))
""",
        library,
    )
    assert lines(done.stdout) == [
        "the promise rows True was dropped before it was set",
        "the promise rows False was dropped before it was set",
        "b'here'",
    ]


def test_native_promise_is_set_by_native_code_only(library):
    done = run(
        SCRIPT
        + """
given = promise("given away")
capsule = given.native_handle()
for take_back in (lambda: given.set_result(1), lambda: given.set_exception(ValueError()), given.native_handle):
    try:
        take_back()
    except RuntimeError as e:
        print(e)
own = promise("kept")
own.set_result(1)
try:
    own.native_handle()
except RuntimeError as e:
    print(e)
print(own.is_set(), given.is_set())
""",
        library,
    )
    mine = "promise given away belongs to native code, which sets it"
    assert lines(done.stdout) == [mine, mine, mine, "promise kept is set already", "True False"]
