// Every error class of the official JavaScript SDK that a server can cause.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';

import { ListTasksRequest } from '@a2a-js/sdk';
import * as sdk from '@a2a-js/sdk/errors';

import { collect, damaged, message } from './clients.js';

const NOBODY = '01a1e2ea-0000-7000-8000-000000000000';

async function taskNotFound(clients) {
  const client = await clients.of('script');
  const kind = sdk.TaskNotFoundError;
  await clients.throws(kind, () => client.getTask({ id: NOBODY }));
  await clients.throws(kind, () => client.cancelTask({ id: NOBODY }));
  await clients.throws(kind, () => collect(client.resubscribeTask({ id: NOBODY })));
  await clients.throws(kind, () => client.sendMessage(message('x', { task: NOBODY })));
}

async function taskNotCancelable(clients) {
  const client = await clients.of('echo');
  const { id } = await client.sendMessage(message('hello'));
  await clients.throws(sdk.TaskNotCancelableError, () => client.cancelTask({ id }));
}

async function unsupportedOperation(clients) {
  const kind = sdk.UnsupportedOperationError;
  const client = await clients.of('echo');
  const { id } = await client.sendMessage(message('hello'));
  await clients.throws(kind, () => collect(client.resubscribeTask({ id })));
  await clients.throws(kind, () => client.sendMessage(message('x', { task: id })));
}

/** Calls that the card does not offer. */
async function unsupportedCapability(clients) {
  const kind = sdk.UnsupportedOperationError;
  const claim = (can) => Object.assign(can, { streaming: true, extendedAgentCard: true });
  const plain = await clients.of('plain', { claim });
  await clients.throws(kind, () => collect(plain.sendMessageStream(message('hello'))));
  await clients.throws(kind, () => plain.getAgentCard());
}

async function pushNotSupported(clients) {
  const claim = (can) => Object.assign(can, { pushNotifications: true });
  const client = await clients.of('plain', { claim });
  const task = await client.sendMessage(message('hello'));
  const config = { tenant: '', id: '', taskId: task.id, url: 'http://127.0.0.1:9/', token: '' };
  const create = () => client.createTaskPushNotificationConfig({
    ...config, authentication: undefined,
  });
  await clients.throws(sdk.PushNotificationNotSupportedError, create);
}

async function contentTypeNotSupported(clients) {
  const client = await clients.of('script');
  const parts = [{ raw: 'iVBORw==', mediaType: 'image/png' }];
  const send = () => client.sendMessage(message('', { parts }));
  await clients.throws(sdk.ContentTypeNotSupportedError, send);
}

async function extendedCardNotConfigured(clients) {
  const client = await clients.of('promises');
  await clients.throws(sdk.ExtendedAgentCardNotConfiguredError, () => client.getAgentCard());
}

async function extensionRequired(clients) {
  const client = await clients.of('strict');
  const send = () => client.sendMessage(message('hello'));
  await clients.throws(sdk.ExtensionSupportRequiredError, send);
}

async function versionNotSupported(clients) {
  const client = await clients.of('echo', { announce: '2.0' });
  const send = () => client.sendMessage(message('hello'));
  await clients.throws(sdk.VersionNotSupportedError, send);
}

async function invalidParams(clients) {
  const client = await clients.of('script');
  const kind = sdk.RequestMalformedError;
  await clients.throws(kind, () => client.sendMessage(message('', { parts: [] })));
  const page = ListTasksRequest.fromJSON({ pageSize: 101 });
  await clients.throws(kind, () => client.listTasks(page));
  const asked = await client.sendMessage(message('ask "go?"'));
  const elsewhere = { task: asked.id, context: randomUUID() };
  await clients.throws(kind, () => client.sendMessage(message('go', elsewhere)));
  await client.cancelTask({ id: asked.id });
}

/** The SDK has one class for the reserved codes; the code itself is kept. */
const envelope = (body, code) => async (clients) => {
  const client = await clients.of('echo', { fetchImpl: damaged({ body }) });
  const send = () => client.sendMessage(message('hello'));
  const error = await clients.throws(sdk.RequestMalformedError, send);
  assert.equal(error.envelopeCode, code);
};

async function timeout(clients) {
  const client = await clients.of('script');
  const send = client.sendMessage(message('sleep 5s'), { signal: AbortSignal.timeout(500) });
  // HTTP throws the error of the abort; gRPC throws CANCELLED.
  const name = clients.binding === 'GRPC' ? 'A2AError' : 'TimeoutError';
  await assert.rejects(send, { name });
}

export const ERRORS = {
  TaskNotFound: taskNotFound,
  TaskNotCancelable: taskNotCancelable,
  UnsupportedOperation: unsupportedOperation,
  'capability not offered': unsupportedCapability,
  PushNotificationNotSupported: pushNotSupported,
  ContentTypeNotSupported: contentTypeNotSupported,
  ExtendedAgentCardNotConfigured: extendedCardNotConfigured,
  ExtensionSupportRequired: extensionRequired,
  VersionNotSupported: versionNotSupported,
  InvalidParams: invalidParams,
  timeout,
};

// Errors of the JSON-RPC envelope.
export const OF_JSONRPC = {
  InvalidRequest: envelope('{"jsonrpc":"2.0","id":1,"params":{}}', -32600),
  MethodNotFound: envelope('{"jsonrpc":"2.0","id":1,"method":"NoSuch","params":{}}', -32601),
  JSONParse: envelope('{"jsonrpc":"2.0",', -32700),
};
