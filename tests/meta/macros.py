# SPDX-License-Identifier: MIT
"""Which macros the headers leave behind or take away: only QUENA_* may be defined, and nobody else's may be undefined."""

import re

from common import INCLUDE, Report, arguments, flags, headers, run_all


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
        ours, own, undefined = False, {}, []
        for line in result.stdout.splitlines():
            place = re.match(r'# \d+ "([^"]*)"', line)
            if place:
                ours = place[1].startswith(str(INCLUDE))
                continue
            define = re.match(r"#define (\w+)", line)
            undef = re.match(r"#undef (\w+)", line)
            if define and ours:
                own[define[1]] = line
            elif undef and undef[1] in own:
                del own[undef[1]]
            elif undef and ours:
                undefined.append(undef[1])
            restored = re.match(r'#pragma pop_macro\("(\w+)"\)', line)
            if restored and ours and restored[1] in undefined:
                undefined.remove(restored[1])
        wrong = [line for macro, line in own.items() if not macro.startswith("QUENA_")]
        report.check(not wrong, f"{name}: leaves only QUENA_ macros", "\n".join(wrong))
        foreign = [m for m in undefined if not m.startswith("QUENA_")]
        report.check(not foreign, f"{name}: undefines nobody else's macros", "\n".join(foreign))
        left |= set(own)
    print("macros left behind:", ", ".join(sorted(left)) or "none")
    report.finish()


main()
