"""The public name of the registry."""

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as WeightTransferEngineFactory
