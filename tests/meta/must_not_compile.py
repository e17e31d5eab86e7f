# SPDX-License-Identifier: MIT
"""Wrong uses must be refused by the compiler: every file of must_not_compile/ compiles as it is and fails with -DQUENA_WRONG,
with the message that its line `// error: REGEX` names."""

import re

from common import ROOT, Report, arguments, flags, other_compilers, run_all


def main():
    args = arguments(__doc__)
    report = Report()
    commands, expected = {}, {}
    for compiler in other_compilers(args.cxx):
        for path in sorted((ROOT / "tests/meta/must_not_compile").glob("*.cpp")):
            base = [compiler, *flags(args), "-fsyntax-only", path]
            commands[(path.stem, compiler, "right")] = base
            commands[(path.stem, compiler, "wrong")] = [*base, "-DQUENA_WRONG"]
            expected[path.stem] = re.search(r"// error: (.*)", path.read_text())[1].strip()
    for (case, compiler, kind), result in run_all(commands).items():
        if kind == "right":
            report.check(result.returncode == 0, f"{case} with {compiler}: the right form compiles", result.stdout)
        else:
            report.check(result.returncode != 0, f"{case} with {compiler}: the wrong form is refused")
            report.check(re.search(expected[case], result.stdout) is not None,
                         f"{case} with {compiler}: the message is about /{expected[case]}/", result.stdout)
    report.finish()


main()
