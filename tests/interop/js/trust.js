// Authentication: signed cards, bearer tokens, and the errors for a missing or wrong token.

import assert from 'node:assert/strict';
import { createPublicKey } from 'node:crypto';

import { verifyAgentCardSignature } from '@a2a-js/sdk';
import { A2AError } from '@a2a-js/sdk/errors';

import { cardOf, message, state } from './clients.js';
import { LOCKED } from './report.js';

const { FAULTLINE_CARD_KEY: KEY, FAULTLINE_TOKEN: TOKEN } = process.env;

async function signedCard() {
  const verify = verifyAgentCardSignature(async () => createPublicKey(KEY));
  const card = await cardOf('script');
  await verify(card);
  await assert.rejects(verify({ ...card, description: 'another' }));
}

const bearing = (token) => ({ serviceParameters: { Authorization: `Bearer ${token}` } });

async function bearerToken(clients) {
  const client = await clients.of('echo', { mesh: LOCKED });
  const task = await client.sendMessage(message('hello'), bearing(TOKEN));
  assert.equal(state(task), 'TASK_STATE_COMPLETED');
}

/** A2A has no class for these errors: the general class of the SDK contains the error of the binding. */
async function refused(clients, agent, token, { envelopeCode, statusCode, status }) {
  const client = await clients.of(agent, { mesh: LOCKED });
  const send = () => client.sendMessage(message('hello'), bearing(token));
  const error = await clients.throws(A2AError, send);
  const said = { JSONRPC: envelopeCode, 'HTTP+JSON': statusCode, GRPC: status };
  assert.equal(error.envelopeCode ?? error.statusCode ?? error.status, said[clients.binding]);
}

const unauthenticated = (clients) =>
  refused(clients, 'echo', 'wrong', { envelopeCode: -31016, statusCode: 401, status: 16 });

const forbidden = (clients) =>
  refused(clients, 'script', TOKEN, { envelopeCode: -31007, statusCode: 403, status: 7 });

export const TRUST = {
  'signed card': signedCard,
  'bearer token': bearerToken,
  unauthenticated,
  forbidden,
};
