// Takes a picture of each page of a dashboard that serves: `tools/pictures.py`.
//
//     node pictures.mjs CHROMIUM URL FOLDER NAME=PATH...
//
// URL has the token. A picture is taken when the page has its data.

import { chromium } from "playwright-core";

const [executablePath, url, folder, ...pages] = process.argv.slice(2);
const LOADED = 8_000;

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const page = await (await browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: "light" })).newPage();
await page.goto(url);
await page.waitForTimeout(LOADED);
for (const entry of pages) {
  const [name, path] = entry.split(/=(.*)/s);
  // The token stays in the storage of the tab.
  await page.goto(new URL(path, url).href);
  await page.waitForTimeout(LOADED);
  await page.screenshot({ path: `${folder}/dashboard_${name}.png` });
}
await browser.close();
