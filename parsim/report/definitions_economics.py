"""What the numbers about time, money and energy of a whole training mean."""

from __future__ import annotations

from parsim.report.definition import Definition

_PARSIM = "definition of this report"
_DALY = "Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, 2006; Young 1974"
_POWER = (
    "Latif et al. 2024 (arXiv 2412.08602) and Newkirk et al. 2025 (arXiv 2506.14551): power of an 8 x H100 node in training;"
    " docs/economics.md compares the model with published figures"
)

ECONOMICS = (
    Definition(
        "time_to_train_s",
        "s",
        "Time of the whole training: of training.tokens, or of training.examples and epochs in whole steps; with the time that failures"
        " cost where goodput is known, else without interruptions. Null where neither length is given.",
        "training.tokens / tokens_per_s / goodput, or ceil(examples x epochs / global_batch) x step_time_s / goodput",
        _PARSIM,
    ),
    Definition(
        "steps_to_train",
        "steps",
        "Optimizer steps of the whole training, rounded up; training.tokens count the last one in part.",
        "training.tokens / (global_batch x sequence_length), or examples x epochs / global_batch",
        _PARSIM,
    ),
    Definition(
        "gpu_hours",
        "h",
        "Hours of all GPUs in use over that time; idle ones are not in it, see gpu_hours_billed.",
        "time_to_train_s x ranks.total / 3600",
        _PARSIM,
    ),
    Definition(
        "gpu_hours_billed",
        "h",
        "The same with the idle GPUs: the machines of the cluster are allocated, and paid, whole.",
        "time_to_train_s x (ranks.total + ranks.idle_gpus) / 3600",
        _PARSIM,
    ),
    Definition(
        "goodput",
        "fraction",
        "Useful part of the time where any GPU's failure stops the job: the rest goes into writing checkpoints, doing again what came"
        " after the last one, and restarting. Failures come at a constant rate, also while a checkpoint is written and while the job"
        " restarts. M = economics.mtbf_per_gpu / ranks.total; C, R, tau: time of a checkpoint, of a restart, and of the training between"
        " two checkpoints, by default Daly's optimum. Null without mtbf_per_gpu and checkpoint_time.",
        "tau / (M e^(R/M) (e^((tau + C)/M) - 1)); tau = sqrt(2CM) (1 + sqrt(C/2M)/3 + C/18M) - C for C < 2M, else M",
        _DALY,
    ),
    Definition(
        "cost",
        "economics.currency",
        "What is paid, in one currency, and its parts: rent (gpu_hour x billed GPU-hours), hardware (purchase: price over years and"
        " utilisation, and upkeep) and energy (power_price x energy at the meter). Without a price in the scenario the topology's dated"
        " example price counts. Per step, token and sample means per useful one: the time that failures cost is paid too.",
        "per_step = sum of parts_per_step; to_train = per_step x steps; per_gpu_hour is per billed GPU-hour",
        _PARSIM,
    ),
    Definition("cost_per_step", "economics.currency", "cost.per_step.", "sum of cost.parts_per_step", _PARSIM),
    Definition(
        "cost_per_million_tokens",
        "economics.currency",
        "Cost of a million trained tokens; null for models without sequences.",
        "1e6 x cost_per_step / tokens of a step",
        _PARSIM,
    ),
    Definition(
        "cost_per_million_samples",
        "economics.currency",
        "Cost of a million trained samples.",
        "1e6 x cost_per_step / global_batch",
        _PARSIM,
    ),
    Definition(
        "cost_to_train",
        "economics.currency",
        "Cost of the whole training; null where its length is unknown.",
        "cost_per_step x training steps",
        _PARSIM,
    ),
    Definition(
        "energy_per_step_J",
        "J",
        "Energy of one useful step at the building's meter: a GPU in use draws idle + share x (TDP - idle), with the share of what it"
        " does, averaged over the ranks: 0.9 while it computes, 0.5 while it only communicates or copies, 0.3 while it waits"
        " (economics.gpu_power); an idle GPU draws idle; a machine draws what the topology says beside its GPUs (economics.node_power);"
        " all of it times economics.pue. Checkpoints, lost work and restarts draw the mean power of a step. Switches between machines"
        " and storage are not in it.",
        "(ranks.total x E_gpu + idle_gpus x P_idle x T + nodes x P_node x T) x PUE / goodput",
        _POWER,
    ),
    Definition(
        "energy_per_token_J", "J", "Energy of one trained token; null for models without sequences.", "energy_per_step_J / tokens", _PARSIM
    ),
    Definition(
        "energy_J",
        "J",
        "Energy of the whole training at the building's meter; null where its length is unknown. 1 kWh = 3.6e6 J.",
        "energy_per_step_J x training steps",
        _PARSIM,
    ),
    Definition(
        "co2_kg",
        "kg of CO2 equivalent",
        "Emissions of that energy; null without economics.carbon_intensity. Making the hardware is not in it.",
        "energy_J / 3.6e6 x economics.carbon_intensity",
        _PARSIM,
    ),
    Definition(
        "economics",
        "mapping",
        "What these numbers rest on: billed GPUs and nodes; mean power of a GPU in use and of the whole job at the meter; failures (the"
        " job's mean time between them, times of checkpoint, interval and restart, shares of the time that go into checkpoints and into"
        " lost work and restarts, how many to expect); and reasons, why a number is null.",
        "",
        _PARSIM,
    ),
)
