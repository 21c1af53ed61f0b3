"""Files are whole or not there; those of one answer all or none; what the disk refuses is a finding."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from parsim.cli import execute
from parsim.errors import InputError
from parsim.report.write import check_folder, replacing, write_file, write_new, write_together
from parsim.scenario.files import read_text

Disk = Callable[[int], AbstractContextManager[None]]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_all_or_none(tmp_path: Path, full_disk: Disk) -> None:
    folder = tmp_path / "a" / "b"
    with full_disk(1000), pytest.raises(InputError, match="large  cannot be written: File too large"):
        write_together(folder, {"small": b"1", "large": b"2" * 2000})
    assert names(tmp_path) == [], "folders that were made for them go, too"
    write_together(folder, {"small": b"1", "large": b"2"})
    with full_disk(1000), pytest.raises(InputError):
        write_together(folder, {"small": b"3", "large": lambda out: out.write(b"4" * 2000)})
    (folder / "taken").mkdir()
    with pytest.raises(InputError, match="taken  cannot be written: Is a directory"):
        write_together(folder, {"small": b"3", "taken": b"4"})
    assert names(folder) == ["large", "small", "taken"]
    assert ((folder / "small").read_bytes(), (folder / "large").read_bytes()) == (b"1", b"2"), "those of before stay"


def test_one_file(tmp_path: Path, full_disk: Disk) -> None:
    path = tmp_path / "one"
    write_new(path, "1")
    with pytest.raises(InputError, match="exists and is not overwritten"):
        write_new(path, "2")
    with full_disk(1000), pytest.raises(InputError, match="one  cannot be written: File too large"):
        write_file(path, b"2" * 2000)
    assert (names(tmp_path), path.read_bytes()) == (["one"], b"1")
    link = tmp_path / "link"
    link.symlink_to(path)
    write_file(link, b"3")
    assert (link.is_symlink(), path.read_bytes()) == (True, b"3")
    for bad in (tmp_path / ("x" * 300), tmp_path / "no" / "one", path / "one", Path("a\0b")):
        with pytest.raises(InputError, match="cannot be written: "):
            write_file(bad, b"")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_devices_and_pipes_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    write_file(Path(os.devnull), b"1")
    assert not Path(os.devnull).is_file()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="pipe  cannot be written: No such device or address"):
        write_file(pipe, b"1")
    with pytest.raises(InputError, match="is a pipe without a writer, expected a file"):
        read_text(pipe)
    with pytest.raises(InputError, match="is a device, expected a file"):
        read_text(Path("/dev/zero"))
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    while True:  # until the reader has opened it
        try:
            write_file(pipe, b"through")
            break
        except InputError:
            pass
    reader.join(10)
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, b"back")
    threading.Timer(0.1, os.close, [writer]).start()
    assert (found, read_text(pipe)) == (["through"], "back")


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError), replacing(tmp_path / "x") as out:
        out.write(b"1" + "2")  # type: ignore[operator]
    assert names(tmp_path) == []


SCHEDULE = "schedule gpipe -p 2 -m 2"
WRITERS = [
    "run gpt2-ddp-4x-a100 --out OUT", "compare gpt2-ddp-4x-a100 training.micro_batch=4,8 --workers 1 --out OUT",
    "explain mlp-1x-a100 --workers 1 --out OUT", "timeline gpt2-ddp-4x-a100 --out OUT/t.svg", "trace gpt2-ddp-4x-a100 --out OUT.json",
    "trace gpt2-ddp-4x-a100 --per-rank --out OUT", "trace gpt2-ddp-4x-a100 --memory-snapshot OUT.pickle",
    "export gpt2-ddp-4x-a100 --to fsdp --out OUT.yaml", "new OUT", "topology plot dgx-a100-80gb --out OUT.svg",
    "collective all-reduce --on dgx-a100-80gb --figure OUT.svg", f"{SCHEDULE} --csv OUT.csv", f"{SCHEDULE} --pdf OUT.pdf",
    "sweep gpt2-ddp-4x-a100 training.micro_batch=4,8 --workers 1 --out OUT",
    "size gpt2 --tokens 1B --on dgx-a100-80gb --days 99 --gpus 1 --workers 1 --out OUT",
    "fit gpt2 --on dgx-a100-80gb --save OUT.yaml",
]  # fmt: skip


@pytest.mark.parametrize("command", WRITERS)
def test_no_command_leaves_half_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], full_disk: Disk, command: str) -> None:
    words = command.replace("OUT", str(tmp_path / "out")).split()
    with full_disk(40):
        assert execute(words) == 2
    _, error = capsys.readouterr()
    assert "cannot be written: File too large" in error
    assert "Wrote" not in error
    assert "Nothing was simulated" not in error
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    assert left == []


@pytest.mark.parametrize(
    "command",
    [
        "run gpt2-ddp-4x-a100",
        "explain gpt2-ddp-4x-a100",
        "compare gpt2-ddp-4x-a100 training.micro_batch=1,2 --workers 1",
        "plan gpt2 --on hgx-h100 --workers 1",
        "size gpt2 --tokens 1B --days 1 --on hgx-h100 --workers 1",
    ],
)
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_simulated(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parsim.simulation.engine.Engine.run", lambda *_: pytest.fail("simulated"))
    (tmp_path / "file").touch()
    assert execute([*command.split(), "--out", str(tmp_path / "file" / "x")]) == 2
    assert capsys.readouterr().err.endswith(f"{tmp_path / 'file' / 'x'}  cannot be written: Not a directory\n1 problem.\n")


def test_looking_at_a_folder_leaves_nothing(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    assert names(tmp_path) == []
    (tmp_path / "mine").mkdir()
    check_folder(tmp_path / "mine")
    assert names(tmp_path) == ["mine"]
