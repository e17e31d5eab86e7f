// SPDX-License-Identifier: MIT
// The peer's side of a comparison in turns: llama.cpp through npm's node-llama-cpp. Same lines in and out as bench/turns.cpp.
//   node turns.mjs MODEL.gguf [THREADS]
import {createInterface} from "node:readline";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [, , path, threads = "2"] = process.argv;
const llama = await getLlama({gpu: false, build: "never", maxThreads: +threads, logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: path, useMmap: true});
const context = await model.createContext({contextSize: 1024, batchSize: 512, threads: +threads, sequences: 1});
const sequence = context.getSequence();
const tokens = n => Array.from({length: n}, (_, i) => (1000 + i * 37) % 120000);
console.log("ready");
for await (const line of createInterface({input: process.stdin})) {
  const [what, count] = line.split(" "), n = +count;
  await sequence.clearHistory();
  let start = performance.now();
  if (what === "prefill") {
    await sequence.evaluateWithoutGeneratingNewTokens(tokens(n));
  } else if (what === "decode") {
    let made = -1;
    for await (const _ of sequence.evaluate(tokens(1), {temperature: 0, yieldEogToken: true})) {
      if (made < 0) start = performance.now();
      if (++made >= n) break;
    }
  } else {
    console.log(JSON.stringify({peer: "llama.cpp " + (llama.llamaCppRelease?.release ?? ""), systemInfo: llama.systemInfo}));
    continue;
  }
  console.log(n / ((performance.now() - start) / 1e3));
}
process.exit(0);
