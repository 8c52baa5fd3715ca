"""What the hardware is. The only package that asks: everything else is handed a `Platform` and uses its fields.

`current(device)` names this process's compute device, the communication backend that fits it and the dtype it computes
in by default.
"""

from verl_core.platforms.platform import Memory, Platform, current

__all__ = ["Memory", "Platform", "current"]
