// node node.mjs FOLDER: runs the models of a folder in onnxruntime-node; one line of JSON for each result.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as runtime from "onnxruntime-node";
import { results } from "./tensors.mjs";

const folder = process.argv[2];
const read = async (name) => new Uint8Array(await readFile(join(folder, name)));
const models = JSON.parse(await readFile(join(folder, "models.json"), "utf-8"));
const { InferenceSession, Tensor } = runtime;

for (const [model, { cases }] of Object.entries(models)) {
  for await (const result of results({ InferenceSession, Tensor, provider: "cpu" }, model, cases, read)) {
    process.stdout.write(JSON.stringify(result) + "\n");
  }
}
