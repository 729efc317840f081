// node gpu_kernels.mjs CHROMIUM: for each model on standard input, in base64, a line of JSON with why WebGPU does not run all of it.

import { createInterface } from "node:readline";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { served, withPage } from "./browser.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const server = await served({ "": here, ort: join(here, "node_modules/onnxruntime-web/dist") });
const models = [];
for await (const line of createInterface({ input: process.stdin })) models.push(line);

try {
  await withPage(process.argv[2], async (page) => {
    for (let start = 0; start < models.length; start += 200) {
      await page.goto(`${server.address}/web.html?bundle=ort.webgpu.bundle.min.mjs&provider=webgpu`); // which frees its memory
      await page.waitForFunction(() => globalThis.loaded);
      const answers = await page.evaluate((each) => globalThis.loaded(each), models.slice(start, start + 200));
      for (const why of answers) process.stdout.write(JSON.stringify(why) + "\n");
    }
  }, true);
} finally {
  server.close();
}
