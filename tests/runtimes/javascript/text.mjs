// node text.mjs FOLDER CHROMIUM PROVIDER PROMPT: has the page of a folder go on with a text, in a browser that has WebGPU if the
// provider is "webgpu"; prints the text.

import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { served, withPage } from "./browser.mjs";

const [folder, executable, provider, prompt] = process.argv.slice(2);
const here = fileURLToPath(new URL(".", import.meta.url));
const server = await served({ "": folder, ort: join(here, "node_modules/onnxruntime-web/dist") });

try {
  await withPage(executable, async (page) => {
    await page.goto(`${server.address}/text.html`);
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("The model runs"));
    const where = await page.textContent("#status");
    if (where.includes("GPU") !== (provider === "webgpu")) throw new Error(`${provider}: ${where}`);
    await page.fill("#prompt", prompt);
    await page.click("button");
    await page.waitForFunction(() => !document.querySelector("button").disabled);
    process.stdout.write(await page.textContent("#text"));
  }, provider === "webgpu");
} finally {
  server.close();
}
