# SPDX-License-Identifier: MIT
"""Two units that include the umbrella link into one program: with the same flags, and one built for the baseline beside one built
with -mavx512f -mavx2, in both link orders, with and without optimisation. The linker keeps one copy of each inline function, so
no inline function of the library that the linker may share may have been compiled for AVX, unless its name says so (the inline
namespace QUENA_ABI, or an ISA namespace): the disassembly is searched for such ones. Then the baseline's half is run on a
machine without AVX (emulated).

That run, and on a machine without AVX-512 the native one, is only reported, not judged, where the wide unit comes first and only
functions of others (the standard library's and nlohmann::json's templates, at -O0 even std::vector's) were taken from it: those are
shared by any two such units of any program.
"""

import os
import pathlib
import re
import shutil
import subprocess

from common import ROOT, Report, arguments, flags, other_compilers, run, run_all
from isa import belongs_to_isa, uses


def shared_avx_functions(program):
    """(ours, others'): functions with AVX-coded instructions whose symbol the linker shares between units."""
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    weak = {line.split()[2] for line in symbols.splitlines() if len(line.split()) == 3 and line.split()[1] in "WVu"}
    mangled = [name for name in uses(program, re.compile(r"\tv\w+\s.*%[xyz]mm|\tv\w+\s*$")) if name.split(".")[0] in weak]
    names = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [n for m, n in zip(mangled, names) if re.match(r"_ZN?K?[VK]*Z?N?K?5quena", m)]
    wrong = [n for n in ours if not belongs_to_isa(n) and not re.search(r"quena::v0_(?!0000)\w+::", n)]
    return wrong, [n for n in names if n not in ours]


def main():
    args = arguments(__doc__)
    report = Report()
    source, out, model = ROOT / "tests/meta/link_units", args.build / "link_units", ROOT / "examples/data/stories260K"
    out.mkdir(exist_ok=True)
    x86 = os.uname().machine == "x86_64"
    emulator = shutil.which("qemu-x86_64")
    has_wide = not x86 or "avx512f" in pathlib.Path("/proc/cpuinfo").read_text().split()
    for compiler in other_compilers(args.cxx):
        name = "clang" if "clang" in compiler else "gcc"
        main_object = out / f"{name}_main.o"
        compile_all = {"main": [compiler, *flags(args), "-c", source / "main.cpp", "-o", main_object]}
        for level in ("-O0", "-O2"):
            for unit, options in (("baseline", []), ("wide", ["-mavx512f", "-mavx2"] if x86 else []), ("same", [])):
                function = "run_wide" if unit == "same" else f"run_{unit}"
                compile_all[(level, unit)] = [compiler, *flags(args), level, *options, f"-DQUENA_UNIT={function}", "-c",
                                              source / "unit.cpp", "-o", out / f"{name}{level}_{unit}.o"]
        results = run_all(compile_all)
        for what, result in results.items():
            report.check(result.returncode == 0, f"{compiler} {what} compiles", result.stdout)
        if any(r.returncode for r in results.values()):
            continue
        for level in ("-O0", "-O2"):
            for order in (("baseline", "same"), ("baseline", "wide"), ("wide", "baseline")):
                title = f"{compiler} {level} {'+'.join(order)}"
                program = out / f"{name}{level}_{'_'.join(order)}"
                result = run([compiler, main_object, *(out / f"{name}{level}_{unit}.o" for unit in order), "-pthread", "-o", program])
                report.check(result.returncode == 0, f"{title} links", result.stdout)
                if result.returncode:
                    continue
                native = run([program, "baseline", model])
                if native.returncode == 0 or order[0] != "wide" or has_wide:
                    report.check(native.returncode == 0, f"{title}: the baseline half runs", native.stdout)
                other = run([program, "wide", model])
                if other.returncode == 0:  # a machine without AVX-512 may refuse, and rightly
                    report.check(other.stdout == native.stdout, f"{title}: both halves agree", native.stdout + other.stdout)
                ours, others = shared_avx_functions(program) if x86 else ([], [])
                report.check(not ours, f"{title}: shares no function that was made for AVX", "\n".join(ours))
                if x86 and emulator:
                    old = run([emulator, "-cpu", "Nehalem", program, "baseline", model])
                    same = [l for l in old.stdout.splitlines() if not l.startswith("qemu")] == native.stdout.splitlines()
                    if order[0] == "wide" and others and not ours:
                        print(f"{title}: on a machine without AVX the baseline half {'gives the same' if same else 'fails'}; "
                              f"{len(others)} functions of others come from the wide unit")
                    else:
                        report.check(same, f"{title}: the baseline half gives the same on a machine without AVX", old.stdout)
    report.finish()


main()
