"""The recipe of a job's narrow products: what is wanted, what its stack has, what its devices multiply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parsim.errors import Finding
from parsim.hardware.device import Device
from parsim.model.kept_layers import layer_numbers
from parsim.model.low_precision import RECIPES, TORCHAO, Quantisation
from parsim.model.model import Model
from parsim.parallel.training import KEPT, Precision
from parsim.scenario.precision import Wanted
from parsim.scenario.schema import ScenarioSchema
from parsim.scenario.software import Assumption, SoftwareProfile

HOPPER, BLACKWELL, RTX_BLACKWELL = 9.0, 10.0, 12.0
"""compute capabilities"""
_PATH = "training.precision.recipe"
_STORE_NARROW = ("megatron-core", "nemo")
"""profiles whose distributed optimizer steps weights that are stored in fp8"""
RESHARDED = ("fsdp", "hsdp", "zero3")
"""strategies under which a pass casts the weights that it has gathered (Transformer Engine caches none under FSDP2)"""


def quantised(
    precision: Precision, wanted: Wanted, profile: SoftwareProfile, devices: Sequence[Device], strategy: str, assumptions: list[Assumption]
) -> tuple[Precision, list[Finding]]:
    """`precision` with the recipe of its products, in the type that it has, and why a device or a stack cannot do so.

    What the profile decides is recorded.
    """
    if precision.matmul != "fp8":
        text = f"{precision.name} has no fp8 products"
        stated = wanted.recipe != "auto"
        return precision, [Finding(text, _PATH, wanted.recipe, "leave it out, or use preset: fp8")] if stated else []
    recipe = wanted.recipe
    if recipe == "auto":
        recipe = profile.recipe
        assumptions.append(profile.assumption("fp8_recipe", recipe, "fp8.recipe"))
    own = RECIPES[profile.recipe][0]
    library = own if own in RECIPES[recipe] else RECIPES[recipe][0]
    engine = library != TORCHAO
    tn_only = engine and any(map(_tn_only, devices))
    made = Quantisation(recipe, library, tn_only, caches_weights=engine and strategy not in RESHARDED)
    findings = [Finding(reason, _PATH, recipe, hint) for device in devices for reason, hint in _refusals(recipe, device)][:1]
    findings += _kept_findings(made, precision)
    return replace(precision, quantisation=made, matmul=made.products), findings


def _kept_findings(quantisation: Quantisation, precision: Precision) -> list[Finding]:
    """A finding for parts that the recipe does not multiply in its type.

    Transformer Engine's attention beside NVFP4 products is in fp8 (pytorch/attention/dot_product_attention/dot_product_attention.py,
    NVTE_DPA_FP8_RECIPE), and Megatron-LM's output layer with MXFP8 only (megatron/core/transformer/transformer_config.py, fp8_output_proj).
    """
    if quantisation.products == "fp8":
        return []
    narrow = [part for part in KEPT if part not in precision.keep and (part != "attention" or quantisation.recipe != "nvfp4")]
    if not narrow:
        return []
    text = f"no library multiplies {' and '.join(narrow)} in {quantisation.products}"
    return [Finding(text, "training.precision.keep", list(precision.keep), "leave keep out, or use recipe: mxfp8")]


def gathered_narrow(
    precision: Precision, wanted: Wanted, settings: ScenarioSchema, profile: SoftwareProfile, assumptions: list[Assumption]
) -> tuple[Precision, list[Finding]]:
    """`precision` with its weights in fp8 on the wire or where they are stored, if that is wanted; and why it cannot be."""
    if wanted.gather != "fp8":
        return precision, []
    path, casts = "training.precision.gather", precision.quantisation
    if casts is None:
        text = f"{precision.name} has no fp8 products, so no weights can be gathered in fp8"
        return precision, [Finding(text, path, "fp8", "leave gather out, or use preset: fp8")]
    if text := _gather_refusal(casts, settings, profile):
        return precision, [Finding(text, path, "fp8", "use gather: bf16")]
    if casts.recipe == "mxfp8":  # in 16 bits on the wire
        return replace(precision, stores_narrow=True), []
    if casts.library == TORCHAO:
        value = "one all-reduce of all weights' largest values a step (precompute_float8_dynamic_scale_for_fsdp)"
        assumptions.append(Assumption("fp8_gather_scales", value, "torchtitan calls it after the optimizer step", "default"))
    stores = casts.library != TORCHAO
    return replace(precision, gathers_narrow=True, stores_narrow=stores, quantisation=replace(casts, arrives=True)), []


def _gather_refusal(casts: Quantisation, settings: ScenarioSchema, profile: SoftwareProfile) -> str:
    """Why no stack gathers weights in fp8 so; empty if one does.

    torchao converts tensorwise scales alone, for FSDP2 (``float8/README.md``); Megatron-LM its distributed optimizer's weights
    (``--fp8-param-gather``; with nvfp4 they have an option of their own).
    """
    data = settings.parallel.data
    if casts.library == TORCHAO:
        version = profile.fsdp_version if data.fsdp_version == "auto" else data.fsdp_version
        if data.strategy not in ("fsdp", "hsdp") or version == 1:
            return "torchao casts weights before a gather for fsdp and hsdp of fsdp_version 2 alone"
        return "" if casts.recipe == "tensorwise" else f"torchao gathers weights in fp8 with tensorwise scales only, not {casts.recipe}"
    if data.strategy != "zero1" or profile.name not in _STORE_NARROW:
        return f"not supported yet: weights stored only in fp8, except with zero1 of {' and '.join(_STORE_NARROW)}"
    if casts.recipe not in ("delayed", "current", "blockwise", "mxfp8"):
        return f"not supported yet: weights stored in {casts.recipe} alone"
    if settings.training.optimizer.name in ("muon", "soap", "shampoo") or settings.training.offload.optimizer != "none":
        return "not supported yet: weights stored only in fp8 with Muon, SOAP, Shampoo or an offloaded optimizer"
    return ""


def kept_layer_findings(precision: Precision, model: Model) -> list[Finding]:
    """Why first and last layers cannot stay bf16."""
    path, (first, last), layers = "training.precision.keep_layers", precision.keep_layers, len(layer_numbers(model))
    if not first and not last:
        return []
    if precision.quantisation is None:
        return [Finding(f"{precision.name} has no fp8 products, so keep_layers has no effect", path, [first, last], "leave it out")]
    findings = []
    if first + last > layers:
        text = f"{first} first and {last} last layers are {first + last}, but {model.name} has {layers}"
        findings.append(Finding(text, path, [first, last], f"use at most {layers // 2}"))
    if precision.quantisation.recipe == "delayed":  # Megatron-LM, megatron/core/transformer/transformer_config.py
        text = "delayed scaling reduces the maxima of all layers together, so single layers cannot be excluded from fp8"
        findings.append(Finding(text, path, [first, last], "use recipe: current, or leave keep_layers out"))
    return findings


def _tn_only(device: Device) -> bool:
    """Before Blackwell, and on its RTX line, cuBLAS multiplies fp8 operands that are contiguous along the sum only.

    NVIDIA/TransformerEngine, ``common/transformer_engine.cpp``: nvte_is_non_tn_fp8_gemm_supported. Other makers' devices have no
    compute capability.
    """
    return 0 < device.compute_capability < BLACKWELL or device.compute_capability >= RTX_BLACKWELL


def _refusals(recipe: str, device: Device) -> list[tuple[str, str]]:
    """Why the device does not multiply so; with a suggestion."""
    capability = device.compute_capability
    if recipe == "mxfp8" and not (capability >= BLACKWELL or (not capability and "fp4" in device.peak)):
        return [
            (f"{device.name} has no mxfp8 products (a scale for every 32 elements), which came with Blackwell", "use delayed or current")
        ]
    if recipe == "nvfp4" and not (capability >= BLACKWELL and "fp4" in device.peak):
        fp8 = "mxfp8" if "fp4" in device.peak else "delayed or current"
        return [
            (
                f"{device.name} has no nvfp4 products (fp4 with a scale for every 16 elements), which came with NVIDIA's Blackwell",
                f"use {fp8}",
            )
        ]
    if recipe in ("blockwise", "rowwise", "deepseek-v3") and 0 < capability < HOPPER:
        return [(f"{recipe} products need Hopper or later, not {device.name}", "use delayed, current or tensorwise")]
    return []
