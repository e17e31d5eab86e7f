# SPDX-License-Identifier: MIT
"""Speed of quena and of llama.cpp on the same GGUF files, in turns, so that both see the same moods of the machine.

  python3 bench/peers/compare.py MODEL.gguf... [--rounds 9] [--prefill 512] [--decode 16] [--threads 2] [--json]

Needs the release build and node with npm; installs node-llama-cpp (pinned) into build/peers. For each model: medians over the rounds but
the first, with lowest and highest, of tokens per second, of the ratio within each round, and of the share of the ceiling measured in it.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "build" / "peers"
PIN = "node-llama-cpp@3.21.1"


class Side:
    """A program that answers lines."""

    def __init__(self, *command, cwd=None):
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd)
        if self.ask() != "ready":
            sys.exit(f"{command[0]} did not start")

    def ask(self, line=None):
        if line:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def number(self, line):
        return float(self.ask(line))

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def install():
    if (PEERS / "node_modules" / "node-llama-cpp").is_dir():
        return
    if not shutil.which("npm"):
        sys.exit("needs node and npm")
    PEERS.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "install", "--silent", "--ignore-scripts", "--no-fund", "--no-audit", "-E", PIN], cwd=PEERS, check=True)


def figures(values):
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def compare(model, o):
    ours = Side(ROOT / "build" / "release" / "bench" / "bench_turns", model, "auto", o.threads)
    shutil.copy(ROOT / "bench" / "peers" / "turns.mjs", PEERS)
    peer = Side("node", "turns.mjs", pathlib.Path(model).resolve(), o.threads, cwd=PEERS)
    info, peer_info = json.loads(ours.ask("info")), json.loads(peer.ask("info"))
    rounds = []
    for i in range(o.rounds + 1):
        read, d, pd = ours.number("read"), ours.number(f"decode {o.decode}"), peer.number(f"decode {o.decode}")
        int8, fp32 = ours.number("int8"), ours.number("fp32")
        p, pp = ours.number(f"prefill {o.prefill}"), peer.number(f"prefill {o.prefill}")
        if i:
            rounds.append({"decode": d, "decode_peer": pd, "decode_ratio": d / pd, "decode_gb_s": d * info["decode_bytes"] * 1e-9,
                           "decode_of_read": d * info["decode_bytes"] * 1e-9 / read, "prefill": p, "prefill_peer": pp, "prefill_ratio": p / pp,
                           "read_gb_s": read, "int8_gmac_s": int8, "fp32_gmac_s": fp32})
    ours.stop()
    peer.stop()
    return {"model": str(model), **info, **peer_info, "rounds": o.rounds, **{key: figures([r[key] for r in rounds]) for key in rounds[0]}}


def line(name, f, unit=""):
    return f"  {name:24}{f['median']:9.2f} {unit:10} ({f['lowest']:.2f} to {f['highest']:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    for name, value in (("rounds", 9), ("prefill", 512), ("decode", 16), ("threads", 2)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()
    install()
    for model in o.models:
        r = compare(model, o)
        if o.json:
            print(json.dumps(r))
            continue
        print(f"{model}: {r['machine']}; {r['peer']}")
        print(line("decode, quena", r["decode"], "tokens/s"), line("decode, llama.cpp", r["decode_peer"], "tokens/s"), line("  ratio", r["decode_ratio"]),
              line("  of read bandwidth", r["decode_of_read"]), line("prefill, quena", r["prefill"], "tokens/s"),
              line("prefill, llama.cpp", r["prefill_peer"], "tokens/s"), line("  ratio", r["prefill_ratio"]), line("read", r["read_gb_s"], "GB/s"),
              line("int8", r["int8_gmac_s"], "GMAC/s"), line("fp32", r["fp32_gmac_s"], "GMAC/s"), sep="\n", flush=True)


main()
