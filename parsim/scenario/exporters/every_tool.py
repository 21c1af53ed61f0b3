"""What every training tool does or refuses alike."""

from __future__ import annotations

from parsim.scenario.exporters.draft import Draft

NO_TOOL = "no tool has it by configuration"


def simulator_only(draft: Draft) -> None:
    """Keys that only a simulator has: what kind of step is looked at, how long the training is, properties of the data."""
    training = draft.job.settings.training
    if not training.backward:
        draft.refuses("training.backward", "a training job always has a backward pass", "leave it out")
    if not training.step:
        draft.refuses("training.step", "a training job always steps its optimizer", "leave it out")
    draft.lacks("training.iteration", "it says which step is simulated, not how to train")
    draft.lacks("training.mean_sequence_length", "it describes the data")
    draft.lacks("training.data_loading", "it is a time, not a setting")
    draft.lacks("training.tokens", "the length of the training is the script's")
    draft.lacks("parallel.expert.imbalance", "it describes the data")
    for path in ("training.backward", "training.step"):
        if path not in draft.keys:
            draft.says(path, "always")


def partial_batch(draft: Draft, otherwise: str = "") -> None:
    """A smaller last micro-batch; `otherwise` says who decides it, an empty text: the tool refuses it."""
    path = "training.partial_micro_batch"
    last = draft.job.built.training.last_micro_batch
    if last and not otherwise:
        batch = draft.job.built.batch_arithmetic
        text = f"the last micro-batch has {last} samples ({batch}); every micro-batch has the same size there"
        draft.refuses(path, text, "use a global_batch of whole micro-batches, or --to fsdp")
    elif last:
        draft.lacks(path, otherwise)
    else:
        draft.says(path, "not needed: all micro-batches are whole")


def strategy_of_nobody(draft: Draft) -> bool:
    """Refuse strategies and schedules that exist in no tool; True where the strategy was one."""
    path, strategy = "parallel.data.strategy", draft.job.built.parallelism.data.strategy
    if ".py:" in strategy:
        draft.refuses(path, f"a strategy of your own runs nowhere but here; {NO_TOOL}", "export ddp, zero1, zero2, zero3 or fsdp")
    elif strategy in ("torch-data-parallel", "parameter-server"):
        who = "torch.nn.DataParallel is a call in the script" if strategy == "torch-data-parallel" else NO_TOOL
        draft.refuses(path, f"{draft.tool} runs one process per GPU; {who}", "use ddp")
    else:
        return False
    return True
