# SPDX-License-Identifier: MIT
"""Makes the single header: amalgamate.py include/quena/quena.hpp OUT

Every `#include "…"` is replaced by the file. A header (one with #pragma once) gets a guard macro instead and appears where it is
first reached, and again, guarded, if that place was inside a conditional; a fragment (.inl) appears wherever it is included.
"""

import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


class Amalgamation:
    def __init__(self, root):
        self.root = root
        self.unconditional = set()  # headers that are already there whatever the macros say

    def guard(self, path):
        name = path.relative_to(self.root.parent).as_posix()
        return "QUENA_SINGLE_" + re.sub(r"\W", "_", name).upper()

    def expand(self, path, conditional, trail=()):
        if path in trail:
            raise SystemExit(f"{path}: included in a circle")
        text = path.read_text(encoding="utf-8")
        once = "#pragma once" in text
        if once and path in self.unconditional:
            return []
        out = []
        if once:
            out += [f"#ifndef {self.guard(path)}", f"#define {self.guard(path)}"]
            if not conditional:
                self.unconditional.add(path)
        depth = 0
        for number, line in enumerate(text.splitlines(), 1):
            found = INCLUDE.match(line)
            if found:
                target = (path.parent / found[1]).resolve()
                if not target.is_file():
                    raise SystemExit(f"{path}:{number}: {found[1]} does not exist")
                out += self.expand(target, conditional or depth > 0, (*trail, path))
                continue
            if re.match(r"\s*#\s*include\s+[^<\"\s]", line):
                raise SystemExit(f"{path}:{number}: an include by macro cannot be put into a single header")
            directive = re.match(r"\s*#\s*(if|ifdef|ifndef|endif)\b", line)
            if directive:
                depth += -1 if directive[1] == "endif" else 1
            if line.strip() == "#pragma once" or (line.startswith("// SPDX-License-Identifier") and number == 1):
                continue
            out.append(line)
        if once:
            out.append(f"#endif  // {self.guard(path)}")
        return out


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    umbrella, target = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    lines = Amalgamation(umbrella.parent).expand(umbrella, False)
    guards = [line.split()[1] for line in lines if line.startswith("#define QUENA_SINGLE_")]
    head = ["// SPDX-License-Identifier: MIT", "// quena in one file. Generated from include/quena by cmake/amalgamate.py: change it there.",
            "#pragma once", ""]
    tail = [f"#undef {g}" for g in dict.fromkeys(guards)]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(head + lines + tail) + "\n", encoding="utf-8")


main()
