# SPDX-License-Identifier: MIT
"""Each header alone, and the umbrella, under warnings as errors, without RTTI, with macros defined that hosts are known to define."""

import shutil

from common import INCLUDE, ROOT, WARNINGS, Report, arguments, flags, foreign_includes, headers, include_if_there, other_compilers, run, run_all

HOSTILE = """
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define near
#define far
#define small char
#define interface struct
#define ERROR 0
#define IN
#define OUT
#define OPTIONAL
#define TRUE 1
#define FALSE 0
#define VOID void
#define CONST const
#define DELETE 0x00010000L
#define I (__extension__ 1.0iF)
#define major(device) gnu_dev_major(device)
#define minor(device) gnu_dev_minor(device)
#define check(condition) do { if (!(condition)) hostile_macro(); } while (0)
#define verify(condition) hostile_macro(condition)
#define Bool int
#define None 0L
#define Status int
#define Success 0
#define B0 0000000
#define ECHO 0000010
"""


def main():
    args = arguments(__doc__)
    report = Report()
    folder = args.build / "hostile"
    folder.mkdir(exist_ok=True)
    # Third parties come first: they need not survive such macros, only we must. Precompiled, since every unit has them.
    commands = {}
    for compiler in other_compilers(args.cxx):
        clang = "clang" in compiler
        own = folder / ("clang" if clang else "gcc")
        own.mkdir(exist_ok=True)
        foreign = own / "foreign.hpp"
        foreign.write_text(include_if_there(foreign_includes()))
        options = [compiler, *flags(args, "gnu++2b" if clang else "c++20"), *WARNINGS, "-fno-rtti", "-fopenmp"]
        made = run([*options, "-x", "c++-header", foreign, "-o", f"{foreign}.{'pch' if clang else 'gch'}"])
        report.check(made.returncode == 0, f"third-party headers with {compiler}", made.stdout)
        for name in headers():
            unit = own / (name.replace("/", "_") + ".cpp")
            unit.write_text(f"{HOSTILE}#include <{name}>\n#include <{name}>\n")
            commands[f"{name} with {compiler}"] = [*options, "-include", foreign, "-fsyntax-only", unit]
    # On Windows the macros come from the system's own header, before everything else.
    mingw, cross = shutil.which("x86_64-w64-mingw32-g++-posix"), ROOT / "build" / "cross-headers" / "include"
    if mingw and cross.is_dir():
        unit = folder / "windows.cpp"
        unit.write_text("#include <windows.h>\n" + include_if_there(f for f in foreign_includes() if f != "windows.h")
                        .replace("#if", "#undef min\n#undef max\n#if", 1)
                        + "#define min(a, b) (((a) < (b)) ? (a) : (b))\n#define max(a, b) (((a) > (b)) ? (a) : (b))\n"
                        + "#include <quena/quena.hpp>\n")
        commands["umbrella after <windows.h>"] = [mingw, "-std=c++20", f"-I{INCLUDE}", "-isystem", cross, "-isystem", cross / "eigen3",
                                                  *WARNINGS, "-fsyntax-only", unit]
    for name, result in run_all(commands).items():
        report.check(result.returncode == 0, name, result.stdout)
    report.finish()


main()
