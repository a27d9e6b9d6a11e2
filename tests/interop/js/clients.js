// Clients of the official JavaScript SDK, and the messages of the checks.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';

import { InterceptingCall } from '@grpc/grpc-js';
import { SendMessageRequest, TaskState, taskStateToJSON } from '@a2a-js/sdk';
import {
  ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory,
} from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';
import { isJsonRpcError, isRestError } from '@a2a-js/sdk/errors';
import { isGrpcError } from '@a2a-js/sdk/errors/grpc';

import { agentUrl } from './report.js';

const installed = new URL('node_modules/@a2a-js/sdk/package.json', import.meta.url);
const { name, version } = JSON.parse(readFileSync(installed, 'utf8'));
export const SDK = `${name} ${version}`;
export const BINDINGS = ['JSONRPC', 'HTTP+JSON', 'GRPC'];

/** Sets another version of A2A in the calls of a client. */
const announcing = (version) => (options, next) => new InterceptingCall(next(options), {
  start(metadata, listener, start) {
    metadata.set('a2a-version', version);
    start(metadata, listener);
  },
});

/** A fetch function that replaces the body or a header of a request. */
export const damaged = ({ body, headers }) => (url, init) =>
  fetch(url, { ...init, body: body ?? init.body, headers: { ...init.headers, ...headers } });

const FACTORIES = {
  JSONRPC: (options) => new JsonRpcTransportFactory(options),
  'HTTP+JSON': (options) => new RestTransportFactory(options),
  GRPC: ({ announce }) => new GrpcTransportFactory({
    grpcCallOptions: announce && { interceptors: [announcing(announce)] },
  }),
};
const ERROR_OF_BINDING = { JSONRPC: isJsonRpcError, 'HTTP+JSON': isRestError, GRPC: isGrpcError };

const FINAL = [
  TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_CANCELED,
  TaskState.TASK_STATE_REJECTED,
];
export const isFinal = (task) => FINAL.includes(task.status.state);
export const state = (holder) => taskStateToJSON(holder.status.state);

/** The resolver treats the URL as a directory only if it ends with a slash. */
export const cardOf = (agent, mesh) =>
  new DefaultAgentCardResolver().resolve(`${agentUrl(agent, mesh)}/`);

/** Clients of one binding, chosen from the agent's card as an application would. */
export class Clients {
  constructor(binding) {
    this.binding = binding;
  }

  /** A client of an agent. `claim` changes the card, so that the server and not the SDK refuses a call;
   * `fetchImpl` replaces fetch, `announce` is another version. */
  async of(agent, { mesh, claim, announce, fetchImpl, ...clientConfig } = {}) {
    const card = await cardOf(agent, mesh);
    claim?.(card.capabilities);
    const other = announce && damaged({ headers: { 'A2A-Version': announce } });
    const transports = [FACTORIES[this.binding]({ announce, fetchImpl: fetchImpl ?? other })];
    return new ClientFactory({ transports, clientConfig }).createFromAgentCard(card);
  }

  /** Fails unless the call throws this class of the SDK for the binding. */
  async throws(kind, call) {
    let answer;
    try {
      answer = await call();
    } catch (error) {
      assert.ok(error instanceof kind, `${error.name} is no ${kind.name}: ${error.message}`);
      const flavour = ERROR_OF_BINDING[this.binding](error);
      assert.ok(flavour, `${error.name} is not of ${this.binding}`);
      return error;
    }
    return assert.fail(`no ${kind.name} but an answer: ${JSON.stringify(answer)}`);
  }
}

/** A request with one text message; other fields are ProtoJSON. */
export function message(text, { task, context, parts, ...configuration } = {}) {
  return SendMessageRequest.fromJSON({
    message: {
      messageId: randomUUID(),
      role: 'ROLE_USER',
      parts: parts ?? [{ text }],
      taskId: task,
      contextId: context,
    },
    configuration,
  });
}

export async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event.payload);
  return events;
}

export const text = (holder) =>
  holder.parts.map(({ content }) => (content.$case === 'text' ? content.value : '')).join('');

/** Polls a condition until it is true. */
export async function until(look) {
  for (;;) {
    const seen = await look();
    if (seen) return seen;
    await new Promise((wake) => setTimeout(wake, 20));
  }
}
