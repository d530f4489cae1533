"""Beginning and end of activations: what interrupts them, and in what order they end."""

import sys
import threading

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, is_in_torch_dispatch_mode

from monarch.tensor import Stream, TensorMeshError, get_active_mesh, get_active_stream, no_mesh

pytestmark = pytest.mark.timeout(180)

# Functions in which nothing has begun, or nothing is left to do. No code can act before the first instruction of `__exit__`.
OUT_OF_REACH = ("__enter__", "__exit__")


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line of what begins and ends activations, once."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.raised = False

    def __call__(self, frame, event, arg):
        return self.line if frame.f_code.co_filename.endswith(("_tensors/activation.py", "utils/_python_dispatch.py")) else None

    def line(self, frame, event, arg):
        if event == "line" and not self.raised and frame.f_code.co_name not in OUT_OF_REACH:
            self.left -= 1
            if not self.left:
                self.raised = True
                raise KeyboardInterrupt
        return self.line


def is_outside():
    with pytest.raises(TensorMeshError):
        get_active_mesh()
    return not _get_current_dispatch_mode_stack() and not is_in_torch_dispatch_mode() and type(torch.ones(1)) is torch.Tensor


@pytest.mark.parametrize("what", ["mesh", "stream", "no mesh"])
def test_ctrl_c_leaves_no_activation_behind(procs, what):
    with procs.activate() as mesh:
        pass
    make = {"mesh": mesh.activate, "stream": Stream("interrupted").activate, "no mesh": no_mesh.activate}[what]
    default = get_active_stream()
    for n in range(1, 200):
        activation, interrupt = make(), Interrupt(n)
        sys.settrace(interrupt)
        try:
            with activation:
                pass
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert is_outside() and get_active_stream() is default, n
        if not interrupt.raised:
            break
    assert 10 < n < 199
    with procs.activate():
        assert torch.ones(1).mesh == mesh


def test_outer_activation_cannot_end_before_the_inner(procs):
    with procs.activate() as mesh:
        pass
    outer, inner = mesh.activate(), mesh.activate()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="not the innermost one") as found:
        outer.__exit__(None, None, None)
    assert found.value.__context__ is None or "innermost" not in str(found.value.__context__)
    assert torch.ones(1).mesh == mesh and get_active_mesh() == mesh
    inner.__exit__(None, None, None)
    assert torch.ones(1).mesh == mesh
    outer.__exit__(None, None, None)
    assert is_outside()


def test_activation_cannot_end_in_another_thread(procs):
    errors: list[Exception] = []

    def leave(activation):
        try:
            activation.__exit__(None, None, None)
        except RuntimeError as e:
            errors.append(e)

    activation = procs.activate()
    with activation as mesh:
        thread = threading.Thread(target=leave, args=(activation,))
        thread.start()
        thread.join()
        assert torch.ones(1).mesh == mesh
    assert is_outside() and "not the innermost one" in str(errors[0])
