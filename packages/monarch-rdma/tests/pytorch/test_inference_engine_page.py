"""The code of docs/cookbook/inference-engine.md, with trainers and workers in processes, against a stand-in for vLLM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import with_torch
from tools.project import ROOT

PAGE = ROOT / "docs" / "cookbook" / "inference-engine.md"
STUB = Path(__file__).parents[1] / "vllm_stub"
PROGRAM = """
import pickle
from types import SimpleNamespace

import torch
from code_of_page import MonarchExecutor, Trainer, transfer
from torch import nn

from monarch.actor import ActorError, this_host
from monarch.spmd import setup_torch_elastic_env


def model():
    torch.manual_seed(3)
    attention = nn.Module()
    for name, rows in (("q_proj", 16), ("k_proj", 8), ("v_proj", 8), ("o_proj", 16)):
        setattr(attention, name, nn.Linear(16, rows, bias=False))
    whole = nn.Module()
    whole.attention, whole.norm = attention, nn.LayerNorm(16)
    return whole


def parameters(worker):
    return {name: parameter.data.clone() for name, parameter in worker.model.named_parameters()}


if __name__ == "__main__":
    procs = this_host().spawn_procs({"gpus": 2})
    setup_torch_elastic_env(procs)
    trainers = procs.spawn("trainers", Trainer)
    trainers.start.call(model).get()
    parallel, transport = SimpleNamespace(world_size=2), SimpleNamespace(backend="monarch")
    executor = MonarchExecutor(SimpleNamespace(parallel_config=parallel, weight_transfer_config=transport))
    executor.check_health()
    executor.collective_rpc("init_weight_transfer_engine", args=({"name": "policy", "trainers": pickle.dumps(trainers)},))
    transfer(trainers, executor)
    # As the loop of the engine does.
    running = executor.execute_model("batch", non_block=True)
    assert running.result() == (0, "batch") and executor.sample_tokens("grammar") == (0, "grammar")
    try:
        executor.collective_rpc("start_draft_weight_update")
    except ActorError as error:
        assert "updates no draft model" in str(error)
    else:
        raise AssertionError

    whole = {name: 2 * tensor for name, tensor in model().state_dict().items()}
    found = executor.collective_rpc(parameters, non_block=True).result()
    for rank, mine in enumerate(found):
        heads = [whole[f"attention.{name}_proj.weight"].chunk(2)[rank] for name in "qkv"]
        assert torch.equal(mine["attention.qkv_proj.weight"], torch.cat(heads))
        assert torch.equal(mine["attention.o_proj.weight"], whole["attention.o_proj.weight"].chunk(2, dim=1)[rank])
        assert torch.equal(mine["norm.weight"], whole["norm.weight"])
    executor.shutdown()
    print("done")
"""


@pytest.mark.timeout(180)  # most of it are five imports of PyTorch
def test_page_hands_weights_to_workers(tmp_path):
    variables = with_torch.variables()
    if variables is None:
        pytest.skip("python -m tools.side_venv torch")
    blocks = re.findall(r"^```python no-run\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "code_of_page.py").write_text("from __future__ import annotations\n\n" + "\n".join(blocks))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], str(STUB)])
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == "done"
