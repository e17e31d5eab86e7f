// SPDX-License-Identifier: MIT
// Speed of the peer's tokenizer: llama.cpp through npm's node-llama-cpp, over the same files as bench_tokenizer.
//   npm i -E node-llama-cpp@3.21.1 --ignore-scripts && node bench/peers/tokenizer.mjs MODEL.gguf TEXT_FILE...
// The model needs the vocabulary only; any small GGUF with Llama 3.1's will do. Prints one JSON object: 1e6 bytes of text per second,
// median, lowest and highest of seven rounds. llama.cpp does the work; what the binding adds is a copy of the ids.
import {createHash} from "node:crypto";
import {readFileSync} from "node:fs";
import {basename} from "node:path";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [model, ...files] = process.argv.slice(2).filter(a => !a.startsWith("--"));
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: LlamaLogLevel.error});
const m = await llama.loadModel({modelPath: model, vocabOnly: true});
const texts = [];
for (const file of files) {
  const bytes = readFileSync(file), text = bytes.toString("utf8");
  const rates = [];
  let ids = [];
  for (let round = 0; round < 8; ++round) {
    const start = performance.now();
    ids = m.tokenize(text, false, "trimLeadingSpace");
    if (round > 0) rates.push(bytes.length / 1e3 / (performance.now() - start));
  }
  rates.sort((a, b) => a - b);
  texts.push({text: basename(file), mb: bytes.length / 1e6, encode_mb_s: {median: rates[3], lowest: rates[0], highest: rates[6]},
              tokens: ids.length, ids_sha256: createHash("sha256").update(JSON.stringify(Array.from(ids))).digest("hex")});
}
console.log(JSON.stringify({peer: "llama.cpp " + (llama.llamaCppRelease?.release ?? ""), texts}));
process.exit(0);
