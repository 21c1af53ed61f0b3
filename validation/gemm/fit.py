"""Refit the kernel parameters of device files to the measurements here: python validation/gemm/fit.py [--write] [DEVICE ...].

Prints the fit beside the numbers in the device file. --write puts it there, except where devices.yaml says why they stay.
"""

from __future__ import annotations

import argparse
import sys

from parsim.validation.kernel_fit import refit, write
from parsim.validation.published_kernels import kernel_measurements


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="*")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    measured = kernel_measurements()
    for name in chosen.device or [name for name, entry in measured.entries.items() if entry.fits]:
        found = refit(measured, name)
        sys.stdout.write(f"{name}\n")
        for key, value in found.fitted.items():
            sys.stdout.write(f"  {key:<20} fitted {value:<10g} in the file {found.written[key]:g}\n")
        for of, (fitted, written) in found.errors.items():
            sys.stdout.write(f"  mean |error|, {of:<6} fitted {100 * fitted:.2f} %, the file {100 * written:.2f} %\n")
        if found.entry.keep:
            sys.stdout.write(f"  kept: {found.entry.keep}\n")
        elif chosen.write:
            for target in found.entry.files:
                sys.stdout.write(f"  wrote {write(found, target)}\n")


if __name__ == "__main__":
    main()
