"""What every number of the report means: the text behind ``--explain METRIC`` and the documentation."""

from __future__ import annotations

from difflib import get_close_matches

from parsim.errors import Finding, InputError
from parsim.report.definition import Definition
from parsim.report.definitions_economics import ECONOMICS

_MEGATRON = "Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, 2021 (arXiv:2104.04473)"
_GPIPE = "Huang et al., GPipe, 2019 (arXiv:1811.06965)"
_PALM = "Chowdhery et al., PaLM, 2022, appendix B (arXiv:2204.02311)"
_PIPEDREAM = "Narayanan et al., PipeDream, 2019 (arXiv:1806.03377)"
_NCCL_TESTS = "nccl-tests, doc/PERFORMANCE.md"
_PARSIM = "definition of this report"
_PYTORCH = "PyTorch CUDA memory management notes; memory_allocated, memory_reserved"

_ALL = (
    Definition(
        "step_time_s",
        "s",
        "Time of one optimizer step in steady state: from when the slowest rank may begin its first forward until every"
        " rank has its updated parameters. Gathers that overlap the next forward stand at the start of the same step.",
        "end of the last op; without a pipeline flush: micro-batches x period_s",
        _PARSIM,
    ),
    Definition(
        "estimate",
        "–",
        "What the step is expected to take, for headlines and for ranking: the simulated step times the median of measured over"
        " predicted among the published runs nearest to this one (same GPU and kind of strategy; `confidence` names them). The band"
        " holds 80 % of those runs, from their 10 % to their 90 % quantile, and so holds the estimate. step_time_s, step_time_band_s,"
        " tokens_per_s, mfu, time_to_train_s and cost_to_train follow from the step, peak_bytes and peak_band_bytes from published"
        " peaks of memory in the same way. `of` is bands, or simulation where fewer than eight published runs are alike: then the estimate"
        " is what was simulated. Everything else in the report is simulated: it sums to step_time_s, and `fits` is decided by it.",
        "estimate.step_time_s = median(measured / predicted) x step_time_s",
        _PARSIM,
    ),
    Definition(
        "makespan_s",
        "s",
        "Time of a run of one step's micro-batches that starts with an empty pipeline.",
        "equals step_time_s where the pipeline is flushed",
        _PIPEDREAM,
    ),
    Definition(
        "period_s",
        "s per micro-batch",
        "Time between two equal phases of a schedule that never flushes, after warm-up; null for the others.",
        "max over stages of (forward + backward) if nothing else limits",
        _PIPEDREAM,
    ),
    Definition("samples_per_s", "samples/s", "Samples of the whole job per second.", "global_batch / step_time_s", _PARSIM),
    Definition(
        "tokens_per_s",
        "tokens/s",
        "Tokens of the whole job per second; null for models without sequences.",
        "global_batch x sequence_length / step_time_s",
        _PARSIM,
    ),
    Definition("tokens_per_s_per_gpu", "tokens/s", "Tokens per second and used GPU.", "tokens_per_s / ranks.total", _PARSIM),
    Definition(
        "model_tflops_per_gpu",
        "TFLOP/s",
        "Model FLOP per second and GPU, in the chosen FLOP convention.",
        "flop_per_step / (step_time_s x ranks.total)",
        _PALM,
    ),
    Definition(
        "hardware_tflops_per_gpu",
        "TFLOP/s",
        "The same with the forward work that recomputation repeats.",
        "(flop_per_step + recomputed forward FLOP) / (step_time_s x ranks.total)",
        _MEGATRON,
    ),
    Definition(
        "mfu",
        "fraction",
        "Model FLOP utilisation. report.flop_convention says how model FLOP are counted; palm: N = all parameters, tied ones"
        " once, active experts only; attention is not halved for causal masks. Models without sequences: three times the exact"
        " forward GEMM FLOP. Fine-tuning: a frozen parameter counts 4 instead of 6, one before the first trained parameter 2."
        " The peak is the dense datasheet peak of the matmul type, never the one with sparsity."
        " `parsim mfu` prints all conventions side by side; docs/flops-and-mfu.md has their formulas.",
        "palm: (6 N + 12 L h s) x tokens_per_s / (ranks.total x peak)",
        _PALM,
    ),
    Definition(
        "parameters_trainable",
        "elements",
        "Parameters that get gradients, adapters included (PEFT's print_trainable_parameters); all of them unless training.finetune says"
        " otherwise.",
        "LoRA: sum of rank x (in + out) over the adapted weights",
        "Hu et al., LoRA, 2021 (arXiv:2106.09685)",
    ),
    Definition(
        "hfu",
        "fraction",
        "Hardware FLOP utilisation: mfu with the forward FLOP that recomputation repeats. They are counted as executed (causal"
        " attention by half; embedding and head are not repeated), but megatron and exact-full count all pairs of positions, as"
        " in 96 for 72 B s L h^2; 6n and 6n-non-embedding leave attention out; llm-foundry takes 4/3 of mfu for full recomputation.",
        "(model FLOP + repeated FLOP) per second and GPU / peak",
        f"{_PALM}; {_MEGATRON}; mosaicml/llm-foundry scripts/train/benchmarking",
    ),
    *ECONOMICS,
    Definition(
        "bubble_fraction",
        "fraction",
        "Mean over ranks of bubble / step time. An instant is bubble when nothing runs on the rank's compute lane and none"
        " of its own collectives or copies moves data: waiting for other members to arrive is bubble.",
        "(p - 1) / (m + p - 1) for GPipe and 1F1B without communication",
        f"{_GPIPE}; {_MEGATRON}",
    ),
    Definition(
        "bubble_over_ideal",
        "fraction",
        "Bubble time over the time in which ranks do something: the ratio that pipeline papers print.",
        "(p - 1) / m for GPipe and 1F1B without communication",
        _MEGATRON,
    ),
    Definition(
        "bubble_fraction_theory",
        "fraction",
        "The closed form of the schedule without communication; null where none exists.",
        "(p - 1) / (m + p - 1), interleaved (p - 1) / (v m + p - 1)",
        _MEGATRON,
    ),
    Definition("breakdown_rank", "rank", "The rank whose optimizer step ends last (ties: most compute, then the lowest).", "", _PARSIM),
    Definition("bottleneck_rank", "rank", "The rank with the most compute, recomputation included.", "", _PARSIM),
    Definition(
        "breakdown_s",
        "s",
        "The time line of breakdown_rank. Each instant has exactly one class: an op on the compute lane gives its own; else"
        " a collective or copy of the rank that moves data (tensor, expert, context, pipeline, data, offload, in that"
        " order); else launch if only the host is late; else bubble. Communication under compute is hidden and is not"
        " here; see collectives.",
        "sums to step_time_s",
        _PARSIM,
    ),
    Definition(
        "critical_path_s",
        "s",
        "Walk back from the last op, at each op to the blocker that ended last (its own lane first on ties). Durations go"
        " to the op's class, gaps to launch; there is no bubble on this path.",
        "sums to step_time_s",
        _PARSIM,
    ),
    Definition(
        "limiter_kind",
        "word",
        "What limits the run: memory if it does not fit; else the largest part of the critical path. Because filling and"
        " draining a pipeline is somebody's compute, the time in which the average rank waits is taken from compute and"
        " called bubble first; compute is called memory_bandwidth if more than half of it waits for HBM.",
        "argmax of critical_path_s with compute - bubble_fraction x step_time_s, bubble = that product",
        _PARSIM,
    ),
    Definition(
        "exposed_communication",
        "fraction",
        "Part of the step in which breakdown_rank does nothing but communicate.",
        "sum of the communication keys of breakdown_s / step_time_s",
        _PARSIM,
    ),
    Definition(
        "collectives",
        "rows",
        "One row per kind, axis, group size and bytes; counts and times of breakdown_rank per step. bytes: the buffer per"
        " rank; for all_gather and reduce_scatter the total buffer; for send the message. busy_s = end - last arrival;"
        " exposed_s = the part of it with no other op on the compute lane; wait_s = last arrival - own arrival (0 for who"
        " merely receives a send).",
        "",
        _NCCL_TESTS,
    ),
    Definition("algbw_Bps", "B/s", "Algorithm bandwidth of a collective.", "bytes x count / busy_s", _NCCL_TESTS),
    Definition(
        "busbw_Bps",
        "B/s",
        "Bus bandwidth: what a link would have to carry if the collective were a ring; comparable across group sizes.",
        "algbw x 2(n-1)/n for all_reduce; (n-1)/n for all_gather, reduce_scatter, all_to_all; 1 for the rest",
        _NCCL_TESTS,
    ),
    Definition(
        "links",
        "rows",
        "One row per direction and class of link (the mean of trunks that never bind); background counts. saturated_s = at >= 99.9 %.",
        "utilisation = bytes / (capacity x step_time_s)",
        _PARSIM,
    ),
    Definition(
        "peak_bytes",
        "B",
        "The highest device memory in use on any rank: allocator segments, CUDA context and communicators, as nvidia-smi"
        " shows it. at_peak sums to it exactly; optimizer includes the fp32 master weights.",
        "max over ranks and time of reserved + context + communicators",
        _PYTORCH,
    ),
    Definition("allocated_bytes", "B", "Live bytes after the allocator's rounding.", "torch.cuda.max_memory_allocated", _PYTORCH),
    Definition(
        "reserved_bytes",
        "B",
        "Bytes of the allocator's segments, in use or cached. method beside it says how it was found. replayed: all allocations"
        " and releases of the step went through the allocator, as for the fullest ranks and those within 5 % of the capacity."
        " shortened: without micro-batches in the middle of a long step that repeat those before them; segments that only"
        " they would add are missed.",
        "torch.cuda.max_memory_reserved",
        _PYTORCH,
    ),
    Definition("fragmentation", "B", "Reserved but not allocated.", "reserved - allocated", _PYTORCH),
    Definition(
        "fits",
        "yes or no",
        "Whether every rank's peak is within what the driver reports, less the reserve, and what is offloaded is within the"
        " host memory of its node where the topology states that.",
        "peak device_used <= capacity - reserve on every rank; host_bytes <= host_memory of the node",
        _PARSIM,
    ),
    Definition(
        "host_bytes",
        "B",
        "Host memory of the fullest node that offloading takes: optimizer states, gradients, parameters and checkpoints that"
        " left the devices, and the buffers through which what lives on drives passes. The training processes, the data"
        " loader and the rounding of pinned allocations come on top.",
        "max over nodes and time of the sum over the node's ranks",
        "DeepSpeed's memory estimators count 16 B (18 B with parameters) per parameter, times 1.5 for buffers",
    ),
    Definition(
        "at_save_bytes",
        "B",
        "Device memory while a consolidated checkpoint of the weights is written between two steps. Replicated weights (DDP,"
        " ZeRO-1/2) need nothing extra; FSDP's full state dict, offloaded to rank 0's CPU, unshards the root unit and one"
        " other in full precision; ZeRO-3's stage3_gather_16bit_weights_on_model_save gathers one module at a time.",
        "max over ranks of resident + context + communicators, + what is gathered at once",
        "PyTorch FullStateDictConfig(offload_to_cpu=True, rank0_only=True); deepspeed/runtime/engine.py,"
        " _zero3_consolidated_16bit_state_dict",
    ),
    Definition(
        "confidence",
        "word, s, B",
        "How sure the report is. validated: measured runs on the same GPU with the same kind of strategy (replicated states,"
        " sharded states, tensor or pipeline parallelism) lie within a factor 2 in GPUs and parameters; interpolated: within"
        " 16; unvalidated: fewer than eight such runs. step_time_s and peak_bytes are the band that should hold the truth in"
        " 80 % of cases; nearest, the measured rows most like the run.",
        "prediction x 10 % and 90 % quantile of measured / predicted over the 24 nearest published runs;"
        " confidence.basis says whether a parameter was fitted to any of them",
        "validation/runs; prediction intervals: Hahn and Meeker, Statistical Intervals, section 5.2",
    ),
    Definition("headroom_bytes", "B", "What is left on the fullest rank; negative: it does not fit.", "capacity - reserve - peak", _PARSIM),
)

DEFINITIONS = {definition.name: definition for definition in _ALL}


def explain(metric: str) -> Definition:
    """The definition of a metric. Raises InputError with the nearest name if there is none."""
    if metric in DEFINITIONS:
        return DEFINITIONS[metric]
    near = get_close_matches(metric, DEFINITIONS, n=1, cutoff=0.4)
    suggestion = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(DEFINITIONS)}"
    raise InputError(Finding("unknown metric", value=metric, path=metric, suggestion=suggestion))
