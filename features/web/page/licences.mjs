// Writes the licences of the packages that are in the page into dist, which kas serves and `deploy/image` reads.
import { readFile, readdir, writeFile } from "node:fs/promises";

const { packages } = JSON.parse(await readFile("package-lock.json", "utf8"));
// The first entry is the page itself.
const shipped = Object.entries(packages).filter(([path, { dev }]) => path !== "" && !dev);

async function notice([path, { version, license }]) {
  const files = (await readdir(path)).filter((name) => /^(licen[cs]e|copying|notice)/i.test(name)).sort();
  if (files.length === 0) throw new Error(`${path} has no file with its licence`);
  const texts = await Promise.all(files.map((name) => readFile(`${path}/${name}`, "utf8")));
  const title = `${path.replace(/^.*node_modules\//, "")} ${version} (${license})`;
  return `${title}\n\n${texts.map((text) => text.trim()).join("\n\n")}\n`;
}

const notices = await Promise.all(shipped.map(notice));
await writeFile("dist/third-party-licences.txt", notices.join(`\n${"=".repeat(79)}\n\n`));
