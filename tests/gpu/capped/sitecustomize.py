"""Stands for a smaller GPU: with this folder on PYTHONPATH every process may allocate CAP_GB gigabytes of GPU memory.

PYTHONPATH=tests/gpu/capped CAP_GB=24 rlx train gsm8k-ppo ...
"""

import os

import torch

if torch.cuda.is_available() and "CAP_GB" in os.environ:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(float(os.environ["CAP_GB"]) * 1e9 / total)
