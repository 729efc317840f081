// node kernels.mjs BUILD: for each model on standard input, in base64, a line of JSON with why a build does not load it.

import { createInterface } from "node:readline";

const ort = await import(`./node_modules/onnxruntime-web/dist/${process.argv[2]}`);
ort.env.wasm.numThreads = 1;
const options = { executionProviders: ["wasm"], graphOptimizationLevel: "disabled", logSeverityLevel: 4 };

for await (const line of createInterface({ input: process.stdin })) {
  let why = "";
  try {
    const session = await ort.InferenceSession.create(Uint8Array.from(Buffer.from(line, "base64")), options);
    await session.release();
  } catch (error) {
    why = String(error.message ?? error).split("\n")[0];
  }
  process.stdout.write(JSON.stringify(why) + "\n");
}
