"""What lies in the repository and what comes out of it: data, versions, nothing of anybody's machine."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import parsim
from parsim.scenario import files

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = {".git", ".venv", "dist", "build", "parsim-out", "__pycache__", ".hypothesis"}


def committed() -> list[Path]:
    """The files of the repository: what git knows, or, in a copy without git, what is there."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0 and (ROOT / ".git").exists():
        return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    every = (path for path in ROOT.rglob("*") if path.is_file())
    return [
        path
        for path in every
        if not any(part in LEFT_OUT or part.endswith(("_cache", ".egg-info")) for part in path.relative_to(ROOT).parts)
    ]


# spelled in two halves, so that this file passes its own test
FORBIDDEN = {
    "the address of a package index": r"pypi" + r"\.org|python" + r"hosted|registry\.npm" + r"js|/sim" + r"ple/",
    "an option that names an index": r"(?<!no-emit-)(?:index" + r"-url|find" + r"-links|trusted" + r"-host)",
    "a path of somebody's machine": r"(?<![\w.*~/])/(?:wo" + r"rk|ho" + r"me|ro" + r"ot|o" + r"pt|Us" + r"ers)/[\w.]",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_committed_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = []
    for path in committed():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert not found


def test_one_version_everywhere() -> None:
    try:
        installed = metadata.version("parsim")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        installed = parsim.__version__
    assert installed == parsim.__version__
    assert f"\nversion: {parsim.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## [{parsim.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", files.KINDS)
def test_shipped_data_is_found(kind: str) -> None:
    assert files.names(kind)


def test_the_wheel_takes_along_what_stands_beside_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {name: f"parsim/_data/{name}" for name in ("studies", "topologies", "scenarios", "validation")}


@pytest.mark.parametrize("pins", ["constraints.txt", "constraints-docs.txt"])
def test_every_dependency_is_pinned_with_hashes(pins: str) -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = table["project"]
    groups = [project["optional-dependencies"]["docs"]] if "docs" in pins else table["dependency-groups"].values()
    wanted = [*project["dependencies"], *(item for group in groups for item in group)]
    pinned = pinned_in(pins)
    assert {re.split(r"[<>=\[]", name)[0].replace(".", "-") for name in wanted} <= set(pinned)


def test_what_both_pin_has_one_version() -> None:
    first, second = pinned_in("constraints.txt"), pinned_in("constraints-docs.txt")
    assert {name: version for name, version in second.items() if first.get(name, version) != version} == {}


def pinned_in(pins: str) -> dict[str, str]:
    """name -> version of a file in which every package has hashes"""
    blocks = re.split(r"\n(?=\S)", (ROOT / pins).read_text(encoding="utf-8").strip())
    found = [re.match(r"([a-z0-9-]+)==(\S+) \\\n +--hash=sha256:", block) for block in blocks]
    assert None not in found
    return {match[1]: match[2] for match in found if match}


def test_names_are_unique_across_the_tests() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize(
    "page", ["docs/architecture.md", "docs/decisions/001-rooms-and-kernel.md", "docs/decisions/002-collective-cost-in-hardware.md"]
)
def test_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`(?:parsim/)?([a-z_]+(?:/[a-z_0-9]+)*\.py)`", (ROOT / page).read_text(encoding="utf-8"))
    assert named
    assert not [name for name in named if not (ROOT / "parsim" / name).is_file()]


def instructions(name: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions: word, and the rest of the line."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [(word, rest) for line in lines if line and not line.startswith("#") for word, _, rest in [line.partition(" ")]]


def test_the_image_is_installed_as_ci_installs_the_wheel() -> None:
    """`.ci/run` executes this installation, from the same pins, in a virtual environment: there is no Docker there."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    runs = [rest for word, rest in instructions("Dockerfile") if word == "RUN"]
    pins = re.search(r"sed -n '[^']+' constraints\.txt", script)
    assert pins
    assert runs[0] == f"{pins[0]} > /pins.txt"
    assert "PIP_CONSTRAINT=/pins.txt" in runs[1]
    assert 'PIP_CONSTRAINT="$work/pins.txt"' in script
    assert runs[1].endswith("pip install --no-cache-dir .")


def test_the_image_runs_parsim_and_not_as_root() -> None:
    last = dict(instructions("Dockerfile"))
    assert (last["USER"], last["WORKDIR"], last["VOLUME"], last["ENTRYPOINT"]) == ("parsim", "/work", "/work", '["parsim"]')
    assert [word for word, _ in instructions("Dockerfile")].index("USER") > 0
    assert {rest.split(" AS ")[0] for word, rest in instructions("Dockerfile") if word == "FROM"} == {"python:3.11-slim"}


def test_the_image_is_built_from_what_the_wheel_needs() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    taken = {line[1:] for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    beside = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert taken == {*beside, "parsim", "pyproject.toml", "constraints.txt", "LICENSE", project["project"]["readme"]}
