// The operations of the official JavaScript SDK, on every binding.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { randomUUID } from 'node:crypto';

import { ListTasksRequest, TaskState } from '@a2a-js/sdk';

import { cardOf, collect, isFinal, message, state, text, until } from './clients.js';

const LATER = { returnImmediately: true };

async function card(clients) {
  const found = await cardOf('echo');
  const listed = found.supportedInterfaces.map((i) => i.protocolBinding);
  assert.ok(listed.includes(clients.binding), listed);
  assert.ok(found.capabilities.streaming && found.capabilities.pushNotifications);
}

async function extendedCard(clients) {
  const shown = await cardOf('script');
  const extended = await (await clients.of('script')).getAgentCard();
  assert.ok(extended.skills.length > shown.skills.length, extended.skills);
}

async function send(clients) {
  const client = await clients.of('echo');
  const task = await client.sendMessage(message('hello'));
  assert.equal(state(task), 'TASK_STATE_COMPLETED');
  assert.deepEqual(task.artifacts.map(text), ['hello']);
  assert.equal(text(task.history[0]), 'hello');
}

async function bareMessage(clients) {
  const client = await clients.of('script');
  const answer = await client.sendMessage(message('message hi'));
  assert.ok(answer.messageId, answer);
  assert.equal(text(answer), 'hi');
}

async function returnImmediately(clients) {
  const client = await clients.of('script');
  const started = await client.sendMessage(message('sleep 300ms; artifact done yes', LATER));
  assert.ok(!isFinal(started), started);
  const ended = await until(async () => {
    const task = await client.getTask({ id: started.id });
    return isFinal(task) && task;
  });
  assert.equal(state(ended), 'TASK_STATE_COMPLETED');
}

async function stream(clients) {
  const client = await clients.of('script');
  const script = 'say thinking; chunk "one "; sleep 100ms; chunk two';
  const events = await collect(client.sendMessageStream(message(script)));
  assert.equal(events[0].$case, 'task');
  let written = '';
  for (const event of events.filter((e) => e.$case === 'artifactUpdate')) {
    written = (event.value.append ? written : '') + text(event.value.artifact);
  }
  assert.equal(written, 'one two');
  assert.equal(events.at(-1).$case, 'statusUpdate');
  assert.equal(state(events.at(-1).value), 'TASK_STATE_COMPLETED');
}

async function failedTask(clients) {
  const client = await clients.of('script');
  const task = await client.sendMessage(message('fail RATE_LIMITED text="slow down"'));
  assert.equal(state(task), 'TASK_STATE_FAILED');
  assert.equal(task.metadata['faultline.dev/failure'].reason, 'RATE_LIMITED');
}

async function get(clients) {
  const client = await clients.of('script');
  const sent = await client.sendMessage(message('say one; artifact a b'));
  const task = await client.getTask({ id: sent.id });
  assert.deepEqual([task.id, task.contextId], [sent.id, sent.contextId]);
  assert.deepEqual(task.artifacts, sent.artifacts);
  assert.equal((await client.getTask({ id: sent.id, historyLength: 1 })).history.length, 1);
}

async function list(clients) {
  const client = await clients.of('script');
  const context = randomUUID();
  const ids = [];
  for (const script of ['artifact a b', 'artifact a b', 'fail UNAVAILABLE']) {
    ids.unshift((await client.sendMessage(message(script, { context }))).id);
  }
  const page = (more) =>
    client.listTasks(ListTasksRequest.fromJSON({ contextId: context, pageSize: 2, ...more }));
  const first = await page({});
  assert.deepEqual([first.totalSize, first.tasks.length], [3, 2]);
  const rest = await page({ pageToken: first.nextPageToken });
  assert.equal(rest.nextPageToken, '');
  assert.deepEqual([...first.tasks, ...rest.tasks].map((task) => task.id), ids);
  const done = await page({ status: 'TASK_STATE_COMPLETED', includeArtifacts: true });
  assert.equal(done.totalSize, 2);
  assert.ok(done.tasks.every((task) => text(task.artifacts[0]) === 'b'));
}

async function cancel(clients) {
  const client = await clients.of('script');
  const task = await client.sendMessage(message('sleep 1m', LATER));
  assert.equal(state(await client.cancelTask({ id: task.id })), 'TASK_STATE_CANCELED');
}

async function asking(client, script) {
  const { id } = await client.sendMessage(message(script, LATER));
  return until(async () => {
    const task = await client.getTask({ id });
    return task.status.state === TaskState.TASK_STATE_INPUT_REQUIRED && task;
  });
}

async function subscribe(clients) {
  const client = await clients.of('script');
  const task = await asking(client, 'ask "go?"; chunk one; sleep 50ms; chunk two');
  const events = [];
  for await (const { payload } of client.resubscribeTask({ id: task.id })) {
    if (events.length === 0) await client.sendMessage(message('go', { task: task.id }));
    events.push(payload);
  }
  assert.equal(events[0].$case, 'task');
  assert.equal(state(events.at(-1).value), 'TASK_STATE_COMPLETED');
  const chunks = events.filter((event) => event.$case === 'artifactUpdate');
  assert.equal(chunks.map((event) => text(event.value.artifact)).join(''), 'onetwo');
}

async function inputRequired(clients) {
  const client = await clients.of('script');
  const asked = await client.sendMessage(message('ask "which?"; artifact choice "got $answer"'));
  assert.equal(state(asked), 'TASK_STATE_INPUT_REQUIRED');
  assert.equal(text(asked.status.message), 'which?');
  const done = await client.sendMessage(message('green', { task: asked.id }));
  assert.equal(state(done), 'TASK_STATE_COMPLETED');
  assert.deepEqual(done.artifacts.map(text), ['got green']);
}

/** A receiver of push notifications on a free port. */
async function webhook() {
  const received = [];
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    received.push({ headers: request.headers, body: JSON.parse(body) });
    response.end();
  });
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  return { received, server, url: `http://127.0.0.1:${server.address().port}/hook` };
}

async function push(clients) {
  const hook = await webhook();
  const pushNotificationConfig = {
    tenant: '', id: '', taskId: '', url: hook.url, token: 'a-token',
    authentication: { scheme: 'Bearer', credentials: 'secret' },
  };
  const client = await clients.of('script', { pushNotificationConfig });
  const task = await asking(client, 'ask "go?"; artifact a b');
  await client.sendMessage(message('go', { task: task.id }));
  const isLast = ({ body }) => body.statusUpdate?.status.state === 'TASK_STATE_COMPLETED';
  await until(() => hook.received.some(isLast));
  hook.server.close();
  for (const { headers, body } of hook.received) {
    assert.equal(headers['x-a2a-notification-token'], 'a-token');
    assert.equal(headers.authorization, 'Bearer secret');
    assert.equal(body.statusUpdate.taskId, task.id);
  }
}

async function pushConfigs(clients) {
  const client = await clients.of('script');
  const task = await client.sendMessage(message('sleep 1m', LATER));
  const config = { tenant: '', id: 'one', taskId: task.id, url: 'http://127.0.0.1:9/', token: '' };
  await client.createTaskPushNotificationConfig({ ...config, authentication: undefined });
  const one = { tenant: '', taskId: task.id, id: 'one' };
  assert.equal((await client.getTaskPushNotificationConfig(one)).url, config.url);
  const all = { tenant: '', taskId: task.id, pageSize: 0, pageToken: '' };
  assert.equal((await client.listTaskPushNotificationConfig(all)).configs.length, 1);
  await client.deleteTaskPushNotificationConfig(one);
  await client.deleteTaskPushNotificationConfig(one);
  assert.equal((await client.listTaskPushNotificationConfig(all)).configs.length, 0);
  await client.cancelTask({ id: task.id });
}

async function requiredExtension(clients) {
  const client = await clients.of('strict');
  const serviceParameters = { 'A2A-Extensions': 'https://example.org/ext/strict/v1' };
  const task = await client.sendMessage(message('hello'), { serviceParameters });
  assert.equal(state(task), 'TASK_STATE_COMPLETED');
}

export const OPERATIONS = {
  card,
  'extended card': extendedCard,
  send,
  'bare message': bareMessage,
  'return immediately': returnImmediately,
  stream,
  'failed task': failedTask,
  get,
  list,
  cancel,
  subscribe,
  'input required': inputRequired,
  push,
  'push configs': pushConfigs,
  'required extension': requiredExtension,
};
