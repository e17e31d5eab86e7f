# SPDX-License-Identifier: MIT
"""Walks the include graph of include/quena: arrows point downward only, nothing goes in circles, every target exists."""

import re

from common import INCLUDE, Report, arguments, sources

# Folder -> layer. Files at the top (load, generate, chat, the umbrella) are the highest layer.
LAYERS = {"core": 0, "io": 1, "quant": 1, "backend": 2, "text": 3, "sample": 3, "model": 4,
          "engine": 5, "parallel": 5, "prune": 5, "eval": 5}
TOP = 6
# Text and sampling are of use without any model, so they may not reach for one though it would be "downward".
FORBIDDEN = {("text", "backend"), ("text", "quant"), ("sample", "backend"), ("sample", "quant"), ("text", "sample"), ("sample", "text")}


def folder(path):
    parts = path.relative_to(INCLUDE / "quena").parts
    return parts[0] if len(parts) > 1 else ""


def cycle(graph):
    """A list of nodes that form a circle, or None."""
    state = {}

    def visit(node, trail):
        state[node] = "open"
        for target in sorted(graph.get(node, ())):
            if state.get(target) == "open":
                return trail[trail.index(target):] + [target]
            if target not in state:
                found = visit(target, trail + [target])
                if found:
                    return found
        state[node] = "done"
        return None

    for node in sorted(graph):
        if node not in state:
            found = visit(node, [node])
            if found:
                return found
    return None


def main():
    arguments(__doc__)
    report = Report()
    files, folders = {}, {}
    for path in sources():
        name = path.relative_to(INCLUDE).as_posix()
        text = path.read_text(encoding="utf-8")
        home = folder(path)
        report.check(home == "" or home in LAYERS, f"{name}: its folder is in the table of layers")
        if path.suffix != ".inl":
            report.check("#pragma once" in text, f"{name}: has #pragma once")
        report.check(text.startswith("// SPDX-License-Identifier: MIT\n"), f"{name}: begins with the licence line")
        report.check(not re.search(r"#\s*include\s*<quena/", text), f"{name}: includes its siblings by relative path")
        if home in ("core", "io", "text", "quant", "sample", "model", "backend"):
            bad = re.findall(r"#\s*include\s*<(iostream|regex|filesystem|locale|cassert|assert\.h)>", text)
            report.check(not bad, f"{name}: does without <{', '.join(bad)}>")
        for target in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.M):
            there = (path.parent / target).resolve()
            report.check(there.is_file(), f'{name}: "{target}" exists')
            if not there.is_file():
                continue
            report.check((INCLUDE / "quena") in there.parents, f'{name}: "{target}" lies inside include/quena')
            away = folder(there)
            here_layer, there_layer = (LAYERS.get(f, TOP) if f else TOP for f in (home, away))
            report.check(there_layer <= here_layer, f"{name} (layer {here_layer}) includes {target} (layer {there_layer}): upward")
            report.check((home, away) not in FORBIDDEN, f"{name}: {home} may not know {away}")
            if path.suffix == ".hpp" and there.suffix == ".hpp":  # fragments are included again and again: no graph
                files.setdefault(name, set()).add(there.relative_to(INCLUDE).as_posix())
            if home and away and home != away:
                folders.setdefault(home, set()).add(away)
    for what, graph in (("files", files), ("folders", folders)):
        circle = cycle(graph)
        report.check(circle is None, f"no circle of {what}", " -> ".join(circle or []))
    report.finish()


main()
