# SPDX-License-Identifier: MIT
"""Builds and runs one consumer project: run.py KIND --build DIR [--cxx CXX] [--install-from BUILD]"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run(*command, **keywords):
    print("+", *command, flush=True)
    subprocess.run([str(c) for c in command], check=True, **keywords)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["find_package", "add_subdirectory", "fetch_content", "pkg_config", "single_header"])
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--cxx", default="g++")
    args = parser.parse_args()
    folder = (args.build / args.kind).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = dict(os.environ, CXX=args.cxx)
    program = folder / "consumer"
    prefix = folder / "prefix"
    ccache = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []

    if args.kind in ("find_package", "pkg_config"):  # both use what an installation leaves
        run("cmake", "-S", ROOT, "-B", folder / "library", f"-DCMAKE_INSTALL_PREFIX={prefix}", f"-DCMAKE_CXX_COMPILER={args.cxx}",
            "-DQUENA_BUILD_TESTS=OFF", "-DQUENA_BUILD_EXAMPLES=OFF", "-DQUENA_BUILD_BENCH=OFF", stdout=subprocess.DEVNULL)
        run("cmake", "--install", folder / "library", stdout=subprocess.DEVNULL)
        for path in prefix.rglob("*.cmake"):
            if re.search(re.escape(str(ROOT)) + r"(/|\")", path.read_text()) and str(ROOT) not in str(prefix):
                sys.exit(f"{path} names the source folder")
        # An installation may be moved as a whole.
        prefix = prefix.rename(folder / "moved")

    if args.kind in ("find_package", "add_subdirectory", "fetch_content"):
        run("cmake", "-S", HERE / args.kind, "-B", folder / "consumer_build", f"-DCMAKE_CXX_COMPILER={args.cxx}", *ccache,
            "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DQUENA_SOURCE_DIR={ROOT}",
            stdout=subprocess.DEVNULL)
        run("cmake", "--build", folder / "consumer_build", "--target", "consumer")
        program = folder / "consumer_build" / "consumer"
    elif args.kind == "pkg_config":
        environment["PKG_CONFIG_PATH"] = str(prefix / "share" / "pkgconfig")
        run("make", "-C", HERE / args.kind, f"OUT={program}", env=environment)
    else:
        run(sys.executable, ROOT / "cmake" / "amalgamate.py", ROOT / "include/quena/quena.hpp", folder / "single/quena/quena.hpp")
        run("make", "-C", HERE / args.kind, f"OUT={program}", f"SINGLE={folder / 'single'}", env=environment)
    out = subprocess.run([program, ROOT / "examples/data/stories260K"], check=True, capture_output=True, text=True).stdout
    print(out)
    if "there was" not in out:
        sys.exit("the program does not tell a story")


main()
