"""Which GPU a text about a machine names: lists of nvidia-smi, lspci and rocm-smi, or the words beside a matrix.

Product names are those that the drivers print; of one product with several memories or sockets, the words decide.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_MAKER, _VENDOR = r"(?:NVIDIA|Tesla|GeForce|Quadro|TITAN|A[0-9]|H[0-9])", r"(?:NVIDIA|Advanced Micro Devices|AMD)"
_BRACKETS = r"(\[[^\]\n]{1,60}\])(?: \(rev [0-9a-f]+\))?"
PRODUCTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), device)
    for pattern, device in (
        (r"\bGB300\b", "gb300-288gb"), (r"\bGB200\b", "gb200-186gb"), (r"\bGH200\b", "gh200-96gb"),
        (r"\bB300\b", "b300-sxm-288gb"), (r"\bB200\b", "b200-sxm-180gb"), (r"\bH200\b(?!.*NVL)", "h200-sxm-141gb"),
        (r"\bH100[- ]?NVL\b", "h100-nvl-94gb"), (r"\bH100[- ]?PCI-?E?\b", "h100-pcie-80gb"),
        (r"\bH100[- ](SXM[- ]?)?96GB", "h100-sxm-96gb"), (r"\bH100\b[- ]?(80GB HBM3|SXM|80GB)", "h100-sxm-80gb"),
        (r"\bH800\b(?!.*PCI)", "h800-sxm-80gb"), (r"\bH20\b(?!.*141)", "h20-sxm-96gb"),
        (r"\bA800[- ]?SXM[4]?[- ]?80GB", "a800-sxm-80gb"),
        (r"\bA100[- ]?SXM[4]?[- ]?80GB", "a100-sxm-80gb"), (r"\bA100[- ]?SXM[4]?[- ]?40GB", "a100-sxm-40gb"),
        (r"\bA100[- ]?(80GB[- ]PCI-?E?|PCI-?E?[- ]?80GB)", "a100-pcie-80gb"),
        (r"\bA100[- ]?(40GB[- ]PCI-?E?|PCI-?E?[- ]?40GB)", "a100-pcie-40gb"),
        (r"\bV100[- ]?SXM2[- ]?32GB", "v100-sxm2-32gb"), (r"\bV100[- ]?SXM2[- ]?16GB", "v100-sxm2-16gb"),
        (r"\bV100[- ]?PCI-?E?[- ]?32GB", "v100-pcie-32gb"), (r"\bV100[- ]?PCI-?E?[- ]?16GB", "v100-pcie-16gb"),
        (r"\bP100[- ]?PCI-?E?[- ]?16GB", "p100-pcie-16gb"),
        (r"\bL40S\b", "l40s-48gb"), (r"\bNVIDIA L4\b|\[L4\]|\bTesla L4\b", "l4-24gb"), (r"\bTesla T4\b|\[Tesla T4\]", "t4-16gb"),
        (r"\bA10G\b", "a10g-24gb"), (r"\bNVIDIA A10\b|\[A10\]", "a10-24gb"), (r"\bNVIDIA A30\b|\[A30[^\]]*\]", "a30-24gb"),
        (r"\bNVIDIA A40\b|\[A40\]", "a40-48gb"), (r"\bRTX A6000\b", "rtx-a6000-48gb"), (r"\bRTX 6000 Ada\b", "rtx-6000-ada-48gb"),
        (r"\bRTX PRO 6000\b.*Blackwell|\bRTX PRO 6000\b", "rtx-pro-6000-96gb"), (r"\bRTX[- ]?5090\b(?! ?D)", "rtx-5090-32gb"),
        (r"\bRTX[- ]?4090\b(?! ?D)", "rtx-4090-24gb"), (r"\bRTX[- ]?3090 ?Ti\b", "rtx-3090-ti-24gb"),
        (r"\bRTX[- ]?3090\b(?! ?Ti)", "rtx-3090-24gb"), (r"\bRTX[- ]?3080\b(?! ?Ti)", "rtx-3080-10gb"),
        (r"\bRTX[- ]?2080 ?Ti\b", "rtx-2080-ti-11gb"), (r"\bTITAN RTX\b", "titan-rtx-24gb"),
        (r"\bMI300X\b", "mi300x-192gb"), (r"\bMI325X\b", "mi325x-256gb"), (r"\bMI350X\b", "mi350x-288gb"),
        (r"\bMI355X\b", "mi355x-288gb"),
    )
)  # fmt: skip
"""driver's product name -> device of the catalogue"""
_LISTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("nvidia-smi -L", re.compile(r"^\s*GPU\s+[0-9]+:\s*(.{1,80}?)\s*\(UUID", re.MULTILINE)),
    ("nvidia-smi -q", re.compile(r"^\s*Product Name\s*:\s*(\S.{0,80}?)\s*$", re.MULTILINE)),
    ("nvidia-smi", re.compile(rf"^\|\s+[0-9]+\s+({_MAKER}[^|]{{0,60}}?)\s+(?:On|Off|N/A)\s*\|", re.MULTILINE)),
    ("lspci", re.compile(rf"^[0-9a-fA-F:.]{{7,12}} [^\n]{{0,40}}: {_VENDOR}[^\n]{{0,120}}?{_BRACKETS}\s*$", re.MULTILINE)),
    ("rocm-smi", re.compile(r"^GPU\[[0-9]+\]\s*:\s*Card [Ss]eries:\s*(\S.{0,80}?)\s*$", re.MULTILINE)),
)
_GENERATION = re.compile(r"PCIe Generation\s*\n(?:\s*\w[^\n]*\n){0,5}?\s*Max\s*:\s*([1-6])\b")
_WIDTH = re.compile(r"Link Width\s*\n(?:\s*\w[^\n]*\n){0,3}?\s*Max\s*:\s*([0-9]{1,2})x")
LONGEST = 2_000_000
"""characters of a text that are looked at"""


@dataclass(frozen=True, slots=True)
class Named:
    """What a text says about the GPUs of its machine."""

    devices: tuple[str, ...] = ()
    """of the catalogue, without repetition"""
    products: tuple[str, ...] = ()
    """as the text has them"""
    count: int = 0
    source: str = ""
    """the tool whose list it is; empty: words beside the matrix"""
    pcie: str = ""
    """link kind by the largest generation and width, where nvidia-smi -q says them"""

    @property
    def listed(self) -> str:
        return ", ".join(self.products)


def named(text: str) -> Named:
    """The GPUs that `text` names; nothing where no list of a tool and no single product does."""
    text = text[:LONGEST]
    for source, pattern in _LISTS:
        products = [match[1] for match in pattern.finditer(text)]
        products = [product for product in products if source != "lspci" or device_of(product)]
        if products:
            counts = Counter(products)
            devices = tuple(dict.fromkeys(device for product in counts if (device := device_of(product))))
            return Named(devices, tuple(counts), len(products), source, _pcie(text))
    beside = "\n".join(line for line in text.splitlines() if not re.match(r"\s*(GPU[0-9]|NIC[0-9]|mlx)", line))
    found = tuple(dict.fromkeys(device for pattern, device in PRODUCTS if pattern.search(beside)))
    return Named(found, found, 0, "") if len(found) == 1 else Named()


def device_of(product: str) -> str:
    """The device of the catalogue that a driver's product name means; empty where there is none."""
    return next((device for pattern, device in PRODUCTS if pattern.search(product)), "")


def _pcie(text: str) -> str:
    generations, widths = _GENERATION.findall(text), _WIDTH.findall(text)
    if not generations or not widths:
        return ""
    return f"pcie{max(map(int, generations))}-x{max(map(int, widths))}"
