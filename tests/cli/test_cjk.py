"""Chinese names, UTF-8 with and without BOM, full-width punctuation and streams that are not UTF-8: nothing breaks."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from parsim import load
from parsim.cli import execute
from parsim.columns import left, plainly, printable, right, width
from parsim.report.table import Column, Table

NAME = "四卡训练实验：显存𠮷"
SCENARIO = f"""\
name: {NAME}
model: gpt2
cluster: {{topology: dgx-a100-80gb, gpus: 4}}
training: {{sequence_length: 1024, global_batch: 64, micro_batch: 16}}
parallel: {{data: {{strategy: ddp}}}}
"""
NARROW = ("ascii", "cp1252", "latin-1", "gbk", "shift_jis")


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Chinese name and the scenario 实验/训练.yaml, where we stand."""
    home = tmp_path / "大模型 训练"
    (home / "实验").mkdir(parents=True)
    (home / "实验" / "训练.yaml").write_text(SCENARIO, encoding="utf-8")
    monkeypatch.chdir(home)
    return home


def said(monkeypatch: pytest.MonkeyPatch, encoding: str, *arguments: str) -> tuple[int, bytes]:
    """Exit code and bytes on a stdout of that encoding that refuses what it lacks, as Python's do."""
    raw = io.BytesIO()
    with monkeypatch.context() as patched:
        stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict", write_through=True)
        patched.setattr(sys, "stdout", stream)
        code = execute(arguments)
        stream.flush()
        stream.detach()
    return code, raw.getvalue()


# -- columns ----------------------------------------------------------------------------------------------------------


def test_widths():
    assert [width(text) for text in ("", "GPT-2", "显存", "４：，", "한글", "かな", "e\u0301", "µ█─")] == [0, 5, 4, 6, 4, 4, 1, 3]
    assert left("显存", 6) == "显存  "
    assert right("显存", 6) == "  显存"
    assert left("显存", 3) == "显存"


@given(st.text("aé显存：，“”　한かﾊ█─µ０-"))
def test_widths_are_those_of_rich(text):
    assert width(text) == cell_len(text)


def test_tables_align_by_columns():
    columns = [Column("模型 model", align="left"), Column("[GiB]"), Column("说明 note")]
    lines = Table(columns, [("显存", "1.5", "甲"), ("llama-7b", "12", "second")]).text().split("\n")
    assert [width(line) for line in lines] == [28, 28, 28]
    assert lines[1] == "显存          1.5         甲"


def test_the_show_column_aligns(folder, capsys):
    assert execute(["show", "实验/训练.yaml", "--written"]) == 0
    lines = capsys.readouterr().out.splitlines()
    places = {width(line.partition("  # ")[0]) for line in lines if "  # " in line}
    assert len(places) == 1
    assert f'name: "{NAME}"' in lines[0]


# -- names and files --------------------------------------------------------------------------------------------------


def test_chinese_names_go_through_every_file(folder, capsys):
    assert execute(["run", "实验/训练.yaml", "--out", "结果/第一次", "--trace"]) == 0
    assert f"结果/第一次{os.sep}: report.json" in capsys.readouterr().out
    out = folder / "结果" / "第一次"
    document = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert document["scenario"]["name"] == NAME
    assert "实验/训练.yaml" in document["provenance"]["command"]
    again = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))
    assert NAME in json.dumps(again["otherData"], ensure_ascii=False)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert '<meta charset="utf-8">' in page
    assert NAME in page
    for picture in ("timeline.svg", "memory.svg"):
        assert (out / picture).read_text(encoding="utf-8").rstrip().endswith("</svg>")
    assert load(document["scenario"]).document() == document["scenario"]


def test_the_default_name_and_folder_are_the_files(folder, capsys):
    Path("训练二.yaml").write_text(SCENARIO.partition("\n")[2], encoding="utf-8")
    assert execute(["run", "训练二.yaml", "--no-pictures"]) == 0
    assert json.loads((folder / "parsim-out" / "训练二" / "report.json").read_text(encoding="utf-8"))["scenario"]["name"] == "训练二"
    assert capsys.readouterr().out.startswith("训练二\n")


def test_new_writes_a_chinese_file(folder, capsys):
    assert execute(["new", "我的训练"]) == 0
    assert execute(["check", "我的训练.yaml"]) == 0


def test_a_file_name_that_is_not_utf8(folder, capsys):
    """Archives from Chinese Windows unpack to GBK names; their bytes reach us as surrogates, which no UTF-8 file can hold."""
    name = os.fsdecode("训练".encode("gbk") + b".yaml")
    try:
        Path(name).write_text(SCENARIO.partition("\n")[2], encoding="utf-8")
    except (OSError, UnicodeError):
        pytest.skip("this file system takes UTF-8 names only")
    assert name != printable(name)
    assert execute(["run", name, "--out", "out"]) == 0
    assert "\ufffd" in json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))["scenario"]["name"]
    assert execute(["show", name]) == 0
    assert execute(["run", name, "--json"]) == 0


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_byte_order_mark_is_no_problem(folder, encoding):
    Path("bom.yaml").write_text(SCENARIO, encoding=encoding)
    assert load("bom.yaml").tree["name"] == NAME


def test_json_escapes_of_rare_characters_are_one_character(folder):
    """JSON in ASCII writes 𠮷 as two surrogates."""
    Path("rare.json").write_text(json.dumps({"name": "𠮷😀", "model": "gpt2", "cluster": "single-a100"}), encoding="ascii")
    tree = load("rare.json", "training.sequence_length=128", "training.global_batch=1", "training.micro_batch=1").tree
    assert tree["name"] == "𠮷😀"


# -- pictures ---------------------------------------------------------------------------------------------------------


MACHINE = """\
name: 双路服务器
node:
  gpus: 2
  device: a100-sxm-80gb
  vertices: [{name: 交换机, kind: pcie}, cpu0]
  edges: [{from: "gpu0..1", to: 交换机, kind: pcie4-x16}, {from: 交换机, to: cpu0, kind: pcie4-x16}]
links: {pcie4-x16: {per_direction: 24 GB/s, latency: 0.4 us, source: 测试}}
"""


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_names_are_drawn_with_a_font_that_has_them(folder, monkeypatch, capsys, kind):
    """Where the machine has a Chinese font no glyph is missing (a warning, which is an error here); else a box, and no news."""
    from parsim.report.plots import figure

    Path("机器.yaml").write_text(MACHINE, encoding="utf-8")
    if figure._installed_wide_fonts():
        monkeypatch.setattr(figure, "_boxes", nullcontext)
    assert execute(["topology", "plot", "./机器.yaml", "--out", f"机器图.{kind}"]) == 0
    assert capsys.readouterr().out == f"Wrote 机器图.{kind}\n"
    assert execute(["topology", "show", "./机器.yaml"]) == 0
    assert "  交换机->cpu0  " in capsys.readouterr().out
    assert execute(["run", "实验/训练.yaml", "--quiet", "--out", "图"]) == 0


# -- mistakes of Chinese input methods --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("model: gpt2", "model：gpt2", ["错.yaml:2:6  fullwidth colon '：' (U+FF1A) where YAML needs ASCII; write model: gpt2"]),
        (
            "micro_batch: 16",
            "micro_batch：16",
            ["错.yaml:4:53  training  fullwidth colon '：' (U+FF1A) where YAML needs ASCII; write micro_batch: 16"],
        ),
        ("1024, global", "1024， global", ["错.yaml:4:33  fullwidth comma '，' (U+FF0C) where YAML needs ASCII; write ','"]),
        (
            "model: gpt2",
            "\u3000model: gpt2",
            ["错.yaml:2:1  ideographic space (U+3000) where YAML needs ASCII; write model with ASCII spaces"],
        ),
    ],
)
def test_full_width_marks_are_named_with_their_place(folder, capsys, before, after, expected):
    Path("错.yaml").write_text(SCENARIO.replace(before, after), encoding="utf-8")
    assert execute(["check", "错.yaml"]) == 2
    assert capsys.readouterr().err.splitlines()[:-1] == expected


def test_all_of_them_at_once(folder, capsys):
    text = SCENARIO.replace("model: gpt2", "model：gpt2").replace("cluster: {", "cluster： ｛").replace("64, micro", "64，micro")
    Path("错.yaml").write_text(text, encoding="utf-8")
    assert execute(["check", "错.yaml"]) == 2
    err = capsys.readouterr().err
    assert [line.partition("  ")[0] for line in err.splitlines()[:-1]] == ["错.yaml:2:6", "错.yaml:3:8", "错.yaml:4:51"]
    assert err.endswith("3 problems. Nothing was simulated.\n")


def test_full_width_marks_in_texts_are_welcome(folder, capsys):
    text = SCENARIO.replace(NAME, '"甲：乙，丙"  # 注释：随便，写') + "software: {profile: pytorch-2}\n"
    Path("对.yaml").write_text(text, encoding="utf-8")
    assert load("对.yaml").tree["name"] == "甲：乙，丙"


def test_a_full_width_equals_sign_on_the_command_line(folder, capsys):
    assert execute(["check", "实验/训练.yaml", "training.micro_batch＝8"]) == 2
    assert "write = instead of the full-width ＝ (U+FF1D)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("encoding", "hint"),
    [("gbk", "if it is GBK: iconv -f gb18030 -t utf-8"), ("utf-16", "it is UTF-16: iconv -f utf-16 -t utf-8")],
)
def test_a_file_of_another_encoding_says_how_to_convert_it(folder, capsys, encoding, hint):
    Path("旧.yaml").write_text(SCENARIO.replace("𠮷", ""), encoding=encoding)
    assert execute(["check", "旧.yaml"]) == 2
    assert hint in capsys.readouterr().err


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [*NARROW, "utf-8"])
def test_json_is_the_same_document_on_every_stream(folder, monkeypatch, encoding):
    code, raw = said(monkeypatch, encoding, "run", "实验/训练.yaml", "--json")
    assert code == 0
    document = json.loads(raw.decode("utf-8"))
    assert document["scenario"]["name"] == NAME
    assert raw.isascii() == (encoding != "utf-8")


@pytest.mark.parametrize("encoding", NARROW)
def test_errors_as_json_too(folder, monkeypatch, encoding, capsys):
    Path("错.yaml").write_text(SCENARIO.replace("model: gpt2", "model：gpt2"), encoding="utf-8")
    code, raw = said(monkeypatch, encoding, "check", "错.yaml", "--json")
    assert code == 2
    assert json.loads(raw)["errors"][0]["file"] == "错.yaml"


@pytest.mark.parametrize("encoding", NARROW)
def test_tables_keep_their_columns_on_every_stream(folder, monkeypatch, encoding):
    _, wide = said(monkeypatch, "utf-8", "run", "实验/训练.yaml", "--no-pictures")
    code, raw = said(monkeypatch, encoding, "run", "实验/训练.yaml", "--no-pictures")
    assert code == 0
    shown = raw.decode(encoding)
    assert "internal error" not in shown
    # rich draws its rules otherwise there; what stands in the tables stands in the same columns
    columns, expected = ([width(line) for line in text.splitlines() if set(line) - set("─-+| ")] for text in (shown, wide.decode("utf-8")))
    assert columns == expected


@pytest.mark.parametrize("encoding", NARROW)
def test_what_show_prints_can_be_read_again(folder, monkeypatch, encoding):
    code, raw = said(monkeypatch, encoding, "show", "实验/训练.yaml")
    assert code == 0
    Path("again.yaml").write_text(raw.decode(encoding), encoding="utf-8")
    assert load("again.yaml").tree == load("实验/训练.yaml").tree


@pytest.mark.parametrize(
    "arguments", [["fit", "llama-7b", "--on", "dgx-a100-80gb"], ["explain", "实验/训练.yaml"], ["list"], ["explain", "mfu"]]
)
def test_other_commands_on_an_ascii_stream(folder, monkeypatch, arguments):
    code, raw = said(monkeypatch, "ascii", *arguments)
    assert code == 0
    assert raw.isascii()


def test_a_machine_read_from_standard_input(monkeypatch, capsys):
    """What a Chinese Windows terminal pipes has a BOM; the stream's own encoding does not matter."""
    text = (Path(__file__).parents[1] / "data" / "topo-m" / "02-v100-sxm2-4gpu-dell-c4140.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + text), encoding="ascii"))
    assert execute(["import", "topo", "-", "--name", "机器", "--gpu", "v100-sxm2-16gb"]) == 0
    assert 'name: "机器"' in capsys.readouterr().out


def test_a_value_that_json_has_no_word_for(folder, monkeypatch):
    """NaN in an error document would be no JSON."""
    code, raw = said(monkeypatch, "utf-8", "check", "实验/训练.yaml", "training.global_batch=.nan", "--json")
    assert code == 2
    assert json.loads(raw, parse_constant=pytest.fail)["errors"][0]["value"] == "NaN"


def test_plain_letters():
    assert plainly("气泡 █ µs – 甲", "ascii") == "???? # us - ??"
    assert plainly("气泡 – é", "gbk") == "气泡 – é"
    assert plainly("气泡 · 𠮷", "gbk") == "气泡 · ??"
    assert plainly("显存", "ascii", escapes=True) == "\\u663e\\u5b58"
    assert plainly("显存", None) == "显存"
    assert printable("\ud842\udfb7") == "𠮷"
