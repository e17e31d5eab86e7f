# SPDX-License-Identifier: MIT
"""What a unit that uses the library asks the linker for: nothing that prints, exits, aborts or changes the locale.

Built with NDEBUG and optimised, nothing of the kind may be there at all. Built without NDEBUG, only the assertions that Eigen and
nlohmann::json make in their own functions may be: whether those are armed is the host's choice, as it is for its other code."""

import re
import subprocess

from common import ROOT, Report, arguments, flags, other_compilers, run

FORBIDDEN = re.compile(
    r"^(abort|exit|_exit|_Exit|quick_exit|raise|kill|system|setlocale|__assert_fail|__assert_perror_fail"
    r"|f?putc|f?puts|putchar|v?f?printf|(__)?v?f?printf(_chk)?|perror|psignal|fwrite|stdout|stderr|stdin"
    r"|std::(cout|cerr|clog|wcout|wcerr|wclog|cin)|std::locale::global.*|std::ios_base::Init::.*|_ZSt[45](cout|cerr|clog)|_ZNSt8ios_base4InitC1Ev)(@.*)?$")

THIRD_PARTY = re.compile(r"_ZZ?NK?(8nlohmann|5Eigen)")


def undefined(path):
    text = subprocess.run(["nm", "-uC", path], capture_output=True, text=True, check=True).stdout
    return [line.split(maxsplit=1)[1] for line in text.splitlines() if line.strip()]


def references(path):
    """[(mangled function, symbol)] of every relocation; each function has its own section (-ffunction-sections)."""
    text = subprocess.run(["readelf", "-rW", path], capture_output=True, text=True, check=True).stdout
    pairs, section = [], None
    for line in text.splitlines():
        if line.startswith("Relocation section"):
            head = re.match(r"Relocation section '\.rela?\.text\.(?:unlikely\.|hot\.|startup\.|exit\.)?([^']*)'", line)
            section = head[1] if head else None
        elif section:
            fields = line.split()
            if len(fields) >= 5 and re.match(r"[0-9a-f]{8}", fields[0]):
                pairs.append((section, fields[4]))
    return pairs


def main():
    args = arguments(__doc__)
    report = Report()
    unit = ROOT / "tests/meta/use_everything.cpp"
    for compiler in other_compilers(args.cxx):
        stem = args.build / f"symbols_{'clang' if 'clang' in compiler else 'gcc'}"
        for name, options in (("release", ["-O2", "-DNDEBUG"]), ("debug", ["-O0", "-ffunction-sections"])):
            made = f"{stem}_{name}.o"
            result = run([compiler, *flags(args), *options, "-c", unit, "-o", made])
            report.check(result.returncode == 0, f"{compiler} {name}: compiles", result.stdout)
            if result.returncode:
                continue
            if name == "release":
                wrong = [s for s in undefined(made) if FORBIDDEN.match(s)]
                report.check(not wrong, f"{compiler} {name}: asks for nothing forbidden", "\n".join(wrong))
            else:
                wrong = [f"{symbol} in {function}" for function, symbol in references(made)
                         if FORBIDDEN.match(symbol) and not THIRD_PARTY.match(function)]
                report.check(not wrong, f"{compiler} {name}: asks for nothing forbidden", "\n".join(wrong))
    report.finish()


main()
