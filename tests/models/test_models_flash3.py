"""When torch's FlashAttention 3 is switched on; the kernels themselves need a GPU."""

import pytest
import torch

from verl_core.models import cudnn_ragged, flash3

HOPPER, AMPERE = (9, 0), (8, 0)


@pytest.mark.parametrize(
    ("device", "capability", "cudnn", "listed", "installed", "used"),
    [
        ("cuda", HOPPER, False, ["FA3", "FA4"], True, True),
        ("cuda", HOPPER, True, ["FA3"], True, False),  # cuDNN's ragged kernel is there
        ("cuda", AMPERE, False, ["FA3"], True, False),
        ("cuda", HOPPER, False, ["FA4"], True, False),
        ("cuda", HOPPER, False, ["FA3"], False, False),
        ("cpu", HOPPER, False, ["FA3"], True, False),
    ],
)
def test_it_is_tried_only_where_it_helps(monkeypatch, device, capability, cudnn, listed, installed, used):
    tried = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(cudnn_ragged, "usable", lambda device: cudnn)
    monkeypatch.setattr(flash3, "list_flash_attention_impls", lambda: listed)
    monkeypatch.setattr(flash3, "activate_flash_attention_impl", tried.append)
    monkeypatch.setattr(flash3, "find_spec", lambda name: object() if installed else None)
    flash3.activate.cache_clear()
    try:
        for _ in range(2):
            assert flash3.activate(torch.device(device)) is used
        assert tried == ["FA3"] * used  # once a process
    finally:
        flash3.activate.cache_clear()
