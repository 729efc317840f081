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
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
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

// Calls `use` with a page of a new browser, and ends the browser.
export async function withPage(executablePath, use) {
  const browser = await chromium.launch({ executablePath, args: ARGUMENTS, headless: true });
  try {
    const page = await browser.newPage({ viewport: { width: 760, height: 560 } });
    return await use(page);
  } finally {
    await browser.close();
  }
}
