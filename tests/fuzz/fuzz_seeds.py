"""Small valid documents of every kind of file, to be changed; what is shipped or stands in tests/data is used besides."""

from __future__ import annotations

import json

MODEL = "{family: gpt2, hidden: 128, layers: 4, heads: 4, vocabulary: 1000, maximum_sequence: 1024}"
JOB = f"""\
model: {MODEL}
cluster: {{topology: dgx-a100-80gb, gpus: 4}}
training: {{sequence_length: 128, global_batch: 16, micro_batch: 2}}
parallel: {{data: {{strategy: ddp}}}}
"""
AS_JSON = """\
{"model": "gpt2", "cluster": {"topology": "dgx-a100-80gb", "gpus": 4}, "parallel": {"data": {"strategy": "zero2"}},
 "training": {"sequence_length": 128, "micro_batch": 2, "global_batch": 16}}
"""
SCENARIOS = (
    JOB,
    f"""\
name: pipeline and tensor
model: {MODEL}
cluster: {{topology: dgx-a100-80gb, nodes: 2, gpus: 8, placement: packed, memory_reserve: 1 GiB, interference: full}}
training:
  sequence_length: 128
  global_batch: 24
  micro_batch: 1
  recompute: selective
  optimizer: {{name: adamw}}
  precision: bf16
parallel:
  tensor: {{size: 2, sequence_parallel: true}}
  pipeline: {{size: 2, schedule: interleaved, virtual_stages: 2}}
  data: {{strategy: zero1}}
software: {{profile: megatron-core, memory: {{allocator: expandable}}}}
report: {{flop_convention: palm}}
""",
    f"""\
name: fine-tuning
model: {MODEL}
cluster: {{topology: dgx-a100-80gb, gpus: 4}}
training: {{sequence_length: 128, global_batch: 12, micro_batch: 2, finetune: {{method: lora, rank: 8, targets: all-linear}}}}
parallel: {{pipeline: {{size: 2, schedule: gpipe}}, data: {{strategy: zero3}}}}
economics: {{gpu_hour: 2 USD, power_price: 0.1 USD, pue: 1.2, mtbf_per_gpu: 50000 h, checkpoint_time: 60 s}}
""",
    f"""\
name: offload and noise
model: {MODEL}
cluster:
  topology: {{gpu: rtx-3090, count: 2, interconnect: pcie3-x8, p2p: false}}
  set:
    device: {{memory: {{size: 22 GiB, visible: 21 GiB}}}}
    links: {{pcie3-x8: {{per_direction: x0.9}}}}
    node: {{host_memory: 64 GiB}}
training:
  sequence_length: 128
  micro_batch: 2
  gradient_accumulation: 2
  recompute: full
  tokens: 1B
  offload: {{optimizer: cpu, parameters: cpu}}
parallel: {{data: {{strategy: zero3}}}}
variability: {{seed: 1, slow: [{{rank: 1, speed: 0.8}}]}}
economics: {{purchase: {{node: 9000 USD, years: 4, utilisation: 0.7, upkeep: 0.05}}, power_price: 0.1 USD}}
overrides:
  faster: {{training: {{recompute: none}}}}
""",
    f"""\
name: fine-tuning in a pipeline without bubble
model: {MODEL}
cluster: {{topology: dgx-a100-80gb, gpus: 4}}
training: {{sequence_length: 128, global_batch: 12, micro_batch: 2, finetune: {{method: lora, rank: 4, targets: all-linear}}}}
parallel: {{pipeline: {{size: 2, schedule: zb-h1}}, data: {{strategy: zero3}}}}
""",
    """\
name: unit stages
model: {stages: [{forward: 1 s, backward: 2 s, send: 0.5 s, activation: 1 GiB}]}
cluster:
  topology: dgx-a100-80gb
  nodes: 2
  gpus: 4
  background: [{from: gpu0, to: gpu9, rate: 10 GB/s}, {from: gpu1, to: gpu8, bytes: 1 GiB, at: 0 s, every: 50 ms}]
training: {micro_batch: 1, global_batch: 8, step: false}
parallel: {pipeline: {size: 4, schedule: gpipe}}
""",
    """\
name: experts in fp8, context
model: {family: mixtral, hidden: 256, mlp: 512, layers: 2, heads: 4, kv_heads: 2, vocabulary: 1000, experts: {count: 4, top_k: 2}}
cluster: {topology: hgx-h100, gpus: 8, collectives: {profile: nccl, algorithm: ring}}
training: {sequence_length: 256, global_batch: 16, micro_batch: 1, precision: fp8, attention: flash2}
parallel: {context: {size: 2, method: ring}, data: {strategy: fsdp, prefetch: 1, limit_gathers: 2}}
""",
    """\
name: experts over ranks
model: {family: mixtral, hidden: 256, mlp: 512, layers: 2, heads: 4, kv_heads: 2, vocabulary: 1000, experts: {count: 4, top_k: 2}}
cluster: {topology: hgx-h100, gpus: 8}
training: {sequence_length: 256, gradient_accumulation: 2, micro_batch: 1, precision: bf16-fp32grad}
parallel:
  tensor: {size: 2, sequence_parallel: true}
  expert: {size: 2, tensor: 1, imbalance: 1.25}
  data: {strategy: zero1}
""",
    """\
model:
  input: {shape: [3, 32, 32], dtype: fp32}
  layers:
    - conv2d: {out: 16, kernel: 3, stride: 1, padding: 1, bias: false}
    - batchnorm
    - relu: {inplace: true}
    - maxpool: {kernel: 2, stride: 2}
    - repeat: {times: 2, layers: [{basic_block: {width: 16}}]}
    - global_avgpool
    - flatten
    - linear: {out: 10}
cluster: single-a100
training: {micro_batch: 8, gradient_accumulation: 1, precision: fp32, loss: sum}
""",
)
EXTENDING = """\
extends: s.yaml
training: {micro_batch: 4}
overrides:
  big: {training: {global_batch: 32}}
  other: {parallel: {data: {strategy: zero2}}}
"""
MODELS = (
    "name: mine\nfamily: gpt2\nhidden: 128\nlayers: 4\nheads: 4\nvocabulary: 100\nmaximum_sequence: 1024\n",
    "family: llama\nhidden: 256\nlayers: 2\nheads: 8\nkv_heads: 2\nmlp: 688\nvocabulary: 1000\nmaximum_sequence: 2048\n",
    "family: mixtral\nhidden: 256\nmlp: 512\nlayers: 2\nheads: 4\nkv_heads: 2\nvocabulary: 1000\nexperts: {count: 4, top_k: 2}\n",
    "base: gpt2\nlayers: 2\nhidden: 256\nheads: 4\n",
)
NODE = """\
name: mine
node:
  gpus: 4
  device: a100-sxm-80gb
  vertices: [nvswitch, nic0]
  edges:
    - {from: gpu*, to: nvswitch, kind: nvlink3, count: 12}
    - {from: gpu0, to: nic0, kind: pcie4-x16}
fabric: {kind: single-switch, nics: [nic0], link: wire}
links:
  wire: {medium: network, line_rate: 400 Gb/s, efficiency: 0.96, latency: 1 us}
"""
GRAPHS = (
    """\
name: islands
vertices: [gpu0..3, nvswitch]
device: a100-sxm-80gb
edges:
  - {from: gpu0..1, to: nvswitch, kind: nvlink3, count: 12}
  - {from: gpu2, to: gpu3, kind: nvlink3, count: 12}
""",
    """\
name: box of two
vertices: [gpu0..1, cpu0]
device: rtx-3090-24gb
edges:
  - {from: gpu0, to: gpu1, kind: mine, count: 4}
  - {from: gpu*, to: cpu0, kind: pcie4-x8}
links:
  mine: {medium: nvlink, per_direction: 12 GB/s, latency: 0.3 us}
""",
)
DEVICE = """\
name: Mine
memory: {size: 32 GiB, visible: 31.75 GiB, bandwidth: 900 GB/s, l2: 6 MiB, efficiency: 0.8}
compute: {sms: 80, peak: {fp32: 15 TFLOP/s, fp16: 125 TFLOP/s}, clock_derate: 0.9}
gemm: {efficiency: 0.8, k_half: 145, wave_quantisation: 0.6, latency: 5 us}
attention: {mem-efficient: {forward: 0.4, backward: 0.3}}
kernel_latency: 3 us
power: {tdp: 300 W, idle: 40 W}
features: [p2p, mem-efficient]
links: {pcie: pcie3-x16}
"""
MEASURED = """\
name: Measured
memory: {size: 32 GiB, visible: 31.75 GiB, bandwidth: 900 GB/s}
compute: {sms: 80, peak: {fp32: 15 TFLOP/s, fp16: 125 TFLOP/s}}
attention: {mem-efficient: {forward: 0.4, backward: 0.3}}
features: [p2p, mem-efficient]
links: {pcie: pcie3-x16}
measured:
  date: 2025-01-01
  versions: {torch: 2.6.0}
  gemm:
    - {dtype: fp16, m: 1024, n: 1024, k: 1024, time: 50 us}
    - {dtype: fp16, m: 2048, n: 2048, k: 2048, time: 300 us, pass: backward_weight, spread: 0.02}
    - {dtype: fp32, m: 1024, n: 1024, k: 1024, time: 300 us}
  attention:
    - {batch: 1, heads: 8, queries: 1024, head_dim: 64, dtype: fp16, implementation: mem-efficient, causal: true, time: 200 us}
  copy: [{bytes: 1 MiB, time: 6 us}, {bytes: 64 MiB, time: 180 us}]
  optimizer: [{bytes: 64 MiB, kernels: fused, time: 500 us}]
  launch: {kernel: 3 us, issue: 4 us}
"""
ON_DEVICE = f"""\
model: {MODEL}
cluster: {{topology: {{gpu: mine.yaml, count: 2}}}}
training: {{sequence_length: 128, global_batch: 16, micro_batch: 2, precision: fp16}}
"""
ON_TOPOLOGY = JOB.replace("dgx-a100-80gb, gpus: 4", "mine.yaml")
SOFTWARE_JOB = JOB + "software: {profile: mine.yaml}\n"
STUDY = """\
name: a study
scenario: s.yaml
axes:
  parallel.data.strategy: [ddp, zero1]
  training.micro_batch: {powers_of_two: [1, 2]}
where: fits
minimise: step_time
top: 5
"""
SEARCH = """\
name: another
scenario: s.yaml
axes: {training.recompute: [none, full], parallel.data.strategy: zero2}
where: [fits, step_time < 2 s]
maximise: samples_per_s
"""
QUESTION = """\
size:
  model: gpt2
  tokens: 1B
  days: 30
  on: [single-a100, 4x-v100-pcie]
  sequence_length: 512
  global_batch: 64
  max_gpus: 8
  gpu_hour: {single-a100: 2.00 USD, 4x-v100-pcie: 1.20 USD}
"""
COMPARISON = """\
name: two ways
base: {extends: s.yaml}
baseline: DDP, mbs=2
vary:
  parallel.data.strategy: {DDP: ddp, ZeRO-1: zero1}
  training.micro_batch: [1, 2]
"""
TABLE = """\
rank 0: F0.0, F0.1, F0.2, B0.0, F0.3, B0.1, B0.2, B0.3
rank 1: F1.0, B1.0, F1.1, B1.1, F1.2, B1.2, F1.3, B1.3
"""
TORCH_TABLE = "0F0,0F1,0F2,,0I0,0W0,0B1,0F3,0B2,0B3\n,1F0,1B0,1F1,1I1,1W1,1F2,1B2,1F3,1B3\n"
DEEP_TABLE = """\
F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 F0.4 B0.2 F0.5 B0.3 B0.4 B0.5
F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 F1.4 B1.3 F1.5 B1.4 B1.5
F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3 F2.4 B2.4 F2.5 B2.5
"""
V_TABLE = """\
0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1
1F0,1F1,2F0,2F1,2B0,2B1,1B0,1B1
"""
TABLE_JOB = """\
model: {stages: [{forward: 1 s, backward: 2 s}]}
cluster: {topology: dgx-a100-80gb, gpus: 2}
training: {micro_batch: 1, global_batch: 4, step: false}
parallel: {pipeline: {size: 2, schedule: mine.csv}}
"""
NCCL_LOG = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
# Using devices
#  Rank  0 Group  0 Pid  52741 on   node-17 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid  52741 on   node-17 device  1 [0x0f] NVIDIA A100-SXM4-80GB
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    44.22   23.71   23.71      0    43.80   23.94   23.94    N/A
     2097152        524288     float     sum      -1    53.40   39.27   39.27      0    53.11   39.49   39.49    N/A
# Avg bus bandwidth    : 31.6
"""
NCCL_DEBUG = """\
node-1:52:60 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
node-1:52:60 [0] NCCL INFO NCCL_ALGO set by environment to Ring.
node-1:52:60 [0] NCCL INFO Using network Socket
node-1:52:61 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/Socket/0
node-1:52:61 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node-1:52:60 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels
"""
TIMES = "bytes,time_us\n1048576,44.2\n2097152,53.4\n4194304,71\n"
XML = """\
<system version="1">
 <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
  <pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
   <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16" vendor="0x10de" device="0x20b2">
    <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:c4:00.0" count="12" tclass="0x068000"/></gpu>
   </pci>
   <pci busid="0000:08:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16" vendor="0x10de" device="0x20b2">
    <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:c4:00.0" count="12" tclass="0x068000"/></gpu>
   </pci>
   <pci busid="0000:0a:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16" vendor="0x15b3">
    <nic><net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.000000" guid="0x10" gdr="1"/></nic>
   </pci>
  </pci>
 </cpu>
</system>
"""
SYSTEMS = """\
sizes: [1 MiB, 128 MiB, 512 MiB]
bands:
  nvlink: {low: [-0.4, -0.25, -0.25, -0.05], high: [0.4, 0.25, 0.25, 0.05], what: "one machine"}
wire:
  nvlink3: {rate: 25 GB/s, source: "a datasheet"}
  pcie4-x16: {rate: 31.5 GB/s, source: "another"}
systems:
  mine:
    title: DGX A100
    class: nvlink
    topology: dgx-a100-80gb
    driven_from: nccl-tests
"""
MEASUREMENTS = """\
system,collective,gpus,nodes,bytes,time_us,busbw_GBps,algorithm,source,note
mine,all_reduce,8,1,1048576,70.14,,auto,mine,
mine,all_reduce,8,1,134217728,1160.2,,auto,mine,
mine,all_gather,8,1,134217728,,220.5,auto,mine,note
"""
GEMMS = """\
device,gpu,kind,dtype,groups,m,n,k,layout,accumulates,time_us,tflops,source,note
a100-sxm-80gb,A100,gemm,bf16,1,4096,4096,4096,TN,0,,240.5,mine,
a100-sxm-80gb,A100,gemm,bf16,1,8192,8192,8192,TN,0,4600,,mine,
"""
ATTENTIONS = """\
device,gpu,implementation,direction,batch,sequence,heads,kv_heads,head_dim,value_dim,causal,tflops,counted,source,note
a100-sxm-80gb,A100,flash2,forward,1,4096,32,32,128,128,1,180.5,full,mine,
"""
BENCHED = "devices:\n  a100-sxm-80gb:\n    title: A100 SXM 80GB\n    fitted: {bf16: efficiency}\n"
SOURCES = """\
rules:
  duplicate: "the same measurement printed twice"
  incomplete: "the row lacks something that decides its time"
sources:
  mine:
    title: "my runs"
    source: "my cluster"
    family: mine
    convention: "seconds from tokens per second"
    settings:
      model: {family: gpt2, hidden: 256, layers: 2, heads: 4, vocabulary: 1000}
      cluster: {topology: dgx-a100-80gb}
      training: {sequence_length: 128}
    inferred: "nothing"
    known: "nothing"
    left_out:
      - {rows: [mine-0002], rule: duplicate, because: "line 1 again"}
    memory_left_out:
      - {rows: all, rule: incomplete}
"""
RUNS = """\
id,table,step_time_s,reserved_gib,training.global_batch,training.micro_batch
mine-0001,line 1,0.5,4.5,16,2
mine-0002,line 2,0.7,,32,2
"""
FITS = "left_out: {mine: {clock-ampere: 0.92, memory-traffic: 1.0005}}\n"


def _words(*words: str) -> str:
    """A command line: a word with two dashes is an option, and takes the next."""
    pairs, queue = {}, list(words)
    free = []
    while queue:
        word = queue.pop(0)
        if word.startswith("--") or word in ("-p", "-m", "-v"):
            pairs[word] = queue.pop(0) if queue and not queue[0].startswith("-") else None
        else:
            free.append(word)
    # keys of a JSON object are different, so free words stand behind differently many blanks, which mean nothing
    return json.dumps({**{" " * place: word for place, word in enumerate(free)}, **pairs})


COMMANDS = tuple(
    _words(*words)
    for words in (
        ("fit", "gpt2", "--on", "1x a100-80gb", "--optimizer", "adamw"),
        (
            "fit",
            "gpt2",
            "--on",
            "8x a100-80gb",
            "--strategy",
            "zero3",
            "--tp",
            "2",
            "--micro-batch",
            "2",
            "--sequence",
            "512",
            "--precision",
            "bf16",
            "--optimizer",
            "lion",
        ),
        (
            "fit",
            "gpt2-medium",
            "--on",
            "2x rtx-3090",
            "--train",
            "lora",
            "--recompute",
            "full",
            "--offload",
            "optimizer",
            "--optimizer",
            "adam",
        ),
        (
            "fit",
            "gpt2",
            "--on",
            "1x rtx-4090",
            "--inference",
            "--batch",
            "4",
            "--context-length",
            "512",
            "--kv-dtype",
            "fp8",
            "--beams",
            "2",
        ),
        ("fit", "gpt2", "--on", "1x a100-80gb", "--max", "micro_batch", "--nodes", "1", "--optimizer", "adamw"),
        ("collective", "all-reduce", "--on", "dgx-a100-80gb", "--gpus", "8", "--size", "1KiB:1GiB", "--factor", "4"),
        ("collective", "all-gather", "--on", "hgx-h100", "--gpus", "16", "--nodes", "2", "--basis", "nccl", "--algorithm", "ring"),
        ("collective", "broadcast", "--on", "4x v100-32gb", "--size", "1MiB,2MiB", "--protocol", "simple", "--nccl", "2.18"),
        (
            "flops",
            "gpt2",
            "--sequence",
            "512",
            "--micro-batch",
            "4",
            "--gpu",
            "a100-sxm-80gb",
            "--gpus",
            "8",
            "--tokens",
            "1B",
            "--mfu",
            "40%",
        ),
        ("mfu", "gpt2", "--gpu", "a100-sxm-80gb", "--gpus", "8", "--tokens-per-s", "100000", "--recompute", "full", "--claimed", "0.5"),
        ("mfu", "gpt2", "--gpu", "h100-sxm-80gb", "--step-time", "1.5s", "--global-batch", "64", "--sequence", "1024"),
        ("schedule", "1f1b", "-p", "4", "-m", "8", "--times", "F=1,I=1,W=1", "--comm", "0.5", "--activation", "1GiB"),
        ("schedule", "interleaved", "zb-h1", "-p", "4", "-m", "8", "-v", "2", "--sends", "blocking", "--stage-times", "1,1,2,1"),
        ("schedule", "v-half", "v-min", "interleaved-zb", "-p", "4", "-m", "8", "-v", "2,4", "--times", "F=1,I=1.2,W=0.8"),
        ("topology", "show", "dgx-a100-80gb", "--nodes", "2"),
        ("topology", "show", "4x v100-32gb"),
        ("list", "models"),
        ("explain", "mfu"),
    )
)
OVERRIDES = tuple(
    json.dumps({word.partition("=")[0] + "=": word.partition("=")[2] for word in words})
    for words in (
        ("training.micro_batch=4", "parallel.data.strategy=zero1", "training.recompute=full"),
        ("parallel.tp=2", "training.precision=bf16", "cluster.gpus=8", "training.optimizer=sgd"),
        ("parallel.pipeline={size: 2, schedule: gpipe}", "training.global_batch=32", "cluster.set.device.memory.size=70 GiB"),
        ("model.layers=2", "training.sequence_length=256", "cluster.topology=hgx-h100", "name=mine"),
        ("economics.gpu_hour=2 USD", "variability.seed=3", "software.step_constant=1 ms", "cluster.memory_reserve=1 GiB"),
    )
)
