"""Streaming against oneshot: the same bits, whatever the shards; and its kernels, alone."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.quantize.conftest import Make


@pytest.mark.parametrize("scheme", ["fp8", "nvfp4a16"])
def test_streaming_gives_the_bits_of_oneshot(made: Make, scheme: str) -> None:
    ours, theirs = made(scheme, "stream").folder, made(scheme, "oneshot").folder
    a, b = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.dtype == b[name].dtype
        assert value.view(-1).view(torch.uint8).equal(b[name].view(-1).view(torch.uint8)), name
    assert (ours / "config.json").read_text() == (theirs / "config.json").read_text()
    index = json.loads((ours / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == a.keys()
