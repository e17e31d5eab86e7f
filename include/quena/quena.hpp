// SPDX-License-Identifier: MIT
// The umbrella: includes only. A tour of the code, top to bottom; README.md beside this file is the map.
//
//   for (std::string_view piece : quena::generate(llm, "Once upon a time"))        generate.hpp
//
// 1. generate() turns the prompt into ids (text/tokenizer.hpp) and makes a generation: a session (model/session.hpp: one sequence
//    with its cache and scratch), a sampler (sample/sampler.hpp), a decoder of ids (text/stream_decoder.hpp) and a matcher of stop
//    strings (sample/stop.hpp). Each step of its loop asks the session for logits, chooses a token and delivers its text.
// 2. session::feed() makes rows {token, position, sequence} of the tokens and calls
// 3. llama::forward() (model/llama.hpp): the architecture, read it first. It lays the rows out (model/workspace.hpp), makes room in
//    the paged cache (model/kv_cache.hpp) and calls, layer by layer, the operations of
// 4. the backend (backend/backend.hpp says what they mean, backend/reference.hpp says it in plain loops). The default one is
//    backend/cpu/cpu.hpp, which picks a table of kernels for the machine and splits the work over threads.
// 5. A kernel (backend/cpu/kernels/*.inl) is written once over a small vector vocabulary (backend/cpu/simd/*.inl) and compiled
//    for each instruction set.
//
// Before all that load() (load.hpp) opens the files (io/checkpoint.hpp over io/safetensors.hpp and io/gguf.hpp), reads the
// configuration (model/config.hpp, model/rope.hpp) and hands every tensor to the backend (model/llama_weights.hpp).
// engine (engine/engine.hpp) runs many sequences in one forward pass: scheduling (engine/scheduler.hpp), no model code of its own.
// chat() (chat.hpp) renders messages with the model's template (text/chat_template.hpp) and generates on one session.
#pragma once

#include "backend/backend.hpp"
#include "backend/cpu/cpu.hpp"
#include "backend/reference.hpp"
#include "chat.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "core/tensor.hpp"
#include "engine/engine.hpp"
#include "eval/perplexity.hpp"
#include "generate.hpp"
#include "io/checkpoint.hpp"
#include "load.hpp"
#include "model/llama.hpp"
#include "model/session.hpp"
#include "sample/sampler.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"
