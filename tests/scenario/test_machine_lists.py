"""Lists of other tools beside a matrix, or instead of one: which GPU they name, and what they are not."""

from __future__ import annotations

import pytest

from parsim.errors import TopologyError
from parsim.interop.description import Imported
from parsim.interop.product_names import PRODUCTS, device_of, named
from parsim.interop.topo_m import import_topo
from parsim.scenario import files

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNODE\t0-31\nGPU1\tNODE\t X \t0-31\n"
LIST = "GPU 0: NVIDIA L40S (UUID: GPU-1)\nGPU 1: NVIDIA L40S (UUID: GPU-2)\n"
QUERY = """==============NVSMI LOG==============
Attached GPUs                             : 2
GPU 00000000:01:00.0
    Product Name                          : NVIDIA A100-PCIE-40GB
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 1
                Device Current            : 1
            Link Width
                Max                       : 8x
                Current                   : 8x
GPU 00000000:02:00.0
    Product Name                          : NVIDIA A100-PCIE-40GB
"""
TABLE = """| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |
|   0  NVIDIA A10G                    On  | 00000000:00:1B.0 Off |                    0 |
|   1  NVIDIA A10G                    On  | 00000000:00:1C.0 Off |                    0 |
"""
LSPCI = "".join(f"{bus}:00.0 3D controller: NVIDIA Corporation GA100 [A100 PCIe 80GB] (rev a1)\n" for bus in ("17", "65"))
ROCM = """============================ ROCm System Management Interface ============================
================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2
GPU0   0            1            2
GPU1   1            0            1
GPU2   2            1            0
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            XGMI
GPU2   PCIE         XGMI         0
======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[2]\t\t: (Topology) Numa Node: 1
================================== End of ROCm SMI Log ===================================
"""


def taken(text: str, device: str | None = None) -> Imported:
    return import_topo(text, device=device, nic=None, pcie=None, cpu=None, name="mine")


@pytest.mark.parametrize(
    ("text", "device", "kind"),
    [
        (LIST + MATRIX, "l40s-48gb", "pcie4-x16"),
        (QUERY + MATRIX, "a100-pcie-40gb", "pcie4-x8"),
        (TABLE + MATRIX, "a10g-24gb", "pcie4-x8"),
        (LSPCI + MATRIX, "a100-pcie-80gb", "pcie4-x16"),
    ],
)
def test_a_list_beside_the_matrix_names_the_gpu_and_its_slot(text: str, device: str, kind: str) -> None:
    node = taken(text).tree["node"]
    assert node["device"] == device
    assert {edge["kind"] for edge in node["edges"]} == {kind}


@pytest.mark.parametrize(("text", "tool"), [(LIST, "nvidia-smi -L"), (QUERY, "nvidia-smi -q"), (TABLE, "nvidia-smi"), (LSPCI, "lspci")])
def test_a_list_alone_says_what_it_is_not(text: str, tool: str) -> None:
    with pytest.raises(
        TopologyError, match=rf"is the list of {tool} \(2 x .*does not say how the GPUs are joined; add the output of nvidia-smi topo -m"
    ):
        taken(text)


def test_the_tables_of_rocm_smi() -> None:
    with pytest.raises(TopologyError, match="do not name the GPU"):
        taken(ROCM)
    imported = taken(ROCM, "mi300x")
    edges = [(edge["from"], edge["to"]) for edge in imported.tree["node"]["edges"] if edge["kind"].startswith("xgmi")]
    assert edges == [("gpu0", "gpu1"), ("gpu1", "gpu2")]
    assert imported.facts.cpus == ((0, 1), (2,))
    assert any("one is taken" in finding.message for finding in imported.warnings)
    with pytest.raises(TopologyError, match="unknown link type 'NVL'"):
        taken(ROCM.replace("PCIE", "NVL", 1), "mi300x")
    with pytest.raises(TopologyError, match="no table of link types"):
        taken(ROCM.partition("=============================== Link")[0])


def test_what_is_listed_and_what_is_not_agree_or_are_said() -> None:
    said = [finding.message for finding in taken(LIST + LIST.replace("GPU 0", "GPU 2").replace("GPU 1", "GPU 3") + MATRIX).warnings]
    assert "nvidia-smi -L lists 4 GPUs, the matrix has 2" in said
    assert any(
        "l4 was asked for, the text names NVIDIA L40S" in text for text in [str(f.message) for f in taken(LIST + MATRIX, "l4").warnings]
    )


def test_a_gpu_that_the_catalogue_lacks_is_asked_for() -> None:
    other = LIST.replace("NVIDIA L40S", "NVIDIA H200 NVL") + MATRIX
    with pytest.raises(
        TopologyError, match="nvidia-smi -L names NVIDIA H200 NVL, which the catalogue does not have; say which: --gpu NAME"
    ):
        taken(other)
    assert taken(other, "h100-nvl").tree["node"]["device"] == "h100-nvl-94gb"
    with pytest.raises(TopologyError, match="names NVIDIA A10G, NVIDIA L40S: which of them"):
        taken(LIST.replace("0: NVIDIA L40S", "0: NVIDIA A10G") + MATRIX)


def test_every_product_is_a_device_of_the_catalogue() -> None:
    assert {device for _, device in PRODUCTS} <= set(files.names("devices"))
    assert device_of("NVIDIA RTX PRO 6000 Blackwell Server Edition") == "rtx-pro-6000-96gb"
    assert device_of("NVIDIA GeForce RTX 3090 Ti") == "rtx-3090-ti-24gb"
    assert device_of("NVIDIA H200 NVL") == ""
    assert named("a text about an H100 80GB and an A100-SXM4-80GB").devices == ()
