"""A small Llama on eight H100: the job on which optimizers of whole matrices are tested."""

from __future__ import annotations

from typing import Any

SMALL = {"base": "llama-3-8b", "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "mlp": 512, "vocabulary": 1024}


def tree(strategy: str, optimizer: Any = "muon", model: Any = SMALL, software: str | None = None, **parallel: Any) -> dict[str, Any]:
    """A scenario; `software` is the name of a profile."""
    return {
        "model": model,
        "cluster": {"topology": "hgx-h100"},
        "training": {
            "sequence_length": 128,
            "micro_batch": 1,
            "gradient_accumulation": 1,
            "precision": "bf16-fp32grad",
            "optimizer": optimizer,
        },
        "parallel": {"data": {"strategy": strategy}, **parallel},
        **({"software": {"profile": software}} if software else {}),
    }
