// How the official JavaScript SDK's clients are made here, and the messages that checks send.

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

/** The calls of a client announce another version of A2A. */
const announcing = (version) => (options, next) => new InterceptingCall(next(options), {
  start(metadata, listener, start) {
    metadata.set('a2a-version', version);
    start(metadata, listener);
  },
});

/** A wire that puts another body or header into whatever the SDK sends. */
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

/** The resolver takes the URL for a directory only if it ends like one. */
export const cardOf = (agent, mesh) =>
  new DefaultAgentCardResolver().resolve(`${agentUrl(agent, mesh)}/`);

/** Clients of one binding, chosen from the agent's card as an application would. */
export class Clients {
  constructor(binding) {
    this.binding = binding;
  }

  /** A client of an agent. `claim` changes the card first, so that the SDK does not refuse by
   * itself what the server must refuse; `fetchImpl` is the wire, `announce` another version. */
  async of(agent, { mesh, claim, announce, fetchImpl, ...clientConfig } = {}) {
    const card = await cardOf(agent, mesh);
    claim?.(card.capabilities);
    const other = announce && damaged({ headers: { 'A2A-Version': announce } });
    const transports = [FACTORIES[this.binding]({ announce, fetchImpl: fetchImpl ?? other })];
    return new ClientFactory({ transports, clientConfig }).createFromAgentCard(card);
  }

  /** The call must fail with this class of the SDK, in the flavour of the binding. */
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

/** A request to send one message of one text; the rest in ProtoJSON. */
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

/** Waits in small steps until it is so. */
export async function until(look) {
  for (;;) {
    const seen = await look();
    if (seen) return seen;
    await new Promise((wake) => setTimeout(wake, 20));
  }
}
