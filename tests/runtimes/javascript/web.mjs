// node web.mjs FOLDER CHROMIUM BUNDLE PROVIDER: runs the models of a folder in a build of onnxruntime-web, by "wasm" or "webgpu";
// one line of JSON for each result.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { served, withPage } from "./browser.mjs";

const [folder, executable, bundle, provider] = process.argv.slice(2);
const here = fileURLToPath(new URL(".", import.meta.url));
const server = await served({ "": here, models: folder, ort: join(here, "node_modules/onnxruntime-web/dist") });
const models = JSON.parse(await readFile(join(folder, "models.json"), "utf-8"));

try {
  await withPage(executable, async (page) => {
    await page.goto(`${server.address}/web.html?bundle=${bundle}&provider=${provider}`);
    await page.waitForFunction(() => globalThis.run);
    for (const [model, { cases }] of Object.entries(models)) {
      const found = await page.evaluate(([name, names]) => globalThis.run(name, names), [model, cases]);
      for (const result of found) process.stdout.write(JSON.stringify(result) + "\n");
    }
  }, provider === "webgpu");
} finally {
  server.close();
}
