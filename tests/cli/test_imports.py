"""A command imports what it uses: libraries that take a tenth of a second to load are not there where nobody needs them."""

import shlex
import subprocess
import sys

import pytest

PICTURES = ("matplotlib", "PIL")
SIMULATION = ("simpy", "networkx", "numpy", "parsim.run", "parsim.simulation", "parsim.program", "parsim.study")
DESCRIPTION = ("ruamel", "parsim.hardware", "parsim.model", "parsim.scenario.schema")
TABLES = ("rich",)

UNUSED = {
    "--help": (*PICTURES, *SIMULATION, *DESCRIPTION, *TABLES),
    "--version": (*PICTURES, *SIMULATION, *DESCRIPTION, *TABLES),
    "fit --help": (*PICTURES, *SIMULATION, *DESCRIPTION, *TABLES, "parsim.commands.sweep"),
    "list": (*PICTURES, *SIMULATION, *DESCRIPTION, *TABLES),
    "check gpt3-175b-64x-a100": (*PICTURES, *SIMULATION, *TABLES, "parsim.report", "parsim.theory", "parsim.commands"),
    "show gpt3-175b-64x-a100": (*PICTURES, *SIMULATION, *TABLES, "parsim.report", "parsim.theory", "parsim.commands"),
    "explain mfu": (*PICTURES, *SIMULATION, *DESCRIPTION, *TABLES),
    "flops gpt2": (
        *PICTURES,
        "simpy",
        "networkx",
        "numpy",
        "parsim.run",
        "parsim.hardware",
        "parsim.report.measured",
        "parsim.report.metrics",
        *TABLES,
    ),
    "run mlp-1x-a100 --json": (*PICTURES, "networkx", "parsim.study", *TABLES),
    "fit gpt2 --on '1x a100-80gb'": (*PICTURES, "networkx", *TABLES),
}
"""command -> modules that it leaves alone"""

PROBE = """
import sys
from parsim.cli import execute
code = execute(sys.argv[1:])
sys.stderr.write("\\n".join(sys.modules))
sys.exit(code)
"""


@pytest.mark.parametrize("command", UNUSED)
def test_a_command_imports_what_it_uses(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, *shlex.split(command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stderr.splitlines()
    unwanted = [name for name in UNUSED[command] if any(module == name or module.startswith(f"{name}.") for module in loaded)]
    assert unwanted == []
