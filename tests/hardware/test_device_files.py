"""Device files: the shipped ones, and what is said about wrong ones."""

from __future__ import annotations

import re
import warnings

import pytest
from hardware_graphs import build, chip, device, device_tree

from parsim.errors import TopologyError
from parsim.hardware.device import device_from_tree
from parsim.hardware.fabric.links import standard_kind
from parsim.scenario.files import aliases, names
from parsim.validation.published_collectives import measurements

GIB = 2**30
WIRE = measurements().wire


@pytest.mark.parametrize("name", names("devices"))
def test_every_shipped_device_reads_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = device(name)
    assert 0.9 * found.memory <= found.visible_memory <= found.memory
    assert standard_kind(found.pcie) is not None
    assert found.nvlinks == 0 or standard_kind(found.nvlink) is not None
    tree = device_tree(name)
    for group in ("memory", "compute", "gemm", "attention", "power", "links"):
        assert tree[group]["source"], f"{name}.{group} needs a source"


def test_datasheet_figures():
    a100, h100, v100 = device("a100-sxm-80gb"), device("h100-sxm-80gb"), device("v100-sxm2-32gb")
    assert a100.visible_memory == 85094039552
    assert (a100.peak["bf16"], a100.bandwidth, a100.sms, a100.tdp) == (312e12, 2039e9, 108, 400.0)
    assert (h100.peak["bf16"], h100.peak["fp8"], h100.bandwidth, h100.sms) == (989e12, 1979e12, 3350e9, 132)
    assert (v100.peak["fp16"], v100.bandwidth, v100.memory) == (125e12, 900e9, 32 * GIB)
    assert device("a100-sxm-40gb").bandwidth == 1555e9
    assert device("rtx-4090-24gb").peak["bf16"] == pytest.approx(165.2e12)


@pytest.mark.parametrize(
    ("name", "fp32", "sixteen_bit", "fp8", "gibibytes", "bandwidth", "tdp"),
    [
        # dense; TFLOP/s, GiB, GB/s, W: stas00/ml-engineering compute/accelerator/README.md; RTX cards and V100: mli/transformers-benchmarks
        ("gb200-186gb", 80, 2500, 5000, 186, 8000, 1200),
        ("b300-sxm-288gb", 80, 2250, 4500, 288, 8000, 1000),
        ("b200-sxm-180gb", 80, 2250, 4500, 180, 8000, 1000),
        ("h200-sxm-141gb", 67, 989, 1979, 141, 4800, 700),
        ("h100-sxm-80gb", 67, 989, 1979, 80, 3350, 700),
        ("h100-pcie-80gb", 51, 756, 1513, 80, 2000, 350),
        ("h800-sxm-80gb", 67, 989, 1979, 80, 3350, 700),
        ("h100-sxm-96gb", 67, 989, 1979, 96, 2400, 500),
        ("a100-sxm-80gb", 19.5, 312, None, 80, 2000, 400),
        ("a100-pcie-80gb", 19.5, 312, None, 80, 1940, 300),
        ("l40s-48gb", 91.6, 362, 733, 48, 860, 350),
        ("mi350x-288gb", 144.2, 2300, 4600, 288, 8000, 1000),
        ("mi355x-288gb", 157.3, 2500, 5000, 288, 8000, 1400),
        ("mi300x-192gb", 163.4, 1300, 2610, 192, 5300, 750),
        ("v100-sxm2-32gb", 15.7, 125, None, 32, 900, 300),
        ("rtx-a6000-48gb", 38.7, 155, None, 48, 768, 300),
        ("rtx-3090-24gb", 35.6, 71, None, 24, 936, 350),
        ("rtx-3090-ti-24gb", 40, 80, None, 24, 1008, 450),
        ("rtx-4090-24gb", 82.6, 165, 330, 24, 1008, 450),
        ("a10g-24gb", 31.2, 70, None, 24, 600, 300),
        ("t4-16gb", 8.1, 65, None, 16, 320, 70),
        ("titan-rtx-24gb", 16.3, 130, None, 24, 672, 280),
        # datasheets and whitepapers of NVIDIA, dense
        ("rtx-5090-32gb", 104.8, 209.5, 419, 32, 1792, 575),
        ("rtx-pro-6000-96gb", 125, 503.8, 1007.6, 96, 1792, 600),
        ("rtx-6000-ada-48gb", 91.1, 364, 728.5, 48, 960, 300),
        ("l4-24gb", 30.3, 121, 242.5, 24, 300, 72),
        ("a10-24gb", 31.2, 125, None, 24, 600, 150),
        ("a30-24gb", 10.3, 165, None, 24, 933, 165),
        ("a40-48gb", 37.4, 149.7, None, 48, 696, 300),
        ("p100-pcie-16gb", 9.3, 9.3, None, 16, 732, 250),  # 18.7 without fp32 accumulation
        ("rtx-3080-10gb", 29.8, 59.5, None, 10, 760, 320),
        ("rtx-2080-ti-11gb", 13.4, 53.8, None, 11, 616, 250),
        ("gh200-96gb", 67, 989, 1979, 96, 4000, 1000),
        ("h100-nvl-94gb", 60, 835.5, 1670.5, 94, 3938, 400),
        ("mi325x-256gb", 163.4, 1300, 2610, 256, 6000, 1000),
        ("a800-sxm-80gb", 19.5, 312, None, 80, 2000, 400),  # an A100 but for its NVLinks
        ("h20-sxm-96gb", 44, 148, 296, 96, 4000, 500),  # no datasheet: what resellers print; the limit that nvidia-smi shows
    ],
)
def test_datasheet_table(name, fp32, sixteen_bit, fp8, gibibytes, bandwidth, tdp):
    card = device(name)
    assert card.peak["fp32"] / 1e12 == pytest.approx(fp32, rel=0.005)
    assert card.peak["fp16"] / 1e12 == pytest.approx(sixteen_bit, rel=0.006)
    assert (card.peak["fp8"] / 1e12 if fp8 else card.peak.get("fp8")) == (pytest.approx(fp8, rel=0.005) if fp8 else None)
    assert card.memory == gibibytes * GIB
    # 2039 GB/s where the table rounds to 2 TB/s; an HGX B200 has 7.7 TB/s
    assert card.bandwidth / 1e9 == pytest.approx(bandwidth, rel=0.04)
    assert card.tdp == tdp


@pytest.mark.parametrize(
    ("name", "both_ways"),
    [  # GB/s of one GPU, both directions together: datasheets, stas00/ml-engineering network/README.md; DeepEP (H800), tweakers.net (A800)
        ("v100-sxm2-32gb", 300), ("a100-sxm-80gb", 600), ("a800-sxm-80gb", 400), ("h100-sxm-80gb", 900), ("h800-sxm-80gb", 400),
        ("h20-sxm-96gb", 900), ("gh200-96gb", 900), ("h100-nvl-94gb", 600),
        ("a30-24gb", 200), ("rtx-2080-ti-11gb", 100),
        ("h200-sxm-141gb", 900), ("b200-sxm-180gb", 1800), ("b300-sxm-288gb", 1800), ("gb300-288gb", 1800),
        ("mi300x-192gb", 896), ("mi325x-256gb", 896), ("mi350x-288gb", 1071), ("mi355x-288gb", 1071),
    ],
)  # fmt: skip
def test_links_of_a_gpu(name, both_ways):
    card = device(name)
    assert 2 * card.nvlinks * WIRE[card.nvlink] / 1e9 == pytest.approx(both_ways, rel=0.005)
    assert 0.7 < standard_kind(card.nvlink).capacity / WIRE[card.nvlink] < 0.91  # what arrives of what is signalled


@pytest.mark.parametrize(("name", "like"), [("a800-sxm-80gb", "a100-sxm-80gb"), ("h800-sxm-80gb", "h100-sxm-80gb")])
def test_cards_that_differ_in_their_links_alone(name, like):
    card, same = device(name), device(like)
    for key in ("memory", "bandwidth", "sms", "peak", "gemm", "attention", "tdp", "features", "compute_capability"):
        assert getattr(card, key) == getattr(same, key), key
    assert card.nvlinks < same.nvlinks


def test_an_mi350x_is_an_mi355x_with_less_power():
    card, same = device("mi350x-288gb"), device("mi355x-288gb")
    for key in ("memory", "visible_memory", "bandwidth", "sms", "nvlinks", "nvlink", "attention", "features"):
        assert getattr(card, key) == getattr(same, key), key
    for dtype in card.peak:  # 2200 and 2400 MHz
        assert card.peak[dtype] / same.peak[dtype] == pytest.approx(2200 / 2400, rel=0.01)
    assert card.tdp < same.tdp


@pytest.mark.parametrize("name", ["mi300x-192gb", "mi325x-256gb", "mi350x-288gb", "mi355x-288gb"])
def test_transformer_engine_has_its_own_attention_on_amd(name):
    """`cudnn` stands for the kernel that Transformer Engine takes; the FlashAttention package's is slower on ROCm."""
    kernels = device(name).attention
    assert kernels["cudnn"].forward > kernels["flash2"].forward > kernels["mem-efficient"].forward
    assert kernels["cudnn"].backward > kernels["flash2"].backward > kernels["mem-efficient"].backward


def test_an_mi325x_is_an_mi300x_with_more_memory_and_power():
    card, same = device("mi325x-256gb"), device("mi300x-192gb")
    assert (card.sms, card.peak, card.nvlinks, card.nvlink) == (same.sms, same.peak, same.nvlinks, same.nvlink)
    assert card.memory / same.memory == pytest.approx(256 / 192)
    assert card.tdp > same.tdp


@pytest.mark.parametrize("name", ["h20-sxm-96gb", "a800-sxm-80gb", "mi325x-256gb", "mi350x-288gb"])
def test_what_nobody_measured_on_this_card_is_listed(name):
    """A source that calls a number an assumption, or that of another card, has its block among the assumptions."""
    tree = device_tree(name)
    listed = {str(entry).partition(".")[0].split()[0] for entry in tree["assumptions"]}
    for block in ("memory", "gemm", "attention"):
        source = tree[block]["source"]
        if "assumption" in source or re.search(r"\bas the [AHM]", source):
            assert block in listed, f"{name}.{block}"


def test_no_datasheet_of_the_h20_is_named():
    tree = device_tree("h20-sxm-96gb")
    for block in ("memory", "compute", "power"):
        assert "no datasheet" in tree[block]["source"]
    assert {"compute.peak", "memory.bandwidth"} <= set(tree["assumptions"])


def test_features():
    assert not device("v100-sxm2-32gb").has("bf16")
    assert not device("v100-sxm2-32gb").has("flash2")
    assert device("a100-sxm-80gb").has("flash2")
    assert not device("a100-sxm-80gb").has("fp8")
    assert device("h100-sxm-80gb").has("fp8")
    assert not device("rtx-4090-24gb").has("p2p")
    assert not device("rtx-3090-24gb").has("p2p")
    assert device("l40s-48gb").has("p2p")


def test_attention_kernels_agree_with_features():
    for name in names("devices"):
        found = device(name)
        for kernel in found.attention_kernels:
            assert found.has(kernel), f"{name} lists an efficiency for {kernel}"
        narrow = {kernel.removesuffix("-fp8") for kernel in found.attention} - set(found.attention_kernels)
        assert not narrow, f"{name} lists fp8 kernels of {narrow} alone"
        assert found.has("fp8") or len(found.attention) == len(found.attention_kernels)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("v100-32gb", "v100-sxm2-32gb"),
        ("a100-80gb", "a100-sxm-80gb"),
        ("a100-40gb", "a100-sxm-40gb"),
        ("h100", "h100-sxm-80gb"),
        ("h200", "h200-sxm-141gb"),
        ("b200", "b200-sxm-180gb"),
        ("rtx-4090", "rtx-4090-24gb"),
        ("rtx-3090", "rtx-3090-24gb"),
        ("l40s", "l40s-48gb"),
        ("t4", "t4-16gb"),
        ("a10g", "a10g-24gb"),
        ("mi300x", "mi300x-192gb"),
        ("mi355x", "mi355x-288gb"),
        ("h800", "h800-sxm-80gb"),
        ("b300", "b300-sxm-288gb"),
        ("a6000", "rtx-a6000-48gb"),
        ("h20", "h20-sxm-96gb"),
        ("a800", "a800-sxm-80gb"),
        ("mi325x", "mi325x-256gb"),
    ],
)
def test_aliases(alias, name):
    assert aliases("devices")[alias] == name


@pytest.mark.parametrize(
    ("peak", "word"),
    [
        ({"fp32": "19.5 TFLOP/s", "tf32": "156 TFLOP/s", "bf16": "624 TFLOP/s"}, "312 TFLOP/s"),
        ({"fp32": "67 TFLOP/s", "bf16": "1979 TFLOP/s"}, "989.5 TFLOP/s"),
        ({"fp32": "67 TFLOP/s", "tf32": "494.5 TFLOP/s", "bf16": "989 TFLOP/s", "fp8": "3958 TFLOP/s"}, "1.979 PFLOP/s"),
    ],
)
def test_a_peak_with_sparsity_warns_and_names_the_dense_one(peak, word):
    with pytest.warns(UserWarning, match=word):
        device_from_tree({**chip(), "compute": {"sms": 108, "peak": peak}})


def test_all_findings_at_once():
    tree = {
        "name": "bad",
        "memory": {"size": "80 GB/s", "bandwidth": "2 TB/s", "visible": "90 GiB", "eficiency": 0.8},
        "compute": {"sms": 0, "peak": {"fp16": "312 TFLOP/s", "bf61": "1 TFLOP/s"}},
        "attention": {"flash9": {"forward": 2.0, "backward": 0.5}},
        "features": ["bf61"],
    }
    with pytest.raises(TopologyError) as caught:
        device_from_tree(tree, "device bad")
    found = {finding.path: finding for finding in caught.value.findings}
    assert set(found) == {
        "device bad.memory.size",
        "device bad.memory.visible",
        "device bad.memory.eficiency",
        "device bad.compute.sms",
        "device bad.compute.peak",
        "device bad.compute.peak.bf61",
        "device bad.attention.flash9",
        "device bad.attention.flash9.forward",
        "device bad.features",
    }
    assert found["device bad.memory.eficiency"].suggestion == "did you mean 'efficiency'?"
    assert found["device bad.features"].suggestion == "did you mean 'bf16'?"


def test_memory_override_scales_what_the_driver_reports():
    cluster = build("2x a100-80gb", overrides={"device": {"memory": "40 GiB"}})
    assert cluster.device(0).memory == 40 * GIB
    assert cluster.device(0).visible_memory == int(40 * 79.25 / 80 * GIB)
    doubled = build("2x a100-80gb", overrides={"device": {"memory": {"bandwidth": "x2"}, "compute": {"peak": {"bf16": "x0.5"}}}})
    assert doubled.device(0).bandwidth == 2 * 2039e9
    assert doubled.device(0).peak["bf16"] == 156e12
    assert doubled.device(0) is doubled.device(1)


def test_wrong_overrides_are_findings():
    with pytest.raises(TopologyError) as caught:
        build("2x a100-80gb", overrides={"device": {"memory": {"bandwith": "x2"}}})
    assert caught.value.findings[0].path == "cluster.set.device.memory.bandwith"
    with pytest.raises(TopologyError, match="unknown section"):
        build("2x a100-80gb", overrides={"devices": {}})
