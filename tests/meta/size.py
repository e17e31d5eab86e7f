# SPDX-License-Identifier: MIT
"""How large a stripped program is; more than 3 MB fails."""

import shutil
import subprocess

from common import Report, arguments


def main():
    args = arguments(__doc__, ("programs", {"nargs": "+"}))
    report = Report()
    for program in args.programs:
        copy = args.build / "stripped"
        shutil.copy(program, copy)
        subprocess.run(["strip", copy], check=True)
        n_bytes = copy.stat().st_size
        print(f"{program}: {n_bytes / 1e6:.2f} MB stripped")
        report.check(n_bytes <= 3_000_000, f"{program} has at most 3 MB")
    report.finish()


main()
