"""`parsim validate nccl`: the data are complete, the arithmetic is right, and the model keeps its promises on them."""

import csv
import importlib.util
import json
import sys

import pytest
import yaml

from parsim.cli import execute
from parsim.errors import ScenarioError, TopologyError
from parsim.hardware.nccl.cost import collective_cost
from parsim.scenario.files import data_root
from parsim.scenario.machines import machines
from parsim.study.collective_bands import EDGES, MORE, ONE, TAIL, TWO
from parsim.validation.bandwidth_bound import least_time
from parsim.validation.left_out_collectives import graded
from parsim.validation.predicted_collectives import document, summary, text, validate
from parsim.validation.published_collectives import ErrorBand, Reason, measurements
from parsim.validation.score import percentile

MIB, GIB = 2**20, 2**30
WIRE = {"nvlink2": 25e9, "nvlink3": 25e9, "nvlink4": 25e9, "pcie4-x16": 31.5e9, "pcie5-x16": 63e9, "pcie3-x16": 15.75e9, "ib-hdr": 25e9,
        "efa-400g": 50e9}  # fmt: skip


@pytest.fixture(scope="module")
def measured():
    return measurements()


@pytest.fixture(scope="module")
def validation(measured):
    return validate(measured)


def test_every_row_is_there_with_its_source(measured):
    assert len(measured.points) == 1190
    assert all(point.source for point in measured.points)
    assert {point.system for point in measured.points} == set(measured.systems)
    rows = {name: sum(point.system == name for point in measured.points) for name in measured.systems}
    assert rows["v100-cube-mesh"] == 140
    assert rows["a100-nvswitch"] == 7 * 20 + 4
    assert rows["h100-cloud"] == 3 * 7


def test_printed_times_and_bandwidths_agree(measured):
    # awslabs: 16 GiB over 16 GPUs, 66132 us, 487.09 GB/s
    point = next(p for p in measured.points if p.system == "p5-2-nodes" and p.bytes == 16 * GIB)
    assert point.busbw / 1e9 == pytest.approx(487.09, abs=0.01)
    # ultrascale playbook: only 361.75 GB/s is printed
    point = next(p for p in measured.points if p.system == "h100-cloud" and p.kind == "all_reduce" and p.nodes == 2)
    assert point.time == pytest.approx(256 * MIB * 1.875 / 361.75e9)


def test_size_classes(measured):
    sizes = [MIB - 1, MIB, 128 * MIB, 128 * MIB + 1, 512 * MIB - 1, 512 * MIB]
    assert [measured.size_class(size) for size in sizes] == [0, 1, 1, 2, 2, 3]


def test_nothing_is_faster_than_the_wires(validation):
    assert not validation.impossible
    assert all(one.point.time >= one.least > 0 for one in validation.predictions)  # nor is any measurement


def inside(validation, band, size_class, profile="measured"):
    one = summary(validation.of(profile, band=band, size_class=size_class))
    return one.inside / one.claimed


def test_shares_inside_the_bands(validation):
    assert inside(validation, "nvlink", 0) >= 0.94
    assert inside(validation, "nvlink", 1) >= 0.93  # RCCL's own algorithms from 1 to 8 MiB are most of what is outside
    assert inside(validation, "nvlink", 2) == 1.0
    assert inside(validation, "nvlink", 3) >= 0.90
    # 29 systems; the machine of 46 of the rows is inferred
    assert inside(validation, "network", 0) >= 0.98
    assert inside(validation, "network", 1) >= 0.81
    assert inside(validation, "network", 2) >= 0.95
    assert inside(validation, "network", 3) >= 0.91
    assert inside(validation, "pcie", 1) == inside(validation, "pcie", 3) == 1.0
    assert inside(validation, "nvlink", 3, "nccl") < 0.5 < inside(validation, "nvlink", 3)


# mean and median error in percent; inside a machine those of a prototype of the same formulas
@pytest.mark.parametrize(
    ("system", "size_class", "measured_profile", "nccl_profile"),
    [
        ("v100-cube-mesh", 3, (-0.7, 0.5), (8.8, 12.6)),
        ("v100-cube-mesh", 1, (-1.4, 4.0), (0.9, 12.1)),
        ("a100-nvswitch", 3, (0.5, 0.8), (-7.7, 6.0)),
        ("a100-nvswitch", 1, (-6.3, 3.6), (-25.9, 23.5)),
        ("a100-python", 1, (3.5, 4.9), (-52.7, 50.3)),
        ("h200-peaks", 3, (0.4, 0.5), (2.1, 1.4)),
        ("h200-sweep", 0, (-3.4, 3.2), (-55.4, 58.5)),
        ("h200-sweep", 1, (-0.2, 3.1), (-32.5, 37.1)),
        ("h100-simumax", 1, (-1.0, 2.2), (-29.6, 27.7)),
        ("h100-simumax", 3, (-0.6, 0.8), (-3.7, 3.2)),
        ("p5-1-node", 1, (6.3, 6.6), (-21.5, 25.0)),
        ("b200-peaks", 3, (0.8, 0.9), (-2.9, 5.7)),
        ("p5-2-nodes", 1, (1.0, 4.4), (-26.1, 26.1)),
        ("p5-2-nodes", 3, (1.0, 1.7), (-0.3, 3.3)),
        ("gb10-2-nodes", 3, (-7.5, 4.7), (-7.6, 4.8)),
    ],
)
def test_errors_by_system(validation, system, size_class, measured_profile, nccl_profile):
    for profile, (signed, middle) in (("measured", measured_profile), ("nccl", nccl_profile)):
        one = summary(validation.of(profile, system=system, size_class=size_class))
        assert 100 * one.errors.bias == pytest.approx(signed, abs=0.3)
        assert 100 * one.errors.median == pytest.approx(middle, abs=0.3)


def test_every_miss_has_a_reason(validation):
    reasons = [miss["reason"] for miss in document(validation)["misses"]]
    assert reasons
    assert "unexplained" not in reasons
    assert len(reasons) == len(validation.misses)


def test_summary_by_hand(validation):
    errors = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert percentile(errors, 0.9) == pytest.approx(3.6)
    assert percentile([7.0], 0.9) == 7.0
    cloud = summary(validation.of("measured", system="h100-cloud"))
    assert (cloud.errors.rows, cloud.claimed, cloud.inside) == (21, 0, 0)


def test_bands_and_reasons():
    band = ErrorBand("x", (-0.5, -0.5, -0.5, -0.5), (1.0, 1.0, 1.0, 1.0))
    assert band.holds(0, -0.5)
    assert not band.holds(3, 1.01)
    assert ErrorBand("x", None, None).holds(0, 9.0) is None
    point = next(p for p in measurements().points if p.system == "p5-2-nodes" and p.bytes == 65536)
    assert Reason("x", least=65536, below=65537, nodes=2, gpus=16, profile="nccl").explains(point, "nccl")
    assert not Reason("x", profile="nccl").explains(point, "measured")
    assert not Reason("x", below=65536).explains(point, "nccl")
    assert not Reason("x", nodes=3).explains(point, "nccl")


def test_wire_speed_by_hand():
    a100 = machines("dgx-a100-80gb")
    eight = tuple(range(8))
    assert least_time(a100, eight, "all_reduce", GIB, WIRE) == pytest.approx(2 * 7 / 8 * GIB / 300e9)
    assert least_time(a100, eight, "all_gather", GIB, WIRE) == pytest.approx(7 / 8 * GIB / 300e9)
    # the NVSwitch of an H100 adds: a GPU sends its buffer once
    assert least_time(machines("hgx-h100"), eight, "all_reduce", GIB, WIRE) == pytest.approx(GIB / 450e9)
    # one NVLink between two neighbours of the cube mesh, two to the next
    v100 = machines("dgx-1-v100")
    assert least_time(v100, (0, 1), "all_reduce", GIB, WIRE) == pytest.approx(GIB / 25e9)
    assert least_time(v100, (0, 3), "all_reduce", GIB, WIRE) == pytest.approx(GIB / 50e9)
    assert least_time(v100, (0, 5), "all_reduce", GIB, WIRE) == pytest.approx(GIB / 15.75e9)  # not neighbours: PCIe
    # two machines with two NICs of 25 GB/s each
    two = machines("dgx-a100-80gb", 2, change={"node": {"nics": 2}})
    assert least_time(two, tuple(range(16)), "all_gather", GIB, WIRE) == pytest.approx(GIB / 2 / 50e9)
    assert least_time(two, tuple(range(16)), "all_reduce", GIB, WIRE) == pytest.approx(GIB / 50e9)
    # every GPU keeps an eighth; half of all bytes leave the machine
    assert least_time(a100, eight, "all_to_all", GIB, WIRE) == pytest.approx(7 / 8 * GIB / 300e9)
    assert least_time(two, tuple(range(16)), "all_to_all", GIB, WIRE) == pytest.approx(8 * GIB / 2 / 50e9)
    # everyone sends to the next: one message leaves a machine
    assert least_time(two, tuple(range(16)), "sendrecv", GIB, WIRE) == pytest.approx(GIB / 50e9)
    with pytest.raises(TopologyError, match="no bound"):
        least_time(a100, eight, "broadcast", GIB, WIRE)
    with pytest.raises(TopologyError, match="signalling rate"):
        least_time(a100, eight, "all_reduce", GIB, {})


def test_text_and_json(validation, capsys):
    shown = text(validation)
    assert shown.startswith("1190 published measurements of 52 systems.")
    assert "0 of 2380 predictions are faster than the wires allow." in shown
    assert execute(["validate", "nccl", "--json", "--basis", "measured"]) == 0
    answered = json.loads(capsys.readouterr().out)
    assert answered["points"] == len(answered["rows"]) == 1190
    assert answered["beats_the_wires"] == []
    assert {row["profile"] for row in answered["rows"]} == {"measured"}
    assert execute(["validate", "nccl", "--basis", "none"]) == 2


def test_own_data(tmp_path, capsys):
    shipped = data_root() / "validation" / "nccl"
    systems = (shipped / "systems.yaml").read_text(encoding="utf-8")
    rows = (shipped / "measurements.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "systems.yaml").write_text(systems, encoding="utf-8")
    (tmp_path / "measurements.csv").write_text("\n".join(rows[:3]), encoding="utf-8")
    assert execute(["validate", "nccl", "--data", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points"] == 2
    (tmp_path / "measurements.csv").write_text("\n".join([rows[0], "nobody,all_reduce,2,1,8,1,,auto,s,", "x,y"]), encoding="utf-8")
    (tmp_path / "systems.yaml").write_text(
        systems.replace("class: pcie", "class: fast").replace("title: MI355X", "name: MI355X"), encoding="utf-8"
    )
    with pytest.raises(ScenarioError) as error:
        measurements(tmp_path)
    messages = " | ".join(map(str, error.value.findings))
    for word in ("unknown class 'fast'", "unknown key 'name'", "unknown system", "cannot be read"):
        assert word in messages


@pytest.mark.parametrize("section", ["bands", "systems", "wire"])
def test_sections_that_are_no_mappings(tmp_path, section):
    text = (data_root() / "validation" / "nccl" / "systems.yaml").read_text(encoding="utf-8")
    (tmp_path / "systems.yaml").write_text(text.replace(f"\n{section}:", f"\n{section}: 7\nold_{section}:"), encoding="utf-8")
    with pytest.raises(ScenarioError) as error:
        measurements(tmp_path)
    (finding,) = error.value.findings
    assert (finding.path, finding.value, finding.message, finding.column) == (section, 7, "expected a mapping", 1)


# systems that the numbers have not seen


def test_shares_between_machines_by_grade(validation):
    """What README.md of validation/nccl claims; the stored columns are those of its fit.py."""
    found = {
        one.what: (one.rows, *(one.inside(grade) for grade in range(3))) for one in graded(validation.measured, validation.of("measured"))
    }
    assert {what: counts[0] for what, counts in found.items()} == {
        "< 1 MiB": 166, "1-128 MiB": 165, "128-512 MiB": 20, ">= 512 MiB, two machines": 84, ">= 512 MiB, more machines": 31,
    }  # fmt: skip
    shares = {what: [count / counts[0] for count in counts[1:]] for what, counts in found.items()}
    least = {
        "< 1 MiB": (0.92, 0.97, 0.93), "1-128 MiB": (0.73, 0.77, 0.70), "128-512 MiB": (0.95, 0.95, 0.95),
        ">= 512 MiB, two machines": (0.91, 0.91, 0.88), ">= 512 MiB, more machines": (1.0, 1.0, 1.0),
    }  # fmt: skip
    for what, wanted in least.items():
        assert all(share >= limit for share, limit in zip(shares[what], wanted, strict=True)), what


def test_every_point_between_machines_has_its_stored_predictions(validation):
    measured = validation.measured
    between = [point for point in measured.points if point.nodes > 1 and measured.systems[point.system].band == "network"]
    assert [point.key for point in between] == list(measured.fitted)


def test_a_family_is_predicted_by_the_stored_fit_without_it():
    """The numbers of fit.yaml without a family give its stored times: nothing has moved since the fit."""
    home = data_root() / "validation" / "nccl"
    spec = importlib.util.spec_from_file_location("nccl_fit", home / "fit.py")
    fit = importlib.util.module_from_spec(spec)
    sys.modules["nccl_fit"] = fit  # its dataclasses look themselves up
    spec.loader.exec_module(fit)
    stored = yaml.safe_load((home / "fit.yaml").read_text(encoding="utf-8"))
    measured = measurements()
    for family in ("p4de-2-nodes", "aion", "alps"):
        mine = [point for point in measured.points if measured.systems[point.system].family == family]
        times = fit.predict(measured, mine, stored["without"][family])
        assert times == pytest.approx([measured.fitted[point.key][1] for point in mine], rel=1e-5)
    rows = fit.rows_of(measured)
    known = fit.shipped({row.network for row in rows})
    assert {name: number["shipped"] for name, number in stored["numbers"].items()} == pytest.approx(known, rel=1e-3)
    without = [row for row in rows if row.family != "alps"]
    assert 0 < len(without) < len(rows)
    assert not any(row.point.system.startswith("alps") for row in without)


def test_no_row_is_left_out_without_a_rule():
    rules = {"unhealthy", "disturbed", "no-size", "unstated", "old-library", "other-library"}
    assert set(measurements().left_out) == rules
    readme = (data_root() / "validation" / "nccl" / "README.md").read_text(encoding="utf-8")
    assert all(f"| {rule} | {count} |" in readme for rule, count in measurements().left_out.items())


def test_bands_are_those_of_the_command():
    """`parsim collective` says what the bands here say."""
    bands = measurements().bands
    assert bands["nvlink"].high == ONE
    assert bands["network"].high == TWO
    assert bands["network"].more == MORE
    assert bands["network"].limits(3, 8) == (-0.20, 0.20)
    assert measurements().edges == EDGES


@pytest.mark.parametrize(
    ("rows", "topology", "least"),
    [
        ("CSCS Alps (4x GH200 per node), CXI hook disabled", "alps-2-nodes", 2**26),
        ("Azure ND96asr_v4 (8x A100-40GB) AKS IPoIB", "azure-a100-2-nodes", 2**26),
        ("H100 cluster nccl-tests#290 (misconfigured HCA list)", "dell-h100-2-nodes", 2**28),
    ],
)
def test_broken_systems_are_slower_than_the_tail(rows, topology, least):
    """What the sources call broken is further off than `parsim collective` grants slow clusters: a comparison tells it."""
    with (data_root() / "validation" / "nccl" / "left_out.csv").open(newline="", encoding="utf-8") as file:
        broken = [row for row in csv.DictReader(file) if row["system"] == rows and int(row["bytes"]) >= least]
    assert {row["rule"] for row in broken} == {"unhealthy"}
    cluster = measurements().systems[topology].cluster(2)
    for row in broken:
        each = int(row["gpus"]) // 2
        group = tuple(cluster.gpu(node, local) for node in range(2) for local in range(each))
        healthy = collective_cost(cluster, group, row["collective"], int(row["bytes"])).time
        assert healthy < (1 - TAIL) * float(row["time_us"]) * 1e-6
