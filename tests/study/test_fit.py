"""`parsim fit`: the verdict, the changes that help, the inverse; all of them what `run` says."""

import json
import random

import pytest

from parsim.cli import execute
from parsim.errors import InputError, ScenarioError
from parsim.run import simulate
from parsim.scenario import load
from parsim.scenario.build import build
from parsim.scenario.files import parse_text
from parsim.study.fit import find_alternatives, find_maximum, fit
from parsim.study.fit_changes import more_gpus
from parsim.study.fit_question import FitQuestion, scenario_of
from parsim.study.fit_text import document, text, yaml
from parsim.study.search.bounds import Bounder

GIB = 2**30


def run_of(answer):
    """What `parsim run` makes of the file that `--save` writes."""
    return simulate(load(parse_text(yaml(answer), "saved.yaml").tree))


@pytest.fixture(scope="module")
def no_13b():
    return fit(FitQuestion("llama-13b", "4x v100-32gb"))


def test_llama_13b_does_not_fit_on_four_v100(no_13b):
    # 13,015,864,320 parameters x 16 B / 4 = 52.06 GB = 48.49 GiB of states alone
    assert not no_13b.fits
    assert no_13b.report.measured.memory.capacity_bytes / GIB == pytest.approx(31.7, abs=0.1)
    assert "model states alone: 48.49 GiB per GPU of about 31.74 GiB (zero3)" in text(no_13b)
    assert no_13b.report.measured.memory.bytes_per_parameter == "2+2+4+8 = 16 B/parameter"
    resident = no_13b.report.measured.memory.devices[0].resident_bytes
    assert (resident["parameters"] + resident["optimizer"]) / 13_015_864_320 * 4 == pytest.approx(14, rel=1e-3)


def test_every_alternative_is_confirmed_by_run(no_13b):
    assert len(no_13b.alternatives) >= 3
    for alternative in no_13b.alternatives:
        confirmed = simulate(load(no_13b.tree, *alternative.overrides))
        assert confirmed.fits
        assert confirmed.peak_memory == alternative.memory.peak_bytes


def test_same_hardware_comes_before_more_and_more_before_other(no_13b):
    kinds = []
    for alternative in no_13b.alternatives:
        words = " ".join(alternative.overrides)
        built = build(load(no_13b.tree, *alternative.overrides))
        same = built.cluster.device(0).name == "V100 SXM2 32GB"  # also that of a dgx-2
        assert built.used_gpus == 4 or (same and built.used_gpus > 4)
        kinds.append(0.5 if "finetune" in words else 0 if "cluster" not in words else 1 if same else 2)
    assert kinds == sorted(kinds)
    assert set(kinds) == {0, 0.5, 1, 2}
    prices = [a.slowdown for a, kind in zip(no_13b.alternatives, kinds, strict=True) if kind == 0]
    assert prices == sorted(prices)


@pytest.mark.parametrize(
    ("model", "on", "what"), [("llama-13b", "4x a100-80gb", "sequence_length"), ("llama-7b", "dgx-a100-80gb", "micro_batch")]
)
def test_the_maximum_is_exact(model, on, what):
    answer = fit(FitQuestion(model, on), maximum=what)
    largest = answer.maximum
    keys = {"sequence_length": "training.sequence_length", "micro_batch": "training.micro_batch"}
    assert simulate(load(answer.tree, f"{keys[what]}={largest.value}")).fits
    assert not simulate(load(answer.tree, f"{keys[what]}={largest.value + 1}")).fits


def test_the_largest_model_by_layers():
    largest = fit(FitQuestion("gpt2", "1x rtx-4090"), maximum="parameters").maximum
    assert largest.fits.fits
    assert not largest.exceeds.fits
    assert largest.exceeds.measured.model.parameters - largest.fits.measured.model.parameters == 12 * 768**2 + 13 * 768


def test_learned_positions_bound_the_sequence():
    largest = fit(FitQuestion("gpt2", "1x h100"), maximum="sequence_length").maximum
    assert largest.value == 1024
    assert "learned positions" in largest.limit


def test_random_questions_have_the_peak_of_run():
    chance = random.Random(7)
    boxes = ["1x a100-80gb", "2x rtx-4090", "4x v100-32gb", "dgx-a100-40gb", "hgx-h100", "8x l40s"]
    seen = 0
    while seen < 15:
        question = FitQuestion(
            chance.choice(["gpt2", "opt-125m", "pythia-160m", "bert-base"]),
            chance.choice(boxes),
            zero=chance.choice([None, 0, 1, 2, 3]),
            tensor=chance.choice([1, 1, 2]),
            sequence_length=chance.choice([128, 256, 512]),
            micro_batch=chance.randint(1, 8),
            optimizer=chance.choice([None, "adam-8bit", "adafactor", "sgd"]),
            recompute=chance.choice([None, "full", "selective"]),
        )
        if question.tensor > 1 and question.on.startswith("1x"):
            continue
        answer = fit(question, alternatives=False)
        assert run_of(answer).peak_memory == answer.report.peak_memory
        seen += 1


def test_a_strategy_nobody_named_is_the_most_frugal_one():
    assert scenario_of(FitQuestion("gpt2", "4x a100-80gb"))["parallel"]["data"]["strategy"] == "zero3"
    assert scenario_of(FitQuestion("gpt2", "1x a100-80gb"))["parallel"]["data"]["strategy"] == "none"
    assert scenario_of(FitQuestion("gpt2", "4x a100-80gb", zero=0))["parallel"]["data"]["strategy"] == "ddp"
    assert scenario_of(FitQuestion("gpt2", "4x a100-80gb"))["training"]["sequence_length"] == 1024


def test_questions_without_an_answer_are_refused():
    with pytest.raises(ScenarioError, match="there is no strategy"):
        fit(FitQuestion("gpt2", "4x a100-80gb", zero=5))
    for word, strategy in (("fsdp", "fsdp"), ("0", "ddp"), ("3", "zero3"), ("zero2", "zero2")):
        assert scenario_of(FitQuestion("gpt2", "4x a100-80gb", strategy=word))["parallel"]["data"]["strategy"] == strategy
    with pytest.raises(ScenarioError, match="cannot maximise"):
        find_maximum(scenario_of(FitQuestion("gpt2", "1x a100-80gb")), "layers")


def test_offloading_the_optimizer_makes_13b_fit(no_13b):
    # the 14 of 16 B/parameter that the optimizer and its gradients are leave the GPUs; 16 B/parameter are in host memory
    answer = fit(FitQuestion("llama-13b", "4x v100-32gb", offload="optimizer", host_memory="512GiB"))
    assert answer.fits
    host = answer.report.measured.memory.host
    assert host.bytes == pytest.approx(16 * 13_015_864_320, rel=1e-6)
    assert host.capacity_bytes == 512 * GIB
    assert "194 GiB per node (of 512 GiB)" in text(answer)
    assert answer.report.peak_memory < no_13b.report.peak_memory
    assert run_of(answer).peak_memory == answer.report.peak_memory


def test_too_little_host_memory_is_a_no():
    answer = fit(FitQuestion("llama-7b", "1x a100-80gb", offload="optimizer", host_memory="64GB"))
    assert not answer.fits
    assert answer.report.headroom > 0
    assert "host memory: 100.4 GiB per node (of 59.6 GiB): too little" in text(answer).splitlines()[1]
    for alternative in answer.alternatives:
        assert alternative.memory.headroom >= 0
        assert alternative.memory.host is None or alternative.memory.host.lacks == 0


def test_offload_is_among_what_would_help(no_13b):
    changes = [alternative.change for alternative in no_13b.alternatives]
    assert "optimizer in host memory" in changes
    assert "of host memory per node" in text(no_13b)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("optimizer", {"optimizer": "cpu"}),
        ("cpu", {"optimizer": "cpu"}),
        ("optimizer:nvme, parameters", {"optimizer": "nvme", "parameters": "cpu"}),
        ("parameters", {"parameters": "cpu", "optimizer": "cpu"}),
        ("all", {"parameters": "cpu", "optimizer": "cpu", "activations": "cpu"}),
        ("all:nvme", {"parameters": "nvme", "optimizer": "nvme", "activations": "cpu"}),
    ],
)
def test_what_offload_means(words, settings):
    tree = scenario_of(FitQuestion("gpt2", "2x a100-80gb", offload=words))
    assert tree["training"]["offload"] == settings
    assert ("recompute" in tree["training"]) == ("activations" in settings)
    assert simulate(load(tree)).measured.memory.host.bytes > 0


def test_unknown_offloads_are_refused():
    with pytest.raises(ScenarioError, match="cannot offload 'weights'"):
        fit(FitQuestion("gpt2", "1x a100-80gb", offload="weights"))
    with pytest.raises(InputError, match="offload_param is ZeRO-3's"):
        fit(FitQuestion("gpt2", "4x a100-80gb", offload="parameters", zero=2))


def test_json_has_the_run_report(no_13b):
    answered = document(no_13b)
    assert answered["fits"] is False
    assert answered["report"]["memory"]["peak_bytes"] == no_13b.report.peak_memory
    assert {"change", "overrides", "peak_bytes", "slowdown", "step_time_s"} == set(answered["alternatives"][0])


def test_the_command_line(tmp_path, capsys):
    saved = tmp_path / "x.yaml"
    assert execute(["fit", "gpt2-xl", "--on", "1x rtx-3090", "--save", str(saved), "--explain"]) == 3
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].startswith("no: does not fit, needs")
    assert "how these numbers come about" in shown
    assert execute(["run", str(saved), "--json"]) == 3
    assert execute(["fit", "gpt2", "--on", "1x rtx-4090", "--save", str(saved)]) == 2
    assert execute(["fit", "gpt2", "--on", "1x nothing"]) == 2


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(FitQuestion("gpt2-xl", "1x rtx-3090"), marks=pytest.mark.slow),
        pytest.param(FitQuestion("gpt3-1.3b", "2x rtx-4090", zero=0, micro_batch=4), marks=pytest.mark.slow),
        FitQuestion("gpt3-2.7b", "2x t4", tensor=2),
        pytest.param(FitQuestion("gpt3-2.7b", "4x v100-16gb", pipeline=2, zero=1), marks=pytest.mark.slow),
        FitQuestion("bert-large", "1x t4", micro_batch=64),
    ],
    ids=lambda question: f"{question.model} on {question.on}",
)
def test_what_is_ruled_out_by_a_bound_does_not_fit(question, monkeypatch):
    """A bound saves simulations and changes no answer."""
    quick = fit(question)
    assert not quick.fits
    monkeypatch.setattr(Bounder, "surely_full", lambda bounder, built: False)
    simulated = fit(question)
    figures = [
        [(a.change, a.overrides, a.gpus, a.memory.peak_bytes, a.step_time, a.slowdown) for a in answer.alternatives]
        for answer in (quick, simulated)
    ]
    assert figures[0] == figures[1]
    assert quick.refused == simulated.refused


def test_an_interrupted_search_keeps_the_verdict_and_what_was_found(monkeypatch, capsys):
    search = find_alternatives

    def interrupted(answer, refused):
        yield next(search(answer, refused))
        raise KeyboardInterrupt

    monkeypatch.setattr("parsim.study.fit.find_alternatives", interrupted)
    question = ["fit", "gpt2-xl", "--on", "1x rtx-3090"]
    assert execute(question) == 130
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("no: does not fit, needs")
    assert any(line.startswith(("confidence           [interpolated] ", "confidence           [unvalidated] ")) for line in lines)
    assert lines[-2].startswith("what would fit; times against the simulated step above")
    assert execute([*question, "--json"]) == 130
    answered = json.loads(capsys.readouterr().out)
    assert len(answered["alternatives"]) == 1
    assert answered["complete"] is False


def test_the_verdict_is_printed_before_anything_else_is_tried(monkeypatch, capsys):
    said = []

    def search(answer, refused):
        said.append(capsys.readouterr().out)
        return iter(())

    monkeypatch.setattr("parsim.study.fit.find_alternatives", search)
    assert execute(["fit", "gpt2-xl", "--on", "1x rtx-3090"]) == 3
    assert said[0].startswith(
        "gpt2-xl on 1x rtx-3090: sequence 1024, micro-batch 1, no recomputation, bf16, one replica\nno: does not fit, needs"
    )
    assert capsys.readouterr().out.strip() == "none of the changes tried fits; more or larger GPUs are needed"


def test_more_gpus_are_more_than_there_are():
    changes = [change for _, change, _ in more_gpus(FitQuestion("gpt2", "8x a100-80gb"), 8)]
    assert "2 x dgx-a100-80gb" in changes
    assert not any(change.startswith("1 x ") for change in changes)
