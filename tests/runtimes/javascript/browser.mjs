// A real Chromium without a screen, and the server on the loopback address that its pages come from.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { chromium } from "playwright-core";

const TYPES = {
  ".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript", ".json": "application/json",
  ".wasm": "application/wasm",
};
const ARGUMENTS = [
  "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
// A graphics processor in software, on which WebGPU computes what it does on a card.
const GPU = [
  "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan,WebGPU", "--use-vulkan=swiftshader",
];

// Serves folders, each under the first part of the address: {"": folder, "ort": folder}.
export function served(folders) {
  const server = createServer(async (request, answer) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://here").pathname)).slice(1);
    const [first, ...rest] = path.split("/");
    const file = first in folders && rest.length ? join(folders[first], ...rest) : join(folders[""], path);
    try {
      const content = await readFile(file);
      answer.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream" }).end(content);
    } catch {
      answer.writeHead(404).end();
    }
  });
  return new Promise((ready) => {
    server.listen(0, "127.0.0.1", () => ready({ address: `http://127.0.0.1:${server.address().port}`, close: () => server.close() }));
  });
}

// Calls `use` with a page of a new browser, which has WebGPU if it should, and ends the browser.
export async function withPage(executablePath, use, gpu = false) {
  const args = [...ARGUMENTS, ...(gpu ? GPU : ["--disable-gpu"])];
  const browser = await chromium.launch({ executablePath, args, headless: true });
  try {
    const page = await browser.newPage({ viewport: { width: 760, height: 560 } });
    return await use(page);
  } finally {
    await browser.close();
  }
}
