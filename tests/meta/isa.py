# SPDX-License-Identifier: MIT
"""Lists functions of a program that use ymm or zmm registers outside the ISA namespaces (a path with ::avx2:: or ::avx512…::).
A program built for baseline x86-64 must have none: such code would run on machines that cannot run it."""

import re
import subprocess

from common import Report, arguments


def uses(binary, pattern):
    """{mangled function: first instruction that matches} of a program."""
    found, function = {}, "?"
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", binary], capture_output=True, text=True, errors="replace", check=True)
    for line in text.stdout.splitlines():
        head = re.match(r"[0-9a-f]+ <(.+)>:$", line)
        if head:
            function = head[1]
        elif pattern.search(line):
            found.setdefault(function, line.strip())
    return found


def belongs_to_isa(name):
    """Whether a demangled function lies in an ISA namespace itself (not: has an argument from there)."""
    path = re.sub(r"^(?:void|bool|auto|unsigned|int|float|long|char|std::\w+|const|\*|&|\s)+\s", "", name)
    depth, plain = 0, ""
    for c in path:  # cut template arguments and parameter lists
        depth -= c in ">)"
        if depth == 0:
            plain += c
        depth += c in "<("
    return not plain.startswith("std::") and re.search(r"::(?:isa_)?(?:avx2|avx512)\w*::", plain) is not None


def main():
    args = arguments(__doc__, ("binaries", {"nargs": "+"}))
    report = Report()
    wide = re.compile(r"%[yz]mm")
    for binary in args.binaries:
        found = uses(binary, wide)
        names = subprocess.run(["c++filt"], input="\n".join(found), capture_output=True, text=True, check=True).stdout.splitlines()
        inside = 0
        for (mangled, line), name in zip(found.items(), names):
            good = belongs_to_isa(name)
            inside += good
            if not good:
                report.check(False, f"{binary}: {name} has {line}")
        report.check(True, binary)
        print(f"{binary}: {inside} functions of the ISA namespaces use wide registers, {len(found) - inside} others do")
    report.finish()


if __name__ == "__main__":
    main()
