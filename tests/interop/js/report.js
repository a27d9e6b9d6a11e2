// One JSON line a check on stdout, so that a run shows what each client really did.

import { Console } from 'node:console';

// The second mesh asks who calls.
export const { FAULTLINE_URL: OPEN, FAULTLINE_LOCKED_URL: LOCKED } = process.env;
export const agentUrl = (agent, mesh = OPEN) => `${mesh}/agents/${agent}`;

// Stdout is for the checks alone; the SDK logs there too.
globalThis.console = new Console(process.stderr);

// Longer than any check waits on purpose; one that hangs has failed.
const PATIENCE_MS = 30_000;
let failed = 0;

const soon = (run) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('it hangs')), PATIENCE_MS);
  });
  return Promise.race([run, late]).finally(() => clearTimeout(timer));
};

/** Runs one check. What goes wrong is told with the check and does not stop the others. */
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

/** Ends the process as the checks went, whatever connections are still open. */
export const leave = () => process.exit(failed === 0 ? 0 : 1);
