// A picture of one trace, as Phoenix shows it: node shot.js URL FILE
import { chromium } from "playwright-core";

const [url, file] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});
try {
  const page = await browser.newPage({ viewport: { width: 1500, height: 900 }, colorScheme: "dark" });
  await page.goto(url, { waitUntil: "domcontentloaded" });
  // The page is there when the last hop of the tree is.
  await page.getByText("attempt script").last().waitFor({ timeout: 60_000 });
  await page.waitForTimeout(3000);
  await page.screenshot({ path: file });
} finally {
  await browser.close();
}
