// Writes a picture of one trace in Phoenix, with the first failed span open:
//   node shot.js URL FILE
import { chromium } from "playwright-core";

const [url, file] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});
try {
  const viewport = { width: 1720, height: 900 };
  const page = await browser.newPage({ viewport, colorScheme: "dark" });
  await page.goto(url, { waitUntil: "domcontentloaded" });
  const hops = page.getByText("attempt script");
  await hops.last().waitFor({ state: "attached", timeout: 60_000 });
  await page.waitForTimeout(2000);
  // The tree needs a wider column.
  const handles = page.locator("[role=separator]");
  const boxes = await Promise.all((await handles.all()).map((handle) => handle.boundingBox()));
  const edge = boxes.filter((box) => box && box.height > 300).sort((a, b) => b.x - a.x)[0];
  if (edge) {
    await page.mouse.move(edge.x + edge.width / 2, edge.y + edge.height / 2);
    await page.mouse.down();
    await page.mouse.move(edge.x + 230, edge.y + edge.height / 2, { steps: 10 });
    await page.mouse.up();
  }
  await hops.last().click();
  await page.waitForTimeout(1500);
  await page.getByText("Events", { exact: false }).last().click();
  await page.waitForTimeout(1500);
  await page.screenshot({ path: file });
} finally {
  await browser.close();
}
