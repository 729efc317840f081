// node digits.mjs FOLDER CHROMIUM PROVIDER: draws digits on the page of a folder with the mouse, in a browser that has WebGPU if the
// provider is "webgpu"; prints what it reads, as JSON.

import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { served, withPage } from "./browser.mjs";

// Strokes in a square of 0 to 1.
const DIGITS = {
  0: [[[0.5, 0.1], [0.3, 0.2], [0.22, 0.5], [0.3, 0.8], [0.5, 0.9], [0.7, 0.8], [0.78, 0.5], [0.7, 0.2], [0.5, 0.1]]],
  1: [[[0.35, 0.3], [0.52, 0.1], [0.52, 0.9]]],
  3: [[[0.28, 0.14], [0.6, 0.1], [0.72, 0.28], [0.48, 0.46], [0.74, 0.66], [0.6, 0.88], [0.28, 0.86]]],
  7: [[[0.25, 0.12], [0.76, 0.12], [0.45, 0.9]], [[0.35, 0.5], [0.7, 0.5]]],
};

const [folder, executable, provider] = process.argv.slice(2);
const here = fileURLToPath(new URL(".", import.meta.url));
const server = await served({ "": folder, ort: join(here, "node_modules/onnxruntime-web/dist") });

try {
  await withPage(executable, async (page) => {
    await page.goto(`${server.address}/index.html`);
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("The model runs"));
    const where = await page.textContent("#status");
    if (where.includes("GPU") !== (provider === "webgpu")) throw new Error(`${provider}: ${where}`);
    const { x, y, width, height } = await page.locator("#canvas").boundingBox();
    const found = {};
    for (const [digit, strokes] of Object.entries(DIGITS)) {
      await page.click("#clear");
      for (const [start, ...rest] of strokes) {
        await page.mouse.move(x + width * start[0], y + height * start[1]);
        await page.mouse.down();
        for (const [right, down] of rest) await page.mouse.move(x + width * right, y + height * down, { steps: 8 });
        await page.mouse.up();
      }
      await page.waitForFunction(() => document.getElementById("answer").textContent !== "");
      await page.waitForTimeout(100);
      found[digit] = await page.textContent("#answer");
      if (digit === "3") await page.screenshot({ path: join(folder, "digits.png") });
    }
    process.stdout.write(JSON.stringify(found));
  }, provider === "webgpu");
} finally {
  server.close();
}
