// The official JavaScript SDK against a mesh, on its three bindings: every operation, every error.

import { BINDINGS, Clients, SDK } from './clients.js';
import { ERRORS, OF_JSONRPC } from './errors.js';
import { OPERATIONS } from './operations.js';
import { check, leave } from './report.js';
import { TRUST } from './trust.js';

const asked = process.argv.slice(2);
for (const binding of asked.length > 0 ? asked : BINDINGS) {
  const clients = new Clients(binding);
  const ofBinding = binding === 'JSONRPC' ? OF_JSONRPC : {};
  const checks = { ...OPERATIONS, ...TRUST, ...ERRORS, ...ofBinding };
  for (const [name, run] of Object.entries(checks)) {
    await check(SDK, binding, name, () => run(clients));
  }
}
leave();
