"""The channel search: rings of a group of GPUs, as NVIDIA's library would lay them over a machine.

`search` answers for any GPUs of any machine, alone or as part of a group that spans machines; `nvls_heads` for all-reduces
inside an NVSwitch. Groups on NVSwitches and pure PCIe have closed forms (`shortcuts`); meshes and bridges are packed
(`packing`). Results are kept per machine graph, group and list of speeds.
"""

from __future__ import annotations

from parsim.hardware.search.lookup import nvls_heads, search
from parsim.hardware.search.result import Found, Heads, Ring

__all__ = ["Found", "Heads", "Ring", "nvls_heads", "search"]
