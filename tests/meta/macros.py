# SPDX-License-Identifier: MIT
"""Which macros the headers leave behind or take away: only QUENA_* may be defined, and nobody else's may be undefined."""

import functools
import pathlib
import re

from common import INCLUDE, Report, arguments, flags, headers, run_all


@functools.cache
def restored_macros(path):
    """What a header of ours pushes and pops again, which the preprocessor's output does not show."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    pushed, popped = (re.findall(rf'#pragma {word}_macro\("(\w+)"\)', text) for word in ("push", "pop"))
    return set(pushed) if sorted(pushed) == sorted(popped) else set()


def main():
    args = arguments(__doc__)
    report = Report()
    commands = {}
    for name in headers():
        unit = args.build / "macros" / (name.replace("/", "_") + ".cpp")
        unit.parent.mkdir(exist_ok=True)
        unit.write_text(f"#include <{name}>\n")
        # -dD keeps every #define and #undef at its place, so each can be laid at the door of a file.
        commands[name] = [args.cxx, *flags(args), "-E", "-dD", unit]
    left = set()
    for name, result in run_all(commands).items():
        report.check(result.returncode == 0, f"{name}: preprocesses",
                     "\n".join(line for line in result.stdout.splitlines() if " error: " in line))
        ours, own, undefined, kept = False, {}, [], set()
        for line in result.stdout.splitlines():
            place = re.match(r'# \d+ "([^"]*)"', line)
            if place:
                ours = place[1].startswith(str(INCLUDE))
                kept = restored_macros(place[1]) if ours else set()
                continue
            define = re.match(r"#define (\w+)", line)
            undef = re.match(r"#undef (\w+)", line)
            if define and ours:
                own[define[1]] = line
            elif undef and undef[1] in own:
                del own[undef[1]]
            elif undef and ours and undef[1] not in kept:
                undefined.append(undef[1])
        wrong = [line for macro, line in own.items() if not macro.startswith("QUENA_")]
        report.check(not wrong, f"{name}: leaves only QUENA_ macros", "\n".join(wrong))
        foreign = [m for m in undefined if not m.startswith("QUENA_")]
        report.check(not foreign, f"{name}: undefines nobody else's macros", "\n".join(foreign))
        left |= set(own)
    print("macros left behind:", ", ".join(sorted(left)) or "none")
    report.finish()


main()
