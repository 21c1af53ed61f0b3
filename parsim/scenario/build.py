"""From a scenario to the objects of the other rooms: model, cluster, recipe, strategy, runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parsim.errors import Finding, InputError, ModelError, PlanError, ScenarioError, TopologyError
from parsim.model.finetune import Finetune, finetuned
from parsim.model.kept_layers import with_kept_layers
from parsim.model.low_precision import PRODUCTS
from parsim.model.reward import scoring
from parsim.parallel.objective import OBJECTIVES, Objective
from parsim.parallel.runtime import Runtime
from parsim.parallel.shares import BATCH_SPLIT
from parsim.parallel.training import Offload, Training
from parsim.scenario.batch import counting_findings, resolve_batch, steps_to_train
from parsim.scenario.batch_split import balanced, uneven_batch
from parsim.scenario.build_machine import MachineBuilder
from parsim.scenario.built import Built
from parsim.scenario.cluster import background_traffic, collective_settings
from parsim.scenario.effects import effects_of, effects_of_others
from parsim.scenario.finetune import adapted_precision, adapter_warnings, finetune_recipe, sum_suffix
from parsim.scenario.low_precision import gathered_narrow, kept_layer_findings, quantised
from parsim.scenario.precision import PRESETS, resolve, sum_text
from parsim.scenario.pricing import Pricing, pricing
from parsim.scenario.recipe import (
    attention_findings,
    attention_kernel,
    chunk_findings,
    frozen_findings,
    keep_findings,
    kernels_for,
    logits_reason,
    metric_findings,
    muon_findings,
    optimizer_settings,
    precision_findings,
    preset_for,
)
from parsim.scenario.references import folder, lookup, model_tree
from parsim.scenario.scenario import Scenario
from parsim.scenario.software import Assumption, SoftwareProfile, automatic, blocking_findings, read_profile, runtime_of
from parsim.scenario.strategy import (
    accumulation,
    expert_assumptions,
    expert_width,
    fsdp_version,
    outer_assumptions,
    overlap_warnings,
    parallelism,
    parameter_gather,
    tensor_overlap,
    with_schedule,
    with_shared_outputs,
)
from parsim.scenario.towers import length_assumptions, length_findings, lengths_of
from parsim.scenario.variability import slow_ranks, variability_of

if TYPE_CHECKING:
    from parsim.hardware.device import Device
    from parsim.model.model import Model
    from parsim.parallel.settings import Parallelism
    from parsim.parallel.training import Precision


def build(scenario: Scenario) -> Built:
    """The domain objects of `scenario`, with every auto resolved and recorded.

    Raises `ScenarioError`, `TopologyError`, `ModelError` or `PlanError`, with the place of every finding; a strategy that is still to be
    searched for is one.
    """
    if scenario.settings.parallel.search != "none":
        text = "the strategy is still to be found: parsim run, check, compare and plan look for it, this does not"
        hint = "give the scenario.yaml that `parsim plan FILE` writes"
        raise ScenarioError(scenario.findings_at([Finding(text, "parallel", "auto", hint)]))
    return Builder(scenario).built()


class Builder(MachineBuilder):
    """One build: what fails is collected as long as the rest can still be looked at."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.input_dtype = ""
        """of a model written layer by layer"""

    def built(self) -> Built:
        cluster = self._try(self._cluster)
        others = self._try(lambda: background_traffic(cluster, self.settings.cluster.background)) if cluster is not None else None
        whole = self._try(self._model)
        gpus = self._try(lambda: self._gpus(cluster)) if cluster is not None else None
        split = self._try(lambda: parallelism(self.scenario, cluster, gpus)) if cluster is not None and gpus is not None else None
        faults = self._faults(cluster, gpus) if cluster is not None and gpus is not None else ()
        profile = self._try(lambda: self._profile(whole)) if whole is not None else None
        if cluster is None or whole is None or gpus is None or split is None or profile is None:
            self._stop()
            raise ScenarioError("the scenario cannot be built")  # unreachable: what is None has left a finding
        devices = self._kinds(cluster, gpus)
        if len({device.compute_capability > 0 for device in devices}) > 1:
            text = f"{' and '.join(device.name for device in devices)} have no communication library in common (NCCL, RCCL)"
            self._fail(TopologyError, [Finding(text, "cluster.nodes", None, "use GPUs of one maker in a job")])
        split = self._overlapping(self._spread(split, profile), profile)
        self.assumptions += expert_assumptions(self.settings.parallel, split) + outer_assumptions(split.data.outer)
        self.warnings += overlap_warnings(split, devices)
        padded = self._padded(whole, profile)
        precision = self._precision(profile, devices)
        placed = split
        recipe = self._try(lambda: self._finetune(precision, profile))
        precision = adapted_precision(recipe, precision) if recipe is not None else precision
        model = (self._try(lambda: self._finetuned(padded, recipe)) if recipe is not None else None) or padded
        model = self._kept_layers(self._scoring(model), precision)
        training = self._try(lambda: self._training(model, profile, precision, devices, placed.data.size))
        if training is not None:
            micro_batches = training[0].micro_batches
            split = self._try(lambda: with_schedule(placed, self.scenario, micro_batches))
            if split is not None:
                split = self._version(self._accumulating(split, training[0], profile), profile)
        no_logits = logits_reason(model, self.settings.training, placed.tensor.size)
        if findings := metric_findings(self.settings.software, no_logits):
            self._fail(PlanError, findings)
        if findings := counting_findings(self.settings, model):
            self._fail(ModelError, findings)
        if findings := blocking_findings(self.settings.software.host, placed):
            self._fail(ScenarioError, findings)
        if self.settings.variability.hashing and not cluster.hashes:
            text = "no flow of this cluster keeps to a path by a hash"
            hint = "use cluster.fabric.routing: ecmp, and several machines"
            self._fail(PlanError, [Finding(text, "variability.hashing", True, hint)])
        slow, findings = slow_ranks(self.settings.variability.slow, cluster, gpus)
        if findings:
            self._fail(PlanError, findings)
        self._stop()
        if training is None or split is None:
            raise ScenarioError("the scenario cannot be built")  # unreachable for the same reason
        wanted, strategy = self.settings.software.effects, split.data.strategy
        effects = effects_of(wanted, devices[0], profile.name, strategy, len(gpus), self.assumptions)
        others_too = effects_of_others(wanted, devices, profile.name, strategy, len(gpus), self.assumptions)
        variability = variability_of(self.scenario, self.assumptions)
        if variability.causes and variability.runs == 1:
            self.warnings.append(Finding("one run is the undisturbed step; nothing is sampled", "variability.runs", 1, "write runs: 200"))
        if (found := self.scenario.found) is not None and not found["proven"]:
            text = f"the search for the strategy ended after {found['wall_s']:.0f} s without a proof; there may be a faster one"
            self.warnings.append(Finding(text, "parallel", "auto", "parsim plan searches to the end"))
        priced = pricing(self.settings, cluster, gpus, model, training[0], placed)
        economics = self._priced(priced)
        made = Built(
            scenario=self.scenario,
            model=model,
            cluster=cluster,
            training=replace(training[0], finetune=recipe),
            parallelism=split,
            runtime=effects.on_runtime(self._runtime(profile, devices, logits=not no_logits), self.settings.software.host),
            effects=effects,
            effects_of_kinds=(effects, *others_too) if others_too else (),
            gpus=gpus,
            slow=slow,
            faults=faults,
            batch_arithmetic=training[1],
            bytes_per_parameter=sum_text(precision, training[0].optimizer) + sum_suffix(recipe, precision),
            steps_to_train=steps_to_train(self.settings, training[0]),
            memory_reserve=self.settings.cluster.memory_reserve,
            assumptions=tuple(self.assumptions),
            warnings=tuple(self.scenario.findings_at(self.warnings)),
            report=self.settings.report,
            collectives=collective_settings(self.settings.cluster.collectives),
            interference=self.settings.cluster.interference,
            seed=self.settings.variability.seed,
            variability=variability,
            tokens=self.settings.training.tokens,
            background=others or (),
            economics=economics,
            weeks=priced.weeks,
        )
        return made if self.settings.parallel.data.batch_split != "balanced" else self._balanced(made)

    def _balanced(self, made: Built) -> Built:
        """The job with a batch that is divided by speed."""
        try:
            return balanced(made)
        except InputError as error:
            raise type(error)(self.scenario.findings_at(error.findings)) from None

    # the model

    def _padded(self, model: Model, profile: SoftwareProfile) -> Model:
        """The model with the vocabulary that the stack pads, where the scenario leaves that to it."""
        divisor = profile.vocabulary_divisor
        if not model.vocabulary or not divisor or model.facts.get("vocab_divisible_by"):
            return model
        padded = self._model(divisor)
        if padded.vocabulary_padded != model.vocabulary:
            value = f"{model.vocabulary:,} rows padded to {padded.vocabulary_padded:,}"
            self.assumptions.append(profile.assumption("vocabulary_padding", value, "vocabulary.divisible_by"))
        return padded

    def _model(self, divisor: int = 0) -> Model:
        """The model; its vocabulary is padded as it says itself, else to a multiple of `divisor` x tensor size."""
        from parsim.model.catalogue import assumed_of_class, build_model, of_text_alone
        from parsim.model.traced import traced_warnings

        settings = self.settings
        relative = folder(self.scenario.origins, "model", self.scenario.source)
        tree, name, beside = model_tree(settings.model, relative)
        model = build_model(
            tree,
            name=name,
            base_lookup=lookup("models", beside),
            tensor=settings.parallel.tensor.size,
            loss=settings.training.loss.kind,
            divisor=divisor,
            lengths=lengths_of(settings.training),
        )
        self.warnings += traced_warnings(model)
        if not divisor and (sizes := assumed_of_class(tree, lookup("models", beside))):
            said = ", ".join(f"{key} {size}" for key, size in sizes.items())
            self.assumptions.append(Assumption("model_sizes", said, "default of the model's class in transformers", name))
        if not divisor and of_text_alone(tree, lookup("models", beside)):
            self.assumptions.append(Assumption("model_tower", "none: the text alone is trained", "the config has no vision_config", name))
        if isinstance(tree.get("input"), dict):
            self.input_dtype = str(tree["input"].get("dtype", ""))
        length = settings.training.sequence_length
        if model.sequence and length is None:
            hint = f"add for example sequence_length: {min(model.maximum_sequence or 2048, 8192)}"
            raise ModelError(Finding(f"required: {name} works on sequences", "training.sequence_length", None, hint))
        if not model.sequence and length is not None:
            raise ModelError(Finding(f"{name} has samples without sequences", "training.sequence_length", length, "leave it out"))
        mean = settings.training.mean_sequence_length
        if not model.sequence and mean != "auto":
            raise ModelError(Finding(f"{name} has samples without sequences", "training.mean_sequence_length", mean, "leave it out"))
        if findings := length_findings(model, settings.training):
            raise ModelError(findings)
        return with_shared_outputs(model, settings.parallel)

    def _finetune(self, precision: Precision, profile: SoftwareProfile) -> Finetune | None:
        section = self.settings.training.finetune
        if section is None:
            return None
        recipe = finetune_recipe(section, precision, self.settings.parallel.data.strategy, profile.adapters)
        if section.adapter_dtype == "auto" and recipe.fp32_adapters:
            self.assumptions.append(profile.assumption("adapter_dtype", profile.adapters, "adapters.dtype"))
        if section.base == "auto" and recipe.quantised:
            source = "NF4 with double quantisation (Dettmers et al. 2023, arXiv 2305.14314)"
            self._assume("finetune_base", recipe.base, source, "default")
        return recipe

    def _finetuned(self, model: Model, recipe: Finetune) -> Model:
        self.warnings += adapter_warnings(recipe, model)
        return finetuned(model, recipe)

    def _scoring(self, model: Model) -> Model:
        """A reward model has a score instead of a next token."""
        scores = self.settings.training.objective == "reward"
        return (self._try(lambda: scoring(model)) or model) if scores else model

    # software

    def _profile(self, model: Model) -> SoftwareProfile:
        wanted = self.settings.software.profile
        if wanted == "auto":
            wanted, reason = automatic(self.settings, transformer=model.heads > 0)
            self._assume("software_profile", wanted, reason, "default")
        return read_profile(wanted, folder(self.scenario.origins, "software.profile", self.scenario.source))

    def _precision(self, profile: SoftwareProfile, devices: list[Device]) -> Precision:
        wanted = self.settings.training.precision
        default = profile.precision
        stated = self.input_dtype
        if wanted.preset == "auto" and stated in PRESETS:
            self._assume("precision", stated, "the dtype of the model's input", "model.input.dtype")
            default = stated
        elif wanted.preset == "auto":
            default, reason = preset_for(profile.precision, devices)
            record = profile.assumption("precision", default, "precision.preset")
            self.assumptions.append(replace(record, source=f"{reason}; {record.source}" if reason else record.source))
        precision = resolve(wanted, default, profile.kept)
        if precision.narrow and wanted.keep is None:
            self.assumptions.append(profile.assumption("fp8_keep", ", ".join(precision.keep), "fp8.keep"))
        multiplied = replace(precision, matmul="int8") if precision.narrow and wanted.recipe == "int8" else precision
        training = self.settings.training
        problems = (
            precision_findings(multiplied, devices)
            or muon_findings(training.optimizer, devices)
            or frozen_findings(training.finetune, devices)
        )
        strategy = self.settings.parallel.data.strategy
        precision, refused = quantised(precision, wanted, profile, devices, strategy, self.assumptions)
        precision, ungathered = gathered_narrow(precision, wanted, self.settings, profile, self.assumptions)
        if problems := problems or refused or ungathered:
            self._fail(PlanError, problems)
        return precision

    def _kept_layers(self, model: Model, precision: Precision) -> Model:
        """The model with those layers in bf16 that stay so."""
        if findings := kept_layer_findings(precision, model):
            self._fail(PlanError, findings)
        elif any(precision.keep_layers):
            return with_kept_layers(model, *precision.keep_layers)
        return model

    def _training(
        self, model: Model, profile: SoftwareProfile, precision: Precision, devices: list[Device], data_size: int
    ) -> tuple[Training, str]:
        section = self.settings.training
        problems: list[Finding] = []
        attention = section.attention
        order, key = profile.attention_order(devices)
        if not model.heads:
            if attention != "auto":
                problems = [Finding(f"{model.name} has no attention", "training.attention", attention, "leave it out")]
            attention = "eager"
        elif attention == "auto":
            attention = attention_kernel(kernels_for(model, order), devices, precision, model.largest_head_dim)
            self.assumptions.append(profile.assumption("attention", attention, key))
        else:
            problems = attention_findings(attention, order, devices, precision, model)
        problems += keep_findings(section.precision.keep, precision, model, attention)
        if problems:
            self._fail(PlanError, problems)
        if model.facts.get("mixer"):
            from parsim.hardware.kernels import SCAN_SHARE
            from parsim.model.linear_attention import ISSUES

            value, source = f"{SCAN_SHARE:g} of fused attention's rate", "estimate from the Mamba-2 paper (2405.21060), figure 10"
            if model.facts["mixer"] in ISSUES:
                value, source = "Triton kernels as on H100 and B200", "flash-linear-attention's, timed by pytorch/helion (June 2026)"
            self._assume("linear_attention", value, source, "default")
        if model.facts.get("query_key_norm_over") == "projection" and self.settings.parallel.tensor.size > 1:
            value = "each tensor rank norms its own heads; the two sums per token over ranks are left out"
            self._assume("query_key_norm", value, "a few bytes per token (OLMo 2, MiniMax-M2)", "parallel.tensor.size")
        if model.facts.get("chosen_keys"):
            value = "chosen keys read once per query, scores of 1,024 queries at a time; the indexer is not trained"
            self._assume("sparse_attention", value, "within 8 % of deepseek-ai/FlashMLA's forward rates; backward unknown", "default")
        for stated in length_assumptions(model, section):
            self._assume(*stated, "default")
        dropout = section.dropout
        if dropout == "auto":
            dropout = float(str(model.facts.get("dropout", 0.0)))
            if model.heads:
                self._assume("dropout", f"{dropout:g}", "the model's own recipe", "model")
        if section.epochs is not None and section.examples is None:
            text = "epochs of how many examples?"
            self._fail(PlanError, [Finding(text, "training.epochs", section.epochs, "add training.examples")])
        uneven = self.settings.parallel.data.batch_split
        batch = (
            resolve_batch(section, data_size, sequence=model.sequence)
            if uneven == "even"
            else uneven_batch(section, data_size, uneven, sequence=model.sequence)
        )
        self.warnings += batch.warnings
        parallel = self.settings.parallel
        objective = OBJECTIVES.get(section.objective, Objective())  # auto: the model's own task
        tokens = objective.sequences * batch.micro_batch * (section.sequence_length or 1) // parallel.context.size
        if problems := chunk_findings(section.loss.chunks, model, tokens, parallel.tensor.size, parallel.context.size):
            self._fail(PlanError, problems)
        training = Training(
            sequence_length=section.sequence_length or 1,
            document_length=0 if section.document_length == "auto" else int(section.document_length),
            mean_sequence_length=0 if section.mean_sequence_length == "auto" else int(section.mean_sequence_length),
            last_micro_batch=objective.sequences * batch.last_micro_batch,
            micro_batch=objective.sequences * batch.micro_batch,
            micro_batches=batch.micro_batches,
            global_batch=objective.sequences * batch.global_batch,
            shares=batch.shares,
            backward=section.backward,
            step=section.step and section.backward,
            iteration="first" if section.iteration == "first" else "steady",
            precision=precision,
            optimizer=optimizer_settings(section.optimizer, profile, self.assumptions),
            loss=section.loss.kind,
            loss_kernel=self._loss_kernel(model, profile),
            holds_logits=profile.holds_logits if section.loss.hold_logits == "auto" else bool(section.loss.hold_logits),
            loss_chunks=section.loss.chunks,
            dropout=dropout,
            attention=attention,
            recompute=section.recompute,
            data_loading=section.data_loading,
            offload=self._offload(),
            objective=objective,
        )
        pairs = f"; {objective.name}: {objective.sequences} sequences per sample" if objective.sequences > 1 else ""
        if objective.before:
            text = "a step is one update on answers that are there: generating and scoring them is not simulated"
            self.warnings.append(Finding(text, "training.objective"))
        return training, batch.arithmetic + pairs

    def _priced(self, priced: Pricing) -> dict[str, Any] | None:
        if priced.findings:
            self._fail(ScenarioError, priced.findings)
            self._stop()
        self.assumptions += priced.assumptions
        self.warnings += priced.warnings
        return priced.facts

    def _offload(self) -> Offload:
        """What leaves the device; gradients go where the optimizer is unless something else is written."""
        section = self.settings.training.offload
        gradients = section.optimizer if section.gradients == "none" else section.gradients
        return Offload(section.parameters, gradients, section.optimizer, section.activations)

    def _loss_kernel(self, model: Model, profile: SoftwareProfile) -> str:
        kernel = self.settings.training.loss.kernel
        if kernel != "auto":
            return kernel
        if not model.vocabulary:
            return "eager"
        if self.settings.parallel.tensor.size > 1 and not profile.loss.startswith("vocab-parallel"):
            self._assume("loss_kernel", "vocab-parallel", "the logits are sharded over the tensor-parallel ranks", "parallel.tensor.size")
            return "vocab-parallel"
        fusion = self.settings.software.fusion
        if profile.loss == "eager" and (profile.fusion if fusion == "auto" else fusion) == "compiled":
            self._assume("loss_kernel", "compiled", "torch.compile is applied to the loss as well as to the layers", "software.fusion")
            return "compiled"
        self.assumptions.append(profile.assumption("loss_kernel", profile.loss, "kernels.loss"))
        return profile.loss

    def _accumulating(self, split: Parallelism, training: Training, profile: SoftwareProfile) -> Parallelism:
        """The strategy with its time of reduction, where the scenario leaves that to the stack."""
        if self.settings.parallel.data.accumulate != "auto" or not training.backward:
            return split
        if training.shares or self.settings.parallel.data.batch_split == "balanced":
            source = "replicas with different numbers of micro-batches can reduce gradients only after the last one"
            self._assume("accumulate", "no_sync", source, BATCH_SPLIT)
            return replace(split, data=replace(split.data, accumulate="no_sync"))
        found, record = accumulation(split, training.offload, training.micro_batches, profile)
        self.assumptions += [record] if record is not None else []
        return replace(split, data=replace(split.data, accumulate=found))

    def _overlapping(self, split: Parallelism, profile: SoftwareProfile) -> Parallelism:
        """The strategy with what runs beside tensor parallelism's collectives and beside gathers of stepped parameters."""
        parallel, blocking = self.settings.parallel, self.settings.software.host.blocking
        matmul = PRODUCTS.get(self.settings.training.precision.recipe, "")
        found, record = tensor_overlap(parallel.tensor, matmul, blocking=blocking, profile=profile)
        gathers, other = parameter_gather(parallel.data, split, blocking=blocking, profile=profile)
        if gathers and parallel.data.overlap_gather == "auto" and parallel.data.batch_split != "even":
            gathers, other = False, None  # replicas begin at different micro-batches
        self.assumptions += [one for one in (record, other) if one is not None]
        return replace(split, tensor=replace(split.tensor, overlap=found), data=replace(split.data, overlap_gather=gathers))

    def _spread(self, split: Parallelism, profile: SoftwareProfile) -> Parallelism:
        """The strategy with the ranks that share an expert's width, where the scenario leaves that to the stack."""
        found, record = expert_width(self.settings.parallel.expert, split, profile)
        self.assumptions += [record] if record is not None else []
        return replace(split, expert=replace(split.expert, tensor=found))

    def _version(self, split: Parallelism, profile: SoftwareProfile) -> Parallelism:
        """The strategy with its version of FSDP, where the scenario leaves that to the stack."""
        if self.settings.parallel.data.fsdp_version != "auto":
            return split
        found, record = fsdp_version(split, profile)
        self.assumptions += [record] if record is not None else []
        return replace(split, data=replace(split.data, fsdp_version=found))

    def _runtime(self, profile: SoftwareProfile, devices: list[Device], *, logits: bool) -> Runtime:
        return runtime_of(self.settings.software, profile, devices, self.devices, self.assumptions, logits=logits)
