# SPDX-License-Identifier: MIT
"""What the meta tests share: the list of headers, the compiler and its flags, running many commands at once."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wpedantic", "-Werror"]


def arguments(description, *extra):
    """Options that every script has; `extra` holds (name, keywords) of further ones."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cxx", default=os.environ.get("CXX", "g++"), help="compiler")
    parser.add_argument("--isystem", action="append", default=[], help="folder of third-party headers (repeatable)")
    parser.add_argument("--build", default=str(ROOT / "build" / "meta"), help="folder for what is made")
    for name, keywords in extra:
        parser.add_argument(name, **keywords)
    args = parser.parse_args()
    if not args.isystem:
        args.isystem = [p for p in ("/usr/include/eigen3",) if os.path.isdir(p)]
    # A compiler's own folder needs no mention, and mentioned it would hide the C headers behind C++'s.
    args.isystem = [p for p in args.isystem if p and os.path.realpath(p) != "/usr/include"]
    args.build = pathlib.Path(args.build)
    args.build.mkdir(parents=True, exist_ok=True)
    return args


def flags(args, standard="c++20"):
    result = [f"-std={standard}", f"-I{INCLUDE}"]
    for folder in args.isystem:
        result += ["-isystem", folder]
    return result


def headers():
    """Every public header, by its path under include/ ("quena/core/error.hpp"), the umbrella last."""
    found = sorted(p.relative_to(INCLUDE).as_posix() for p in INCLUDE.glob("quena/**/*.hpp"))
    return sorted(found, key=lambda name: (name == "quena/quena.hpp", name))


def sources():
    """Every file of the library that the preprocessor sees."""
    return sorted(p for e in ("hpp", "inl", "cuh") for p in INCLUDE.glob(f"quena/**/*.{e}"))


def foreign_includes():
    """Standard and third-party headers that the library includes anywhere."""
    names = set()
    for path in sources():
        names.update(re.findall(r"^\s*#\s*include\s*<([^>]+)>", path.read_text(encoding="utf-8"), re.M))
    return sorted(n for n in names if not n.startswith("quena/") and n != "intrin.h")  # clang has it everywhere, but for Windows only


def include_if_there(names):
    return "".join(f"#if __has_include(<{n}>)\n#include <{n}>\n#endif\n" for n in names)


def run(command, **keywords):
    return subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          **keywords)


def run_all(commands):
    """Runs {name: command} on all cores; gives {name: result}."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        futures = {name: pool.submit(run, command) for name, command in commands.items()}
        return {name: future.result() for name, future in futures.items()}


def other_compilers(cxx):
    """The compilers to check with: the one of the build, and clang++ or g++ beside it where there is one."""
    result = [cxx]
    for name in ("g++", "clang++"):
        if shutil.which(name) and ("clang" in os.path.basename(cxx)) != ("clang" in name):
            result.append(name)
    return result


class Report:
    """Counts checks; prints those that fail; sets the exit status."""

    def __init__(self):
        self.passed = 0
        self.failed = 0

    def check(self, good, what, detail=""):
        if good:
            self.passed += 1
            return
        self.failed += 1
        print(f"FAILED {what}")
        if detail:
            print("\n".join("    " + line for line in detail.strip().splitlines()[:12]))

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(1 if self.failed or not self.passed else 0)
