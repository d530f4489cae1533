// Drives chromium over every page of the dashboard, and prints a report as JSON.
//
//     DASHBOARD_TOKEN=… node drive.mjs URL FOLDER CHROMIUM
//
// Screenshots go to the folder. Each check has a name; one that fails has its error in the report.

import { chromium } from "playwright-core";

const [url, folder, executablePath] = process.argv.slice(2);
const token = process.env.DASHBOARD_TOKEN;
const report = { checks: {}, errors: [], foreign: [], withoutPolicy: [], numbers: {} };
const ANSWER_TIMEOUT = 20_000;
// A server that answers nothing would make each check wait.
const MOST_FAILED = 4;

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: "light" });
context.setDefaultTimeout(ANSWER_TIMEOUT);

function watch(page) {
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) report.errors.push(`${page.url()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => report.errors.push(`${page.url()}: ${error.stack}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(`${url}/`) && !/^(data|blob):/.test(request.url())) report.foreign.push(request.url());
  });
  page.on("response", (response) => {
    const policy = response.headers()["content-security-policy"] ?? "";
    if (!policy.includes("default-src 'none'") || /unsafe|https?:/.test(policy)) report.withoutPolicy.push(response.url());
  });
}

async function check(name, body) {
  if (Object.values(report.checks).filter((error) => error !== null).length >= MOST_FAILED) {
    report.checks[name] = "not run: others have failed";
    return;
  }
  try {
    await body();
    report.checks[name] = null;
  } catch (error) {
    report.checks[name] = String(error.stack ?? error);
    await page.screenshot({ path: `${folder}/failed_${name.replace(/\W+/g, "_")}.png` }).catch(() => {});
  }
}

function equal(found, wanted, what) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${what}: ${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`);
}

async function control(what) {
  const { status } = await fetch(`${url}/control/${what}`);
  equal(status, 204, `control ${what}`);
}

const shot = (name) => page.screenshot({ path: `${folder}/dashboard_${name}.png` });
const heading = (name) => page.getByRole("heading", { level: 1, name, exact: true }).waitFor();
const open = async (name) => {
  await page.getByRole("navigation").getByRole("link", { name, exact: true }).click();
  await heading(name);
};

const page = await context.newPage();
watch(page);
const tiles = () => page.locator(".tile .value", { hasText: "10,008" }).waitFor();

// Milliseconds since the navigation began: first paint, first request of data, first data on the page.
async function measure(name) {
  report.numbers[name] = await page.evaluate(() => {
    const now = Math.round(performance.now());
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    const requests = performance.getEntriesByType("resource").filter((entry) => /\/(api|v1)\//.test(entry.name));
    return { paint: Math.round(paint?.startTime ?? -1), request: Math.round(Math.min(...requests.map((entry) => entry.startTime))), data: now };
  });
}

await check("the token leaves the URL", async () => {
  await page.goto(`${url}/#token=${token}`);
  await tiles();
  await measure("cold");
  await page.reload();
  await tiles();
  await measure("warm");
  equal(new URL(page.url()).hash, "", "fragment");
  equal(await page.evaluate(() => sessionStorage.getItem("monarch.token")), token, "stored token");
  equal(await page.evaluate(() => document.cookie), "", "cookies");
});

await check("overview", async () => {
  await page.getByRole("row", { name: /host2/ }).waitFor();
  await page.locator(".failures", { hasText: "ValueError: bad batch" }).waitFor();
  await page.getByText("2 failures followed").click();
  await page.locator(".chart canvas").waitFor();
  await page.getByRole("row", { name: /trainer\.step/ }).waitFor();
  await shot("overview");
});

await check("topology", async () => {
  await open("Topology");
  await page.getByRole("button", { name: /^trainer/ }).first().waitFor();
  await shot("topology");
  await page.getByLabel("Show").selectOption("actor");
  await page.locator(".vertex.rolled").first().waitFor();
  const drawn = await page.locator(".vertex").count();
  if (drawn > 1500) throw new Error(`${drawn} vertices are drawn`);
});

await check("explorer by keyboard only", async () => {
  await page.keyboard.press("Escape");
  await page.locator("body").press("g");
  await page.keyboard.press("e");
  await heading("Explorer");
  const tree = page.getByRole("tree");
  await tree.getByText("hosts", { exact: true }).waitFor();
  // Tab goes through the frame of the page to the search and to the tree.
  for (let presses = 0; presses < 40; presses += 1) {
    if (await tree.evaluate((element) => element === document.activeElement)) break;
    await page.keyboard.press("Tab");
  }
  equal(await tree.evaluate((element) => element === document.activeElement), true, "focus on the tree");
  const down = async (text) => {
    for (let presses = 0; presses < 12; presses += 1) {
      await page.keyboard.press("ArrowDown");
      if ((await tree.locator(".row.selected .label").textContent()) === text) return;
    }
    throw new Error(`no row ${text}`);
  };
  await page.keyboard.press("Home");
  await down("hosts");
  await page.keyboard.press("ArrowRight");
  await down("workers");
  await page.keyboard.press("ArrowRight");
  await down("trainer");
  await page.keyboard.press("ArrowRight");
  await tree.getByText("0: trainer[0]", { exact: true }).waitFor();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  await page.getByRole("heading", { name: "trainer[1]" }).waitFor();
  await page.getByRole("grid", { name: "statuses" }).getByText("Processing").waitFor();
  await page.getByRole("grid", { name: "messages in" }).getByText("load").first().waitFor();
  if (!/\/explorer\/actor\/4611686018427487905$/.test(page.url())) throw new Error(`URL ${page.url()}`);
  await shot("explorer");
});

await check("10,000 actors scroll", async () => {
  const tree = page.getByRole("tree");
  const rows = await tree.locator(".row").count();
  if (rows > 150) throw new Error(`${rows} rows are elements`);
  report.numbers.longest_frame_ms = await tree.evaluate(async (element) => {
    const frame = () => new Promise((next) => requestAnimationFrame(next));
    let [longest, last] = [0, await frame()];
    for (let step = 0; step < 60; step += 1) {
      element.scrollTop += 4000;
      const now = await frame();
      [longest, last] = [Math.max(longest, now - last), now];
    }
    return Math.round(longest);
  });
  await tree.focus();
  await page.keyboard.press("End");
  await tree.locator(".row.selected").waitFor();
  equal((await tree.locator(".row").count()) < 150, true, "few elements at the end");
});

await check("hosts and processes", async () => {
  const tree = page.getByRole("tree");
  await page.goto(`${url}/explorer`);
  await tree.getByText("tcp://10.0.0.2:26600").waitFor();
  await page.getByLabel("Search open rows").fill("tcp://10.0.0.2");
  await tree.getByText("tcp://10.0.0.2:26600").click();
  await page.getByRole("heading", { name: /^Host:/ }).waitFor();
});

await check("a flame graph of a proc", async () => {
  const tree = page.getByRole("tree");
  await tree.focus();
  await page.keyboard.press("ArrowRight");
  await page.getByLabel("Search open rows").fill("");
  // Its row is in view again, and those of its procs are loaded then.
  await tree.getByText(/^workers\[2\d\]$/).first().click();
  await page.getByRole("button", { name: "Record 5 s" }).click();
  await page.getByRole("img", { name: "flame graph of the proc" }).waitFor();
});

await check("an action is confirmed", async () => {
  await page.goto(`${url}/explorer/mesh/${4611686018427387904n + 4n}`);
  await page.getByRole("button", { name: "Stop mesh" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Stop mesh" }).click();
  await page.getByText("is stopping").waitFor();
});

await check("logs", async () => {
  await open("Logs");
  const list = page.getByRole("listbox", { name: "log lines" });
  await list.locator(".row").first().waitFor();
  await control("line/a%20new%20line%20of%20rank%200");
  await list.getByText("a new line of rank 0").waitFor();
  await shot("logs");
  await page.getByLabel("Level").selectOption("error");
  await page.getByLabel("Text").fill("loss");
  await page.waitForURL(/level=error&text=loss|text=loss&level=error/);
  await page.waitForFunction(() => {
    const lines = [...document.querySelectorAll(".lines .row")].map((row) => row.textContent);
    return lines.length > 0 && lines.every((line) => line.includes("ERROR") && line.includes("loss"));
  });
  await page.getByLabel("Ranks").fill("nonsense");
  await page.getByRole("alert").getByText("'nonsense' is no rank").waitFor();
});

await check("charts", async () => {
  await open("Metrics");
  await page.locator(".chart canvas").waitFor();
  await page.getByRole("option", { name: /endpoint_call_latency_us_histogram/ }).click();
  await page.getByRole("img", { name: /endpoint_call_latency_us_histogram: p/ }).waitFor();
  await page.getByRole("option", { name: /actor.messages_received/ }).click();
  await page.getByRole("img", { name: /actor.messages_received: .*\/s/ }).waitFor();
  await page.getByRole("option", { name: /train.loss/ }).click();
  await page.getByRole("img", { name: /train.loss: host.name=host/ }).waitFor();
  await page.locator(".examples a").first().waitFor();
  await shot("metrics");
  await page.reload();
  await page.getByRole("img", { name: /train.loss: host.name=host/ }).waitFor();
});

await check("a drag in a chart chooses the time", async () => {
  const box = await page.locator(".chart .u-over").boundingBox();
  await page.mouse.move(box.x + box.width * 0.4, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.7, box.y + 60, { steps: 5 });
  await page.mouse.up();
  await page.waitForURL(/from=\d+&to=\d+|to=\d+&from=\d+/);
});

await check("sql", async () => {
  await open("SQL");
  const editor = page.getByLabel("Statement", { exact: true });
  await editor.fill("SELECT id, rank, display_name FROM actors ORDER BY rank LIMIT 5");
  await editor.press("Control+Enter");
  await page.getByRole("grid", { name: "rows" }).getByText("4611686018427487904").waitFor();
  await page.getByText("4 of 4 hosts answered").waitFor();
  await page.getByText("actor_status_events", { exact: true }).click();
  await page.getByText("new_status").waitFor();
  await shot("sql");
  await editor.fill("SELECT nothing FROM actors");
  await editor.press("Control+Enter");
  await page.getByRole("alert").waitFor();
  await editor.fill("SELECT a.id, b.rank FROM actors a JOIN actors b ON a.id = b.id");
  await editor.press("Control+Enter");
  await page.getByRole("button", { name: "More rows" }).click();
  await page.getByText("10,008 rows", { exact: true }).waitFor();
});

await check("a diagnosis is asked for on demand only", async () => {
  const asked = [];
  const count = (request) => new URL(request.url()).pathname === "/v1/diagnose" && asked.push(request.url());
  page.on("request", count);
  await page.locator("body").press("g");
  await page.keyboard.press("d");
  await heading("Diagnose");
  await page.getByRole("heading", { name: "2 causes" }).waitFor();
  const [first] = await page.locator(".causes > li").allTextContents();
  if (!/^trainer rank 5 .*a cycle of 2/.test(first)) throw new Error(`first cause: ${first}`);
  await page.locator(".causes code", { hasText: "monarch stack" }).first().waitFor();
  // Markup and control characters of a program are text.
  await page.getByText("\\u202e<img src=x onerror=alert(1)>").waitFor();
  await page.getByText("9 of 12 procs").waitFor();
  await shot("diagnose");
  equal(asked.length, 1, "requests after opening");
  await control("line/an%20event");
  await page.getByRole("button", { name: "Look again" }).click();
  await page.waitForFunction(() => document.querySelector(".page [role=status]").textContent.startsWith("looked at"));
  equal(asked.length, 2, "requests after the button");
  await open("Stacks");
  equal(asked.length, 2, "requests of another page");
  page.off("request", count);
});

await check("stacks", async () => {
  await open("Stacks");
  await page.getByText("workers[0-6999]").waitFor();
  const graph = page.getByRole("application");
  await graph.focus();
  for (const key of ["ArrowDown", "ArrowDown", "Enter"]) await page.keyboard.press(key);
  await page.getByRole("status").getByText(/^step \(train.py\): 9,999 threads/).waitFor();
  await shot("stacks");
});

await check("timeline", async () => {
  await open("Timeline");
  await page.getByRole("grid", { name: "spans" }).getByText("forward").first().waitFor();
  await page.locator("canvas.timeline").focus();
  await page.keyboard.press("+");
  await page.getByRole("grid", { name: "spans" }).locator(".row").first().click();
  await shot("timeline");
});

await check("audit", async () => {
  await open("Audit");
  await page.getByLabel("Outcome").selectOption("refused");
  await page.getByRole("grid", { name: "audit" }).getByText("refused").first().waitFor();
  await shot("audit");
});

await check("a silent host is shown with the age of its data", async () => {
  await page.goto(`${url}/`);
  await page.getByRole("row", { name: /host3/ }).getByText("ready").waitFor();
  await control("silent");
  await page.getByRole("row", { name: /host3/ }).getByText(/no answer; data .* old/).waitFor();
  await page.locator(".silent").getByText(/host3 \(no answer within 8 s; data .* old\)/).waitFor();
  await shot("silent_host");
  await control("answering");
  await page.locator(".silent").waitFor({ state: "detached" });
});

await check("a hidden tab asks for nothing", async () => {
  await page.locator(".stream.live").waitFor();
  await page.evaluate(() => {
    Object.defineProperty(document, "hidden", { value: true, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await page.locator(".stream.paused").waitFor();
  await page.evaluate(() => {
    Object.defineProperty(document, "hidden", { value: false, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await page.locator(".stream.live").waitFor();
});

await check("dark", async () => {
  const back = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await back();
  await page.getByRole("button", { name: "Colors: system. Change." }).click();
  if ((await back()) === light) throw new Error("the colors did not change");
  await page.reload();
  await page.locator(".failures", { hasText: "ValueError" }).waitFor();
  await page.locator(".donut").waitFor();
  if ((await back()) === light) throw new Error("the colors did not stay");
  await shot("dark");
});

await check("without a token it is asked for", async () => {
  const other = await browser.newContext();
  other.setDefaultTimeout(ANSWER_TIMEOUT);
  const stranger = await other.newPage();
  await stranger.goto(`${url}/logs`);
  await stranger.getByLabel("Token").fill(token);
  await stranger.keyboard.press("Enter");
  await stranger.getByRole("listbox", { name: "log lines" }).locator(".row").first().waitFor();
  await other.close();
});

await browser.close();
process.stdout.write(`${JSON.stringify(report)}\n`);
