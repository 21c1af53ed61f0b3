"""Every kind of file that parsim reads: documents to change, the commands that read it, and the function that says it was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import fuzz_seeds as seeds
from fuzz_mutations import CODE_FILE, SECRET, SECRET_FILE, Legal, split_backwards

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests" / "data"
PLANTED = """\
open("it-ran", "w").close()
from parsim.parallel.replicated import Replicated
class Planted(Replicated):
    pass
def planted(stages, micro_batches, virtual_stages):
    return [[f"F{rank}.0", f"B{rank}.0"] for rank in range(stages)]
"""
BESIDE = {"s.yaml": seeds.JOB, SECRET_FILE: f"{SECRET}\n", CODE_FILE: PLANTED}
"""stand beside every mutant"""
LOAD = "parsim.scenario.load:load"


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of file."""

    name: str
    file: str
    """what a mutant is called; empty: a mutant is the command line itself"""
    form: str
    """of `fuzz_trees.FORMS`"""
    seeds: tuple[str, ...] | Callable[[], tuple[str, ...]]
    commands: tuple[str, ...]
    """one of them reads the mutant; words between blanks"""
    reader: str = ""
    """``module:function``: has read and checked the document where it returns; empty: only an answer says so"""
    beside: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    """every value is checked, so an impossible one must be refused"""
    legal: Legal | None = None
    """a change after which the first command still takes the document"""
    share: float = 4
    """of the mutants, relative to other kinds"""
    slow: bool = False
    """its command simulates for seconds"""
    streams: bool = False
    """standard output is full, or a stream is closed"""


def shipped(*patterns: str) -> tuple[str, ...]:
    """The texts of files of the repository."""
    return tuple(path.read_text(encoding="utf-8") for pattern in patterns for path in sorted(ROOT.glob(pattern)))


IMPORT = "parsim.interop.formats:import_config"
TRAINING = {path.name: path.read_text(encoding="utf-8") for path in sorted((DATA / "training").iterdir())}
ON = "--on dgx-a100-80gb"


def _training(*names: str) -> tuple[str, ...]:
    return tuple(TRAINING[name] for name in names)


def _study() -> tuple[str, str]:
    """study.json and results.jsonl of a small study."""
    import os
    from contextlib import redirect_stdout
    from io import StringIO
    from tempfile import TemporaryDirectory

    from parsim.cli import execute

    before = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("s.yaml").write_text(seeds.JOB, encoding="utf-8")
            with redirect_stdout(StringIO()):
                code = execute(SWEEP.split())
            assert code == 0
            study, rows = (Path("study", name).read_text(encoding="utf-8") for name in ("study.json", "results.jsonl"))
        finally:
            os.chdir(before)
    return study, rows


SWEEP = "sweep s.yaml training.micro_batch=1,2 parallel.data.strategy=ddp,zero1 --exhaustive --workers 1 --out study"
CHECKS = (
    "check {}",
    "check {}",
    "check {}",
    "run {} --json",
    "run {} --json",
    "run {} --json",
    "show {}",
    "export {} --to megatron",
    "export {} --to deepspeed",
)

KINDS = (
    Kind(
        "scenario", "job.yaml", "yaml", seeds.SCENARIOS, (*CHECKS, "export {} --to fsdp", "show {} --program"), LOAD, strict=True, share=16
    ),
    Kind(
        "shipped scenario",
        "job.yaml",
        "yaml",
        lambda: shipped("scenarios/gpt2-*.yaml", "scenarios/mlp*.yaml", "scenarios/*lora*.yaml"),
        ("check {}", "check {}", "run {} --json"),
        LOAD,
        strict=True,
    ),
    Kind("scenario as JSON", "job.json", "json", (seeds.AS_JSON,), ("check {}", "show {}"), LOAD, strict=True, share=2),
    Kind(
        "scenario that extends another",
        "job.yaml",
        "yaml",
        (seeds.EXTENDING,),
        ("check {}", "check {} --override big", "check {} --override big,other"),
        LOAD,
    ),
    Kind("overrides on the command line", "", "arguments", seeds.OVERRIDES, ("check s.yaml", "run s.yaml --json"), LOAD, share=6),
    Kind(
        "streams that fail",
        "job.yaml",
        "yaml",
        seeds.SCENARIOS[:1],
        ("check {}", "run {} --json", "show {}", "run {} --no-pictures"),
        LOAD,
        share=1,
        streams=True,
    ),
    Kind(
        "model",
        "mine.yaml",
        "yaml",
        seeds.MODELS,
        ("flops {} --sequence 64", "check s.yaml model={}", "fit {} --on single-a100 --sequence 64"),
        "parsim.model.catalogue:build_model",
        strict=True,
        share=8,
    ),
    Kind(
        "Hugging Face config.json",
        "config.json",
        "json",
        lambda: shipped("tests/data/hf/[a-u]*.json"),
        ("flops {} --sequence 64", "flops {} --sequence 64 --gpu a100-sxm-80gb", "check s.yaml model={}"),
        "parsim.model.huggingface:read_config",
        share=8,
    ),
    Kind(
        "device",
        "mine.yaml",
        "yaml",
        lambda: (seeds.DEVICE, *shipped("parsim/catalogue/devices/[av]100*.yaml")),
        ("check job.yaml", "run job.yaml --json", "flops gpt2 --gpu {}"),
        "parsim.hardware.device:device_from_tree",
        {"job.yaml": seeds.ON_DEVICE},
        strict=True,
        share=8,
    ),
    Kind(
        "measured tables of a device",
        "mine.yaml",
        "yaml",
        (seeds.MEASURED,),
        ("check job.yaml", "run job.yaml --json"),
        "parsim.hardware.device:device_from_tree",
        {"job.yaml": seeds.ON_DEVICE},
        strict=True,
    ),
    Kind(
        "topology of nodes",
        "mine.yaml",
        "yaml",
        lambda: (seeds.NODE, *shipped("topologies/workstation*.yaml", "topologies/dgx*.yaml")),
        ("topology show {}", "topology show {}", "check job.yaml", "collective all-reduce --on {} --size 1MiB:4MiB"),
        "parsim.hardware.fabric.builder:build_cluster",
        {"job.yaml": seeds.ON_TOPOLOGY},
        strict=True,
        share=8,
    ),
    Kind(
        "topology as a graph",
        "mine.yaml",
        "yaml",
        seeds.GRAPHS,
        ("topology show {}", "check job.yaml"),
        "parsim.hardware.fabric.builder:build_cluster",
        {"job.yaml": seeds.ON_TOPOLOGY},
        strict=True,
        share=6,
    ),
    Kind(
        "software profile",
        "mine.yaml",
        "yaml",
        lambda: shipped("parsim/catalogue/software/*.yaml"),
        ("check job.yaml",),
        "parsim.scenario.software:read_profile",
        {"job.yaml": seeds.SOFTWARE_JOB},
        share=2,
    ),
    Kind(
        "study",
        "mine.yaml",
        "yaml",
        (seeds.STUDY, seeds.SEARCH),
        ("sweep {} --json --workers 1",),
        "parsim.study.sweep.study_file:definition_of",
        share=3,
    ),
    Kind("study.json", "study/study.json", "json", lambda: _study()[:1], (SWEEP,), beside={"study/results.jsonl": "@1"}, share=2),
    Kind("results.jsonl", "study/results.jsonl", "json lines", lambda: _study()[1:], (SWEEP,), beside={"study/study.json": "@0"}, share=2),
    Kind(
        "question of size",
        "mine.yaml",
        "yaml",
        (seeds.QUESTION,),
        ("size {} --workers 1 --json",),
        "parsim.study.size.reading:read_question",
        share=1,
        slow=True,
    ),
    Kind(
        "comparison",
        "mine.yaml",
        "yaml",
        (seeds.COMPARISON,),
        ("compare {} --json --format none",),
        "parsim.study.compare_variants:read",
        share=3,
    ),
    Kind(
        "schedule as a table",
        "mine.csv",
        "lines",
        (seeds.TABLE, seeds.TORCH_TABLE, seeds.TABLE.replace("rank 0:", "").replace("rank 1:", ""), seeds.DEEP_TABLE, seeds.V_TABLE),
        ("schedule {}", "schedule {} --json", "check job.yaml", "run job.yaml --json"),
        "parsim.parallel.schedules.custom:read_table",
        {"job.yaml": seeds.TABLE_JOB},
        legal=split_backwards,
    ),
    Kind(
        "nvidia-smi topo -m",
        "topo.txt",
        "lines",
        lambda: shipped("tests/data/topo-m/0[1-9]*.txt"),
        ("import topo {}", "import topo {} --json"),
        "parsim.interop.topo_m:import_topo",
    ),
    Kind(
        "NCCL topology XML",
        "topo.xml",
        "xml",
        (seeds.XML,),
        ("import topo {}", "import topo {} --gpu a100-sxm-80gb --json"),
        "parsim.interop.nccl_xml:import_nccl_xml",
    ),
    Kind(
        "log of nccl-tests",
        "log.txt",
        "lines",
        (seeds.NCCL_LOG, seeds.TIMES),
        (
            "collective all-reduce --on dgx-a100-80gb --gpus 2 --nccl-log {}",
            "collective all-reduce --on dgx-a100-80gb --nccl-log {} --json",
        ),
        "parsim.interop.nccl_logs:parse_log",
    ),
    Kind(
        "NCCL_DEBUG log",
        "log.txt",
        "lines",
        (seeds.NCCL_DEBUG,),
        ("diagnose job.yaml --nccl-log {}",),
        "parsim.study.diagnose_wires:read_wires",
        {"job.yaml": seeds.JOB.replace("gpus: 4", "nodes: 2").replace("16", "32")},
        share=0.5,
        slow=True,
    ),
    Kind(
        "PyTorch trace",
        "trace.json",
        "json",
        lambda: shipped("tests/data/kineto/*.json"),
        ("import profile {}", "import profile {} --gpu a100-sxm-80gb --json"),
        "parsim.calibration.kineto:parse_trace",
    ),
    Kind(
        "packed PyTorch trace",
        "trace.json.gz",
        "json.gz",
        lambda: shipped("tests/data/kineto/*.json"),
        ("import profile {}", "trace s.yaml --merge {}"),
        "parsim.calibration.kineto:parse_trace",
        share=2,
    ),
    Kind(
        "PyTorch trace of a run",
        "trace.json",
        "json",
        lambda: shipped("tests/data/kineto/*.json"),
        ("diagnose s.yaml --trace {} --steps 1",),
        "parsim.calibration.recorded:read_recorded",
        share=0.3,
        slow=True,
    ),
    Kind(
        "Megatron-LM script",
        "train.sh",
        "lines",
        _training("megatron-gpt3-175b.sh", "megatron-llama3-8b-fp8.sh", "megatron-mixtral.txt", "megatron-sc21.sh"),
        ("import {}", f"import {{}} {ON}"),
        IMPORT,
        share=5,
    ),
    Kind(
        "Megatron-LM's arguments in YAML",
        "recipe.yaml",
        "yaml",
        _training("megatron-recipe.yaml"),
        ("import {}", f"import {{}} {ON} --set LOAD_PATH=x"),
        IMPORT,
        share=2,
    ),
    Kind(
        "DeepSpeed JSON",
        "ds.json",
        "json",
        _training("ds_z2.json", "ds_z3_offload.json"),
        ("import {}", f"import {{}} {ON} --model gpt2 --json"),
        IMPORT,
    ),
    Kind(
        "accelerate YAML",
        "accelerate.yaml",
        "yaml",
        _training("accelerate-deepspeed.yaml", "accelerate-fsdp.yaml", "accelerate-hsdp.yaml"),
        ("import {}", f"import {{}} {ON} --model gpt2", "import {} --hf trainer-ddp.json"),
        IMPORT,
        TRAINING,
    ),
    Kind(
        "TrainingArguments",
        "trainer.yaml",
        "yaml",
        _training("trainer-ddp.json", "trainer-deepspeed.yaml"),
        ("import {}", f"import {{}} {ON} --model gpt2"),
        IMPORT,
        TRAINING,
    ),
    Kind(
        "torchrun command",
        "run.sh",
        "lines",
        _training("trainer-run-clm.sh"),
        ("import {}", f"import {{}} {ON}"),
        IMPORT,
        TRAINING,
        share=2,
    ),
    Kind(
        "LLaMA-Factory YAML",
        "factory.yaml",
        "yaml",
        _training(*(name for name in TRAINING if name.startswith("llama-factory"))),
        ("import {}", f"import {{}} {ON} --sequence 512"),
        IMPORT,
    ),
    Kind(
        "measured collectives",
        "mine/measurements.csv",
        "csv",
        (seeds.MEASUREMENTS,),
        ("validate nccl --data mine --basis measured",),
        "parsim.validation.published_collectives:measurements",
        {"mine/systems.yaml": seeds.SYSTEMS},
        share=2,
    ),
    Kind(
        "measured machines",
        "mine/systems.yaml",
        "yaml",
        (seeds.SYSTEMS,),
        ("validate nccl --data mine --basis measured",),
        "parsim.validation.published_collectives:measurements",
        {"mine/measurements.csv": seeds.MEASUREMENTS},
        share=2,
    ),
    Kind(
        "measured kernels",
        "mine/measurements.csv",
        "csv",
        (seeds.GEMMS,),
        ("validate gemm --data mine",),
        "parsim.validation.published_kernels:kernel_measurements",
        {"mine/devices.yaml": seeds.BENCHED, "mine/attention.csv": seeds.ATTENTIONS},
        share=2,
    ),
    Kind(
        "measured devices",
        "mine/devices.yaml",
        "yaml",
        (seeds.BENCHED,),
        ("validate gemm --data mine",),
        "parsim.validation.published_kernels:kernel_measurements",
        {"mine/measurements.csv": seeds.GEMMS, "mine/attention.csv": seeds.ATTENTIONS},
        share=1,
    ),
    Kind(
        "published runs",
        "mine/sources.yaml",
        "yaml",
        (seeds.SOURCES,),
        ("validate --data mine --grade a-priori --workers 1 --json",),
        "parsim.validation.published_runs:published",
        {"mine/mine.csv": seeds.RUNS, "mine/fits.yaml": seeds.FITS},
        share=2,
    ),
    Kind(
        "rows of published runs",
        "mine/mine.csv",
        "csv",
        (seeds.RUNS,),
        ("validate --data mine --grade a-priori --workers 1 --json",),
        "parsim.validation.published_runs:published",
        {"mine/sources.yaml": seeds.SOURCES, "mine/fits.yaml": seeds.FITS},
        share=2,
    ),
    Kind("command line", "", "arguments", seeds.COMMANDS, ("",), share=8),
)
