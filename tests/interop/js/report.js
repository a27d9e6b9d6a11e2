// Reports each check as one JSON line on stdout.

import { Console } from 'node:console';

// The second mesh requires a token.
export const { FAULTLINE_URL: OPEN, FAULTLINE_LOCKED_URL: LOCKED } = process.env;
export const agentUrl = (agent, mesh = OPEN) => `${mesh}/agents/${agent}`;

// Stdout is for the checks; logs of the SDK go to stderr.
globalThis.console = new Console(process.stderr);

// Time limit of one check, longer than any intended wait.
const PATIENCE_MS = 30_000;
let failed = 0;

const soon = (run) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('it hangs')), PATIENCE_MS);
  });
  return Promise.race([run, late]).finally(() => clearTimeout(timer));
};

/** Runs one check. A failure is reported with the check and does not stop the others. */
export async function check(client, binding, name, run) {
  const line = { client, binding, check: name, ok: true };
  try {
    await soon(run());
  } catch (error) {
    failed += 1;
    line.ok = false;
    line.why = `${error.name}: ${error.message}`;
    console.error(error);
  }
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** Exits with the result of the checks, even with open connections. */
export const leave = () => process.exit(failed === 0 ? 0 : 1);
