"""The interposer with a libfuse of another interface: programs built with 3.17 and later make their session by another function."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from monarch.fs._kernel.interposer import SOURCE

# The functions of libfuse that the interposer and the program use. Calls of the library reach the functions given to it.
LIBRARY = """
#define _GNU_SOURCE
#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <stdio.h>
static struct fuse_lowlevel_ops ops;
static int made;
struct version { unsigned major, minor, hotfix, padding; };
static struct fuse_session *keep(const struct fuse_lowlevel_ops *op, size_t n, const char *by) {
    __builtin_memcpy(&ops, op, n);
    printf("made by %s\\n", by);
    return (struct fuse_session *)&made;
}
struct fuse_session *new_30(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *);
struct fuse_session *new_30(struct fuse_args *a, const struct fuse_lowlevel_ops *op, size_t n, void *user) { return keep(op, n, user); }
__asm__(".symver new_30, fuse_session_new@FUSE_3.0");
#ifdef NAME
struct fuse_session *new_317(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, struct version *, void *) __asm__(NAME);
struct fuse_session *new_317(struct fuse_args *a, const struct fuse_lowlevel_ops *op, size_t n, struct version *v, void *user) {
    printf("version %u.%u\\n", v->major, v->minor);
    return keep(op, n, user);
}
#endif
int fuse_session_fd(struct fuse_session *se) { return -1; }
int fuse_session_receive_buf(struct fuse_session *se, struct fuse_buf *buf) { return 0; }
void fuse_session_process_buf(struct fuse_session *se, const struct fuse_buf *buf) {
    struct fuse_file_info file = {0};
    ops.read(NULL, 42, 1, 0, &file);
}
"""
PROGRAM = """
#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <stdio.h>
int monarch_fs_in_front(void);
static void on_read(fuse_req_t r, fuse_ino_t i, size_t n, off_t o, struct fuse_file_info *f) { printf("read of handle %d\\n", (int)f->fh); }
struct version { unsigned major, minor, hotfix, padding; } version = {3, 18, 0, 0};
struct fuse_session *old(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, void *) __asm__("fuse_session_new");
struct fuse_session *made(struct fuse_args *, const struct fuse_lowlevel_ops *, size_t, struct version *, void *) __asm__(NAME);
int main(void) {
    struct fuse_lowlevel_ops ops = {.read = on_read};
    struct fuse_buf buf = {.flags = FUSE_BUF_IS_FD};
    struct fuse_session *se = OLD ? old(NULL, &ops, sizeof ops, "the old function")
                                  : made(NULL, &ops, sizeof ops, &version, "the new function");
    fuse_session_process_buf(se, &buf);
    printf("in front %d\\n", monarch_fs_in_front());
    return 0;
}
"""
# The differences in the headers of libfuse 3.17 and later: a macro, and a function that replaces another one.
HEADER = """
#include_next <fuse3/fuse_lowlevel.h>
struct libfuse_version;
struct fuse_session *fuse_session_new_versioned(struct fuse_args *args, const struct fuse_lowlevel_ops *op, size_t op_size,
                                                struct libfuse_version *version, void *userdata);
#define fuse_session_new(args, op, op_size, userdata) fuse_session_new_versioned(args, op, op_size, NULL, userdata)
"""


def compiled(folder: Path, name: str, text: str | None, *options: str) -> Path:
    source = folder / f"{name}.c" if text is not None else SOURCE
    if text is not None:
        source.write_text(text)
    flags = subprocess.run(["pkg-config", "--cflags", "fuse3"], check=True, capture_output=True, text=True).stdout.split()
    made = folder / name
    subprocess.run(["cc", "-Wall", "-Werror", "-Wno-unused", *options, "-o", made, source, *flags], check=True, cwd=folder, timeout=20)
    return made


def printed(folder: Path, name: str, *, is_old: bool) -> list[str]:
    """What a program prints that was linked with the interposer in front of a libfuse."""
    (folder / "versions").write_text("FUSE_3.0 {}; FUSE_3.17 { global: *; } FUSE_3.0;\n")
    macro = f'-DNAME="{name}"'
    compiled(folder, "libfake.so", LIBRARY, "-shared", "-fPIC", macro, "-Wl,--version-script=versions", "-Wl,-soname,libfake.so")
    compiled(folder, "libfront.so", None, "-shared", "-fPIC")
    path = f"-Wl,-rpath,{folder}"
    program = compiled(folder, "program", PROGRAM, macro, f"-DOLD={int(is_old)}", "-Wl,--no-as-needed", "libfront.so", "libfake.so", path)
    return subprocess.run([program], check=True, capture_output=True, text=True, timeout=20).stdout.splitlines()


@pytest.mark.parametrize("name", ["fuse_session_new_versioned", "_fuse_session_new_317"])
def test_session_of_a_newer_libfuse_is_interposed(tmp_path: Path, name: str) -> None:
    lines = printed(tmp_path, name, is_old=False)
    assert lines == ["version 3.18", "made by the new function", "read of handle 42", "in front 1"]


def test_older_program_with_newer_libfuse_is_interposed(tmp_path: Path) -> None:
    lines = printed(tmp_path, "fuse_session_new_versioned", is_old=True)
    assert lines == ["made by the old function", "read of handle 42", "in front 1"]


def test_interposer_compiles_with_newer_headers(tmp_path: Path) -> None:
    (tmp_path / "fuse3").mkdir()
    (tmp_path / "fuse3" / "fuse_lowlevel.h").write_text(HEADER)
    made = compiled(tmp_path, "interposer.so", None, "-shared", "-fPIC", f"-I{tmp_path}")
    symbols = subprocess.run(["nm", "-D", "--defined-only", made], check=True, capture_output=True, text=True).stdout
    for name in ("fuse_session_new", "fuse_session_new_versioned", "_fuse_session_new_317"):
        assert f" T {name}\n" in symbols
