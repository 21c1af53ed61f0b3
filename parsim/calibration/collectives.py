"""Collectives between the devices of one machine, through torch.distributed: NCCL between GPUs, Gloo between two CPU processes.

The network model takes no measured table: the times go into a folder in the format of validation/nccl, where
`parsim validate nccl --data FOLDER` compares them with its predictions.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from parsim.calibration.measurements import CollectiveTime, Timing, slug, timing
from parsim.calibration.sweeps import torch_module
from parsim.scenario import files

KINDS = ("all_reduce", "all_gather", "reduce_scatter")
_TIMEOUT = 300
"""seconds after which the processes are ended"""
COLUMNS = ("system", "collective", "gpus", "nodes", "bytes", "time_us", "busbw_GBps", "algorithm", "source", "note")


def collectives(*, cuda: bool, ranks: int, quick: bool, notes: list[str]) -> list[CollectiveTime]:
    """Times of the collectives between `ranks` processes; what fails is noted."""
    most = (2**26 if quick else 2**30) if cuda else (2**20 if quick else 2**26)
    sizes = [2**power for power in range(16 if quick else 12, most.bit_length(), 2)]
    with tempfile.TemporaryDirectory(prefix="parsim-") as folder:
        job = {"cuda": cuda, "ranks": ranks, "sizes": sizes, "repeats": 5 if quick else 15, "meeting": f"{folder}/meeting"}
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]),
            # two processes with many threads each would fight for the cores
            **({} if cuda else {"OMP_NUM_THREADS": "1"}),
        }
        started = [
            subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "parsim.calibration.collectives", json.dumps(job | {"rank": rank})],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            printed = [process.communicate(timeout=_TIMEOUT) for process in started]
        except subprocess.TimeoutExpired:
            notes.append(f"left out: collectives: not done after {_TIMEOUT} s")
            return []
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    failed = [err for process, (_, err) in zip(started, printed, strict=True) if process.returncode]
    if failed:
        last = next(iter(reversed(failed[0].strip().splitlines())), "no reason given")
        notes.append(f"left out: collectives: {last[:160]}")
        return []
    answer = json.loads(printed[0][0].strip().splitlines()[-1])
    notes += answer["notes"]
    return [
        CollectiveTime(kind, ranks, size, Timing(seconds, spread), "NCCL through PyTorch" if cuda else "Gloo through PyTorch")
        for kind, size, seconds, spread in answer["rows"]
    ]


def worker(job: dict[str, Any]) -> dict[str, Any]:
    """One process of the group: every collective at every size; the slowest rank's time counts."""
    torch = torch_module()
    dist = torch.distributed
    cuda, rank, ranks = job["cuda"], job["rank"], job["ranks"]
    if cuda:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{job['meeting']}", rank=rank, world_size=ranks)
    device = f"cuda:{rank}" if cuda else "cpu"
    rows: list[tuple[str, int, float, float]] = []
    notes: list[str] = []
    for kind in KINDS:
        for size in job["sizes"]:
            count = size // 4 // ranks * ranks
            whole = torch.randn(count, device=device)
            part = whole[: count // ranks].clone()
            calls: dict[str, Callable[..., object]] = {
                "all_reduce": partial(dist.all_reduce, whole),
                "all_gather": partial(dist.all_gather_into_tensor, whole, part),
                "reduce_scatter": partial(dist.reduce_scatter_tensor, part, whole),
            }
            try:
                samples = [_slowest(torch, calls[kind], device) for _ in range(job["repeats"] + 2)][2:]
            except RuntimeError as error:
                notes.append(f"left out: {kind}: {str(error).splitlines()[0][:160]}")
                break
            time = timing(samples)
            rows.append((kind, 4 * count, time.seconds, time.spread))
    dist.destroy_process_group()
    return {"rows": rows, "notes": notes}


def _slowest(torch: Any, call: Callable[..., object], device: str) -> float:
    """Seconds of a call, started together, on the rank where it takes longest."""
    torch.distributed.barrier()
    if device != "cpu":
        torch.cuda.synchronize()
    began = perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    took = torch.tensor([perf_counter() - began], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(took, op=torch.distributed.ReduceOp.MAX)
    return float(took.item())


def collective_files(rows: Sequence[CollectiveTime], name: str, title: str, source: str, device: Path) -> dict[str, str]:
    """File name -> text of the folder for `parsim validate nccl --data`; empty without rows.

    `name` is what the device is called; `device` is its file, which the folder's description of the machine names.
    """
    if not rows:
        return {}
    ranks = max(row.ranks for row in rows)
    return {
        "measurements.csv": _measurements_csv(rows, slug(name), source),
        "systems.yaml": _systems_yaml(slug(name), title, str(device.resolve()), ranks),
    }


def _measurements_csv(rows: Sequence[CollectiveTime], system: str, source: str) -> str:
    """The rows in the format of validation/nccl/measurements.csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        note = "; ".join(filter(None, [row.note, f"spread {row.time.spread:.3g}" if row.time.spread else ""]))
        writer.writerow([system, row.kind, row.ranks, 1, row.bytes, f"{row.time.seconds * 1e6:.6g}", "", "auto", source, note])
    return text.getvalue()


def _systems_yaml(system: str, title: str, device: str, ranks: int) -> str:
    """The machine behind the rows, in the format of validation/nccl/systems.yaml: a box of such devices; no band is claimed."""
    wires = files.read(files.data_root() / "validation" / "nccl" / "systems.yaml").tree["wire"]
    table = "\n".join(f"  {kind}: {{rate: {entry['rate']}, source: {json.dumps(entry['source'])}}}" for kind, entry in wires.items())
    return f"""\
# The machine behind measurements.csv. Put the name of a topology file in place of the box if it is wired in another way.
sizes: [1 MiB, 128 MiB, 512 MiB]
bands:
  own-machine: {{low: null, high: null, what: "a machine of one's own: nothing is claimed"}}
wire:
{table}
systems:
  {system}:
    title: {json.dumps(title)}
    class: own-machine
    topology: {{gpu: {json.dumps(device)}, count: {max(2, ranks)}}}
    driven_from: python-synchronous
    inferred: "how the devices are wired"
"""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(worker(json.loads(sys.argv[1]))) + "\n")
