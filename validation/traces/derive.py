"""Writes jobs' op times and steps from the published traces; run by hand: python derive.py CHECKOUT-OF-StragglerAnalysis.

Needs pandas and pyarrow, which parsim does not.
"""

import gzip
import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
PASSES = {"forward-compute": "forward", "backward-compute": "backward"}
STEPS = ["job,step,compute_span_s,whole_step_s"]

for job in ("AR", "ST", "SE"):
    trace = pd.read_parquet(Path(sys.argv[1]) / "data" / f"trace-{job}.parquet")
    trace["start"] = trace.start_ts.astype(float)
    trace["end"] = trace.start + trace.duration.astype(float)
    compute = trace[trace.optype.isin(list(PASSES))]
    for step, ops in compute.groupby("step"):
        everything = trace[trace.step == step]
        STEPS.append(f"{job},{step},{ops.end.max() - ops.start.min():.5f},{everything.end.max() - everything.start.min():.5f}")
    lines = ["step,replica,stage,pass,seconds of every micro-batch"]
    for (step, replica, stage, kind), ops in compute.groupby(["step", "dp_rank", "stage", "optype"], observed=True):
        seconds = ops.sort_values("seq_id").duration
        lines.append(f"{step},{replica},{stage},{PASSES[kind]}," + " ".join(f"{value:.5f}" for value in seconds))
    with gzip.GzipFile(HERE / f"{job.lower()}.csv.gz", "wb", compresslevel=9, mtime=0) as packed:
        packed.write(("\n".join(lines) + "\n").encode())
(HERE / "steps.csv").write_text("\n".join(STEPS) + "\n")
