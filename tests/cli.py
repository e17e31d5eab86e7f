# SPDX-License-Identifier: MIT
"""Uses the `quena` command as people and scripts do.   cli.py QUENA [unittest arguments]"""

import array
import json
import os
import pathlib
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = str(ROOT / "examples" / "data" / "stories260K")
FIXTURES = pathlib.Path(os.environ.get("QUENA_FIXTURES") or ROOT.parent / "shared" / "fixtures")  # may not be there
QUENA = ""
LONG = 60  # seconds; nothing here takes a tenth of it, unless the machine is busy or the build has sanitizers
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


def run(*args, stdin=b"", **more):
    return subprocess.run([QUENA, *map(str, args)], input=stdin, capture_output=True, timeout=LONG, **more)


def read_npy(data):
    """(shape, floats) of a NumPy file, version 1.0."""
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    n = struct.unpack("<H", data[8:10])[0]
    assert (10 + n) % 64 == 0 and data[9 + n:10 + n] == b"\n"
    header = eval(data[10:10 + n], {}, {})
    assert header["descr"] == "<f4" and header["fortran_order"] is False
    values = array.array("f", data[10 + n:])
    count = 1
    for d in header["shape"]:
        count *= d
    assert len(values) == count
    return header["shape"], values


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="quena_cli_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def good(self, *args, **more):
        r = run(*args, **more)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stderr, b"")
        return r.stdout

    def refused(self, *args, status=1, has="", **more):
        """Ends with `status` and exactly one line `quena: [where] ...` on standard error; returns it."""
        r = run(*args, **more)
        line = r.stderr.decode()
        self.assertEqual(r.returncode, status, line)
        self.assertRegex(line, r"\Aquena: \[[^\]]+\] [^\n]+\n\Z")
        self.assertIn(has, line)
        return line

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def chat_model(self):
        """The small model, with a chat template."""
        path = self.folder / "chat-model"
        shutil.copytree(MODEL, path)
        config = json.loads((path / "tokenizer_config.json").read_text())
        (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
        return str(path)


class Usage(Case):
    def test_help(self):
        self.assertIn(b"generate", self.good("--help"))
        self.assertIn(b"--top-k", self.good("generate", "--help"))

    def test_usage_errors(self):
        for args in ((), ("nonsense",), ("generate",), ("generate", "-m", MODEL), ("generate", "-m", MODEL, "-p", "x", "--nonsense"),
                     ("generate", "-m", MODEL, "-p", "x", "--ids", "1"), ("generate", "-m", MODEL, "--ids", "1,x"), ("generate", "-m", MODEL, "--ids", ""),
                     ("generate", "-m", MODEL, "-p", "x", "-n", "-1"), ("generate", "-m", MODEL, "-p", "x", "-n", "1e3"),
                     ("generate", "-m", MODEL, "-p", "x", "--threads", "0"), ("generate", "-m", MODEL, "-p", "x", "--ctx", "0"),
                     ("generate", "-m", MODEL, "-p", "x", "--temp", "hot"), ("generate", "-m", MODEL, "-p", "x", "--format", "f64"),
                     ("generate", "-m", MODEL, "-p", "x", "--backend", "abacus"), ("generate", "-m", MODEL, "-p", "x", "--kv-type", "int4"),
                     ("logits", "-m", MODEL, "-o", "/dev/null"), ("logits", "-m", MODEL, "--ids", "1"), ("detokenize", "-m", MODEL),
                     ("perplexity", "-m", MODEL), ("perplexity", "-m", MODEL, "--ids-file", "x", "--window", "1"), ("template", "-m", MODEL)):
            with self.subTest(args=args):
                self.refused(*args, status=2)

    def test_unknown_command(self):
        self.refused("gnerate", "-m", MODEL, status=2, has="generate, chat")

    def test_quantize(self):
        gguf, artifact = self.folder / "x.gguf", self.folder / "x.quena"
        self.refused("quantize", "-m", MODEL, "--format", "q8_0", "-o", gguf, has="[")
        self.refused("quantize", "-m", "nowhere.gguf", "--format", "q8_0", "-o", gguf, has="nowhere.gguf")
        self.refused("quantize", "-m", "nowhere.gguf", "--format", "q9", "-o", gguf, has="expected one of q4_k_m, f32, f16, bf16, q8_0, q4_0, q4_k, q6_k for a .gguf file, got q9")
        self.refused("quantize", "-m", MODEL, "--format", "q8_0", "-o", artifact, has="expected auto, f32", status=2)
        self.assertEqual(os.listdir(self.folder), [])
        for name in ("auto", "int8"):
            self.good("quantize", "-m", MODEL, "--format", name, *([] if name == "auto" else ["--method", "nearest"]), "-o", artifact)
            self.assertEqual(os.listdir(self.folder), ["x.quena"])
            self.assertEqual(self.good("generate", "-m", artifact, "-p", "Once upon a time", "-n", 40, "--temp", 0),
                             self.good("generate", "-m", MODEL, "--format", name, "-p", "Once upon a time", "-n", 40, "--temp", 0))
        self.refused("generate", "-m", artifact, "--format", "int4", "-p", "x", has="expected format auto or int8")
        self.refused("quantize", "-m", artifact, "--format", "int8", "-o", artifact, has="another file")
        self.assertEqual(json.loads(self.good("inspect", "-m", artifact, "--json"))["container"], "artifact of safetensors")
        damaged = bytearray(artifact.read_bytes())
        damaged[-1000] ^= 1
        artifact.write_bytes(damaged)
        self.refused("generate", "-m", artifact, "-p", "x", has="damaged")
        self.refused("inspect", "-m", artifact, has="damaged")
        calib = self.folder / "calib.txt"
        calib.write_text("Once upon a time there was a little girl who liked to play in the park with her dog. " * 12)
        report = json.loads(self.good("quantize", "-m", MODEL, "--format", "int4", "--calib", calib, "--window", 64, "--output-format", "int8", "--report", "-o", artifact))
        self.assertEqual((report["method"], report["format"], len(report["matrices"])), ("gptq", "int4", 36))
        for matrix in report["matrices"]:
            self.assertTrue(0 < matrix["output_error"] < 0.3 and 0 < matrix["weight_error"] < 0.3, matrix)
        self.assertIn(b"little girl", self.good("generate", "-m", artifact, "-p", "Once upon a time", "-n", 30, "--temp", 0))
        self.refused("quantize", "-m", MODEL, "--format", "int4", "--method", "gptq", "-o", artifact, has="expected calibration tokens for method gptq, got 0")
        self.refused("quantize", "-m", MODEL, "--format", "f16", "--method", "search", "-o", artifact, has="need an integer format", status=2)
        self.refused("quantize", "-m", MODEL, "--format", "int4", "--method", "best", "-o", artifact, status=2)
        self.refused("quantize", "-m", artifact, "--format", "int4", "-o", self.folder / "y.quena", has="got an artifact")
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        before = (model / "model.safetensors").read_bytes()
        self.refused("quantize", "-m", model, "--format", "int4", "-o", model / "model.safetensors", has="another file")
        self.refused("quantize", "-m", MODEL, "--format", "int4", "--calib", calib, "-o", calib, has="another file")
        self.assertEqual((model / "model.safetensors").read_bytes(), before)
        shutil.rmtree(model)
        link, target = self.folder / "link.quena", self.folder / "target.quena"
        target.write_bytes(b"old")
        link.symlink_to(target)
        self.good("quantize", "-m", MODEL, "--format", "int8", "-o", link)
        self.assertTrue(link.is_symlink() and target.stat().st_size > 10000)
        link.unlink()
        target.unlink()
        artifact.unlink()
        calib.unlink()
        self.good("logits", "-m", MODEL, "--ids", "1", "-o", os.devnull)
        self.assertTrue(pathlib.Path(os.devnull).is_char_device())
        source, out = FIXTURES / "gguf" / "stories260K" / "stories260K-f32.gguf", self.folder / "q8.gguf"
        if source.exists():
            self.good("quantize", "-m", source, "--format", "q8_0", "-o", out)
            self.assertEqual(os.listdir(self.folder), ["q8.gguf"])  # nothing half-written beside it
            self.assertLess(out.stat().st_size, source.stat().st_size * 0.7)
            self.assertEqual(self.good("generate", "-m", out, "-p", "Once upon a time", "-n", 8, "--temp", 0), b", there was a little girl")
            self.refused("quantize", "-m", out, "--format", "q8_0", "-o", out, has="another file")

    def test_what_is_not_there_yet(self):
        self.refused("generate", "-m", MODEL, "-p", "x", "--format", "int5", status=2, has="expected auto, f32, f16, bf16, int8")
        self.refused("generate", "-m", MODEL, "-p", "x", "--backend", "cuda", has="cpu or reference")
        self.refused("logits", "-m", MODEL, "--ids", "1", "-o", os.devnull, "--lora", "somewhere:0.5", has="somewhere/adapter_config.json")

    def test_adapters(self):
        if not (FIXTURES / "lora").exists():
            self.skipTest("no reference data")
        base, adapter = FIXTURES / "models" / "stories260K", FIXTURES / "lora" / "qv-r4"
        run = lambda *more: self.good("generate", "-m", base, "-p", "Once upon a time", "-n", 24, "--temp", 0, *more)
        plain, strong = run(), run("--lora", f"{adapter}:20")
        self.assertNotEqual(plain, strong)
        self.assertEqual(plain, run("--lora", f"{adapter}:0"))
        self.assertEqual(run("--lora", adapter), run("--lora", f"{adapter}:1"))
        self.refused("generate", "-m", base, "-p", "x", "--lora", FIXTURES / "lora" / "reject" / "dora", has="use_dora")
        self.refused("inspect", "-m", base, "--lora", adapter, has="--lora")

    def test_errors_are_one_line(self):
        self.refused("generate", "-m", self.folder / "absent\nsecond line", "-p", "x", has="absent?second line")
        self.refused("inspect", "-m", self.folder)
        self.refused("generate", "-m", MODEL, "-p", "x", "--temp", "-1", has="temperature")
        self.refused("generate", "-m", MODEL, "--ids", "1,512", "--json", has="512")
        self.refused("generate", "-m", MODEL, "-p", "x", "--stop", "", has="stop")
        self.refused("logits", "-m", MODEL, "--ids-file", self.file("ids.json", "[1, 2.5]"), "-o", os.devnull, has="ids.json")
        self.refused("chat", "-m", MODEL, has="chat template")


class Generate(Case):
    def test_text(self):
        text = self.good("generate", "-m", MODEL, "-p", "Once upon a time", "-n", 20)
        self.assertTrue(text.startswith(b", there was a little girl"), text)
        self.assertEqual(text, self.good("generate", "-m", MODEL, "-p", "-", "-n", 20, stdin=b"Once upon a time"))
        self.assertEqual(text, self.good("generate", "-m", MODEL, "-p", "Once upon a time", "-n", 20, "--backend", "reference"))
        for strange in ("{}", "[a,b]", "--json", "%%", "-"):
            stdin = b"" if strange != "-" else b"The"
            self.assertNotEqual(self.good("generate", "-m", MODEL, "-p", strange, "-n", 3, stdin=stdin), b"")

    def test_json(self):
        r = json.loads(self.good("generate", "-m", MODEL, "-p", "Once upon a time", "-n", 20, "--json"))
        self.assertEqual(set(r), {"prompt_ids", "ids", "text", "finish_reason", "timing"})
        self.assertEqual(set(r["timing"]), {"load_s", "prefill_tokens", "prefill_s", "decode_tokens", "decode_s", "peak_rss_bytes"})
        self.assertEqual(r["prompt_ids"][0], 1)
        self.assertEqual(len(r["ids"]), 20)
        self.assertEqual(r["finish_reason"], "length")
        self.assertEqual(r["timing"]["prefill_tokens"], len(r["prompt_ids"]))
        self.assertEqual(r["timing"]["decode_tokens"], 19)
        self.assertGreater(r["timing"]["peak_rss_bytes"], 1 << 20)
        again = json.loads(self.good("generate", "-m", MODEL, "--ids", ",".join(map(str, r["prompt_ids"])), "-n", 20, "--json"))
        self.assertEqual((again["prompt_ids"], again["ids"], again["text"]), (r["prompt_ids"], r["ids"], r["text"]))

    def test_without_a_tokenizer(self):
        bare = self.folder / "bare"
        bare.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copy(pathlib.Path(MODEL) / name, bare)
        args = ("--ids", "1,403,407", "-n", 30, "--json")
        r, want = (json.loads(self.good("generate", "-m", m, *args)) for m in (bare, MODEL))
        self.assertEqual(r["ids"], want["ids"])
        self.assertEqual(r["finish_reason"], "length")
        self.refused("generate", "-m", bare, "-p", "x", has="tokenizer")

    def test_ends(self):
        def end(*more):
            r = json.loads(self.good("generate", "-m", MODEL, "-p", "Once upon a time", "--json", *more))
            return r["finish_reason"], len(r["ids"]), r["text"]
        reason, _, text = end("-n", 200, "--stop", "[x,y]", "--stop", " Lily", "--stop", " named Li")
        self.assertEqual((reason, text), ("stop", ", there was a little girl"))
        self.assertEqual(end("-n", 0), ("length", 0, ""))
        self.assertEqual(end("-n", 1000, "--ignore-eos", "--ctx", 20)[0], "length")

    def test_end_tokens(self):
        """What a model's own files call an end ends the text, and is not part of it."""
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        args = ("generate", "-m", model, "-p", "Once upon a time", "-n", 30, "--json")
        ids = json.loads(self.good(*args))["ids"]
        config = json.loads((model / "generation_config.json").read_text())
        (model / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [2, ids[8]]}))
        r = json.loads(self.good(*args))
        self.assertEqual((r["finish_reason"], r["ids"]), ("stop", ids[:ids.index(ids[8])]))
        self.assertEqual(json.loads(self.good(*args, "--ignore-eos"))["ids"], ids)

    def test_context(self):
        ids = ",".join(["5"] * 32)
        line = self.refused("generate", "-m", MODEL, "--ids", ids, "--ctx", 32, has="32")
        self.assertIn("context", line)
        self.refused("generate", "-m", MODEL, "--ids", ids + ",5,5", "--ctx", 32, has="34")
        r = json.loads(self.good("generate", "-m", MODEL, "--ids", ids[:-2], "--ctx", 32, "-n", 1, "--json"))
        self.assertEqual(len(r["ids"]), 1)

    def test_seeds(self):
        def text(seed):
            return self.good("generate", "-m", MODEL, "-p", "The", "-n", 30, "--temp", 1, "--top-p", 0.95, "--top-k", 100, "--seed", seed)
        self.assertEqual(text(1), text(1))
        self.assertNotEqual(text(1), text(2))

    def test_stats(self):
        r = run("generate", "-m", MODEL, "-p", "Once", "-n", 5, "--stats")
        self.assertEqual(r.returncode, 0)
        self.assertIn(b"tokens/s", r.stderr)

    def test_streams(self):
        p = subprocess.Popen([QUENA, "generate", "-m", MODEL, "-p", "Once", "-n", "100000", "--ignore-eos", "--ctx", "20000"], stdout=subprocess.PIPE)
        try:
            self.assertNotEqual(os.read(p.stdout.fileno(), 10), b"")
            self.assertIsNone(p.poll())
        finally:
            p.kill()
            p.wait()
            p.stdout.close()

    @unittest.skipIf(os.name == "nt", "POSIX")
    def test_closed_pipe_and_full_disk(self):
        p = subprocess.Popen([QUENA, "generate", "-m", MODEL, "-p", "Once", "-n", "100000", "--ignore-eos", "--ctx", "20000"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdout.read(1)
        p.stdout.close()
        line = p.stderr.read()
        p.stderr.close()
        self.assertEqual(p.wait(LONG), 1)
        self.assertRegex(line, rb"\Aquena: \[cli\] [^\n]+\n\Z")
        if os.path.exists("/dev/full"):
            with open("/dev/full", "wb") as full:
                p = subprocess.run([QUENA, "tokenize", "-m", MODEL], input=b"x", stdout=full, stderr=subprocess.PIPE, timeout=LONG)
            self.assertEqual((p.returncode, p.stderr.count(b"\n")), (1, 1))

    @unittest.skipIf(os.name == "nt", "POSIX")
    def test_interrupt(self):
        p = subprocess.Popen([QUENA, "generate", "-m", MODEL, "-p", "Once", "-n", "1000000", "--ignore-eos", "--ctx", "100000", "--json", "--backend", "reference"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1.0)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=LONG)
        if p.returncode == 0:  # a very slow machine may still have been loading
            self.assertEqual(json.loads(out)["finish_reason"], "cancelled", err)


class Text(Case):
    def test_round_trip(self):
        for text in ("", "hello world", "  two  spaces ", "x != y and a.b == c", "\0\x01", "日本 🦙 é", "a\r\nb\n"):
            data = text.encode()
            ids = json.loads(self.good("tokenize", "-m", MODEL, stdin=data))
            self.assertEqual(ids[0], 1)
            self.assertEqual(ids[1:], json.loads(self.good("tokenize", "-m", MODEL, "--no-bos", stdin=data)))
            if text:
                self.assertEqual(self.good("detokenize", "-m", MODEL, "--ids", ",".join(map(str, ids[1:]))), data)

    def test_special(self):
        self.assertEqual(json.loads(self.good("tokenize", "-m", MODEL, "--no-bos", "--parse-special", stdin=b"</s>")), [2])
        self.assertNotIn(2, json.loads(self.good("tokenize", "-m", MODEL, "--no-bos", stdin=b"</s>")))
        self.assertEqual(self.good("detokenize", "-m", MODEL, "--ids", "1,2"), b"<s></s>")
        self.assertEqual(self.good("detokenize", "-m", MODEL, "--ids", "1,2", "--skip-special"), b"")

    def test_jsonl(self):
        texts = ["one", "two\nlines", "", "\0", "日本"]
        lines = self.good("tokenize", "-m", MODEL, "--no-bos", "--jsonl", stdin="".join(json.dumps(t) + "\n" for t in texts).encode()).splitlines()
        self.assertEqual(len(lines), len(texts))
        back = self.good("detokenize", "-m", MODEL, "--jsonl", stdin=b"\n".join(lines)).decode().splitlines()
        self.assertEqual([bytes.fromhex(b).decode() for b in back], texts)
        self.refused("tokenize", "-m", MODEL, "--jsonl", stdin=b'"good"\n7\n', has="line 2")
        self.refused("tokenize", "-m", MODEL, "--jsonl", stdin=b'"good', has="line 1")
        self.refused("detokenize", "-m", MODEL, "--jsonl", stdin=b'[1, "2"]\n', has="line 1")
        self.refused("detokenize", "-m", MODEL, "--ids", "512")

    def test_turns(self):
        """A program that waits for each answer before it sends the next line must not wait for ever."""
        with subprocess.Popen([QUENA, "tokenize", "-m", MODEL, "--jsonl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
            timer = threading.Timer(LONG, p.kill)
            timer.start()
            for _ in range(3):
                p.stdin.write(b'"hi"\n')
                p.stdin.flush()
                self.assertTrue(p.stdout.readline().startswith(b"[1,"))
            p.stdin.close()
            self.assertEqual(p.wait(), 0)
            timer.cancel()

    def test_template(self):
        model = self.chat_model()
        messages = self.file("messages.json", json.dumps([{"role": "user", "content": "Hi </s>"}]))
        self.assertEqual(self.good("template", "-m", model, "--messages", messages), b"<s>user: Hi </s>\nassistant:")
        self.assertEqual(self.good("template", "-m", model, "--messages", messages, "--no-generation-prompt"), b"<s>user: Hi </s>\n")
        ids = json.loads(self.good("template", "-m", model, "--messages", messages, "--ids"))
        self.assertEqual((ids[0], ids.count(1), ids.count(2)), (1, 1, 0))  # the user cannot end the text
        other = self.file("other.jinja", "{{ eos_token }}{{ name }}{% if tools %}{{ tools | tojson }}{% endif %}")
        variables = self.file("vars.json", '{"name": "Q", "tools": [{"z": 1, "a": 2}]}')
        self.assertEqual(self.good("template", "-m", model, "--messages", messages, "--template", other, "--vars", variables), b'</s>Q[{"z": 1, "a": 2}]')
        self.refused("template", "-m", MODEL, "--messages", messages, has="chat template")
        self.refused("template", "-m", model, "--messages", self.file("bad.json", "{"))
        self.refused("template", "-m", model, "--messages", self.folder / "absent.json", has="absent.json")
        self.refused("template", "-m", model, "--messages", messages, "--template", self.file("raise.jinja", "{{ raise_exception('no such\nrole') }}"), has="no such")


class Numbers(Case):
    IDS = "1,403,407,261,378,500,20,30,40"

    def logits(self, *more):
        out = str(self.folder / "out.npy")
        self.good("logits", "-m", MODEL, "-o", out, *more)
        return read_npy(pathlib.Path(out).read_bytes())

    def test_logits(self):
        shape, last = self.logits("--ids", self.IDS)
        self.assertEqual(shape, (512,))
        shape, rows = self.logits("--ids", self.IDS, "--all")
        self.assertEqual(shape, (9, 512))
        self.assertEqual(rows[-512:].tobytes(), last.tobytes())
        ids_file = self.file("ids.json", "[" + self.IDS + "]")
        for more in (("--chunk", 1), ("--chunk", 4), ("--chunk", 100), ("--threads", 3)):
            self.assertEqual(self.logits("--ids-file", ids_file, "--all", *more)[1].tobytes(), rows.tobytes(), more)
            self.assertEqual(self.logits("--ids-file", ids_file, *more)[1].tobytes(), last.tobytes(), more)
        _, want = self.logits("--ids", self.IDS, "--all", "--backend", "reference")
        self.assertLess(max(abs(a - b) for a, b in zip(rows, want)), 5e-4)
        self.logits("--ids", self.IDS)
        self.assertEqual(self.good("logits", "-m", MODEL, "--ids", self.IDS, "-o", "-"), (self.folder / "out.npy").read_bytes())
        self.good("logits", "-m", MODEL, "--ids", self.IDS, "--all", "-o", os.devnull)

    def test_logits_refused(self):
        out = self.folder / "never.npy"
        self.refused("logits", "-m", MODEL, "--ids", "1,512", "-o", out, has="512")
        self.refused("logits", "-m", MODEL, "--ids", "1,2,3", "--ctx", 2, "--all", "-o", out, has="2")
        self.assertFalse(out.exists())
        self.refused("logits", "-m", MODEL, "--ids", "1", "-o", self.folder / "absent" / "out.npy", has="absent")

    def test_perplexity(self):
        text = self.file("text.txt", "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.")
        r = json.loads(self.good("perplexity", "-m", MODEL, "--text", text))
        self.assertEqual(set(r), {"tokens", "nll", "perplexity"})
        self.assertLess(r["perplexity"], 3)
        ids = json.loads(self.good("tokenize", "-m", MODEL, stdin=pathlib.Path(text).read_bytes()))
        self.assertEqual(r["tokens"], len(ids) - 1)
        ids_file = self.file("ids.json", json.dumps(ids))
        self.assertEqual(json.loads(self.good("perplexity", "-m", MODEL, "--ids-file", ids_file)), r)
        r = json.loads(self.good("perplexity", "-m", MODEL, "--ids-file", ids_file, "--window", 16, "--against", MODEL))
        self.assertEqual((r["kl"], r["top1"]), (0, 1))
        r = json.loads(self.good("perplexity", "-m", MODEL, "--ids-file", ids_file, "--format", "bf16", "--against", MODEL, "--against-format", "f32"))
        self.assertGreater(r["kl"], 0)
        self.assertLess(r["kl"], 0.01)
        self.refused("perplexity", "-m", MODEL, "--ids-file", self.file("one.json", "[1]"))

    def test_inspect(self):
        r = json.loads(self.good("inspect", "-m", MODEL, "--json"))
        self.assertLessEqual({"config", "tensors", "format", "memory"}, set(r))
        self.assertEqual(r["format"], "f32")
        self.assertEqual(r["parameters"], 260032)
        self.assertEqual(sum(t["bytes"] for t in r["tensors"]), 4 * 260032)
        self.assertEqual(r["memory"]["weights_bytes"], 4 * 260032)
        self.assertIn({"name": "model.norm.weight", "dtype": "f32", "shape": [64], "bytes": 256, "file": "model.safetensors"}, r["tensors"])
        self.assertIn(b"model.norm.weight", self.good("inspect", "-m", MODEL))
        bare = self.folder / "bare"
        bare.mkdir()
        shutil.copy(pathlib.Path(MODEL) / "config.json", bare)
        config = json.loads(self.good("inspect", "-m", bare, "--config-only", "--json"))
        self.assertEqual(config, r["config"])
        self.assertEqual(set(config), {"hidden_size", "intermediate_size", "n_layers", "n_heads", "n_kv_heads", "head_dim", "vocab_size", "max_position_embeddings",
                                       "rms_norm_eps", "rope_theta", "rope_type", "tie_word_embeddings", "attention_bias", "mlp_bias", "bos_token_id",
                                       "eos_token_ids", "dtype", "inv_freq"})
        self.assertEqual((config["rms_norm_eps"], config["eos_token_ids"], config["inv_freq"][:2]), (1e-05, [2], [1.0, 0.1]))
        self.refused("inspect", "-m", bare, "--json", has="model.safetensors")

    def test_inspect_finds_damage(self):
        damaged = self.folder / "damaged"
        shutil.copytree(MODEL, damaged)
        weights = damaged / "model.safetensors"
        data = bytearray(weights.read_bytes())
        weights.write_bytes(data[:-1])
        self.refused("inspect", "-m", damaged, has="model.safetensors")
        data[-4:] = struct.pack("<f", float("nan"))
        weights.write_bytes(data)
        self.refused("inspect", "-m", damaged, has="NaN")

    def test_bench(self):
        args = ("bench", "-m", MODEL, "--prefill", 20, "--decode", 4, "--reps", 2, "--threads", 1)
        r = json.loads(self.good(*args, "--batch", 3, "--json"))
        self.assertLessEqual({"format", "batch", "threads", "isa", "weight_bytes", "prefill", "decode", "ceilings", "logits_hash"}, set(r))
        self.assertEqual((r["format"], r["batch"], r["threads"], r["prefill"]["tokens"]), ("f32", 3, 1, 20))
        for group, names in (("prefill", ("tok_s", "gmac_s", "pct_of_ceiling")), ("decode", ("tok_s", "gb_s", "pct_of_ceiling")),
                             ("ceilings", ("read_gb_s", "fp32_gmac_s", "int8_gmac_s"))):
            for name in names:
                low, high = r[group][name + "_spread"]
                self.assertTrue(0 < low <= r[group][name] <= high, (group, name))
        alone = json.loads(self.good(*args, "--json"))
        self.assertEqual(alone["logits_hash"], r["logits_hash"])  # whoever else is in the batch
        self.assertIn(b"tokens/s", self.good(*args))


class Chat(Case):
    def test_lines(self):
        out = self.good("chat", "-m", self.chat_model(), "--system", "Tell a story.", "-n", 5, stdin=b"Once\n\nThen")
        self.assertGreaterEqual(out.count(b"\n"), 2)

    @unittest.skipIf(os.name == "nt", "POSIX")
    def test_terminal(self):
        import pty
        model = self.chat_model()
        pid, fd = pty.fork()
        if pid == 0:
            os.execv(QUENA, [QUENA, "chat", "-m", model, "-n", "1000000", "--ignore-eos", "--ctx", "100000", "--backend", "reference"])
        try:
            self.talk(pid, fd)
        finally:
            os.close(fd)

    def talk(self, pid, fd):
        seen = b""

        def until(what):
            nonlocal seen
            end = time.monotonic() + LONG
            while what not in seen:
                self.assertGreater(end, time.monotonic(), seen[-200:])
                if select.select([fd], [], [], 0.1)[0]:
                    try:
                        seen += os.read(fd, 4096)
                    except OSError:  # the other side is gone
                        break
            self.assertIn(what, seen)
            seen = seen[seen.index(what) + len(what):]

        until(b"> ")
        for _ in range(2):
            os.write(fd, b"Once upon a time\n")
            until(b"time\r\n")  # the terminal's echo
            while len(seen) < 20:  # an answer that would go on for long
                seen += os.read(fd, 4096)
            os.write(fd, b"\x03")
            until(b"\n> ")
        os.write(fd, b"\x03")  # at the prompt: leaves
        end = time.monotonic() + LONG
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            self.assertGreater(end, time.monotonic())
            if select.select([fd], [], [], 0.05)[0]:
                try:
                    os.read(fd, 4096)
                except OSError:
                    pass
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)


if __name__ == "__main__":
    QUENA = os.path.abspath(sys.argv.pop(1))
    unittest.main()
