"""A machine and a scenario of one's own, in files, so that nothing here depends on catalogue numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

DEVICE = """\
name: Test GPU
memory: {size: 32 GiB, visible: 31.75 GiB, bandwidth: 900 GB/s}
compute: {sms: 80, peak: {fp32: 15 TFLOP/s, fp16: 125 TFLOP/s}}
attention: {mem-efficient: {forward: 0.4, backward: 0.3}}
features: [p2p, mem-efficient]
links: {pcie: pcie3-x16}
"""
MODERN = """\
name: Modern GPU
memory: {size: 80 GiB, visible: 79 GiB, bandwidth: 3.35 TB/s}
compute: {sms: 132, peak: {fp32: 67 TFLOP/s, tf32: 494 TFLOP/s, fp16: 989 TFLOP/s, bf16: 989 TFLOP/s}}
attention:
  mem-efficient: {forward: 0.3, backward: 0.2}
  flash2: {forward: 0.4, backward: 0.35}
  flash3: {forward: 0.6, backward: 0.5}
features: [p2p, bf16, tf32, mem-efficient, flash2, flash3]
links: {pcie: pcie5-x16}
"""
TOPOLOGY = """\
name: four
node:
  gpus: 4
  device: old.yaml
  vertices: [cpu0, nic0]
  edges:
    - {from: gpu*, to: cpu0, kind: pcie3-x16}
    - {from: nic0, to: cpu0, kind: pcie3-x16}
fabric: {kind: single-switch, link: ib-edr}
"""
BASE = """\
model: {family: gpt2, hidden: 256, layers: 4, heads: 4, vocabulary: 1024, maximum_sequence: 512}
training: {sequence_length: 512, global_batch: 16, micro_batch: 2}
cluster: four.yaml
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with old.yaml, modern.yaml (devices), four.yaml (topology) and base.yaml (scenario); also the working directory."""
    for name, text in (("old", DEVICE), ("modern", MODERN), ("four", TOPOLOGY), ("base", BASE)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
